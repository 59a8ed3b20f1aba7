"""What every network is: a module that can be described and built again."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pushforward._precision import NETWORK_DTYPE


class AbstractNetwork(eqx.Module):
    """A network from `in_size` to `out_size` numbers.

    Its static fields carry the names of its constructor's arguments, so that
    `describe` and `build` need nothing more.
    """

    in_size: eqx.AbstractVar[int]
    out_size: eqx.AbstractVar[int]

    @abc.abstractmethod
    def __call__(self, x: Float[Array, " i"]) -> Float[Array, " o"]:
        """The network at one point."""

    def gradient_in_units(self, gradient: "AbstractNetwork") -> "AbstractNetwork":
        """A gradient with respect to weights that are measured in their own units.

        Adam moves every number by about as much. Where that would be too much for some
        of them, they have units in which it is not.
        """
        return gradient

    def update_of_units(self, update: "AbstractNetwork") -> "AbstractNetwork":
        """The update of the weights that is this one in their own units."""
        return update


class AbstractStoredNetwork(AbstractNetwork):
    """A network whose arrays have names of their own in a file.

    Fields may be renamed, and these names stay.
    """

    @abc.abstractmethod
    def arrays(self) -> dict[str, Any]:
        """Every array of the network, by its name in a file."""


class AbstractDensityNetwork(AbstractNetwork):
    """A network that knows the density of its draws `x = g(z)`, `z ~ N(0, I)`."""

    @property
    @abc.abstractmethod
    def has_density(self) -> bool:
        """Whether it is invertible: a map that may fold has no such density."""

    @abc.abstractmethod
    def with_log_density(
        self, z: Float[Array, " i"]
    ) -> tuple[Float[Array, " o"], Float[Array, ""]]:
        """The network at one latent point, and the log density of its draws there."""

    @abc.abstractmethod
    def log_density(self, x: Float[Array, " o"]) -> Float[Array, ""]:
        """The log density of its draws at any point, by the inverse."""

    def latents(self, key: PRNGKeyArray, n: int) -> Float[Array, "n i"]:
        """`n` latent points for training: each standard normal, together stratified.

        Each by itself is standard normal, so that any part of them is a sample.
        """
        return jax.random.normal(key, (n, self.in_size), NETWORK_DTYPE)

    @abc.abstractmethod
    def push_latents(
        self, z: Float[Array, "n i"]
    ) -> tuple[
        Float[Array, "n o"], Float[Array, " n"], Float[Array, "n o"], Float[Array, " n"]
    ]:
        """The draws from latent points, with their log densities and scores.

        Last come the log weights of the components that they are from, 0 where the base
        is no mixture. In derivatives only draws and log weights move; log densities and
        scores are constants.
        """


def normal_log_density(z: Float[Array, " i"]) -> Float[Array, ""]:
    """The log density of N(0, I)."""
    return jnp.sum(jax.scipy.stats.norm.logpdf(z))


def pick(logits: Float[Array, " k"], u: Float[Array, ""]) -> Int[Array, ""]:
    """The one of several that `u` ~ N(0, 1) picks, by weights softmax(`logits`)."""
    edges = jnp.cumsum(jax.nn.softmax(logits))
    # The last edge is 1 up to rounding: leaving it out keeps the index in range.
    return jnp.sum(jax.scipy.stats.norm.cdf(u) > edges[:-1]).astype(jnp.int32)


class AbstractBatchNetwork(AbstractNetwork):
    """A network whose training sees a whole batch (batch normalisation).

    At rest it is a function of one point, by running statistics. In training it takes a
    batch, uses the batch's own statistics, and returns the network that has seen them.
    """

    @abc.abstractmethod
    def train(
        self, batch: Float[Array, "n i"], keep: float | Float[Array, ""] = 0.9
    ) -> tuple[Float[Array, "n o"], "AbstractBatchNetwork"]:
        """A training pass; `keep` is the weight of the statistics seen before."""

    @abc.abstractmethod
    def statistics(self) -> list[Any]:
        """The running statistics, which no gradient moves."""


def with_statistics(
    network: AbstractBatchNetwork, seen: AbstractBatchNetwork
) -> AbstractBatchNetwork:
    """`network` with the running statistics of `seen`."""
    return eqx.tree_at(lambda n: n.statistics(), network, seen.statistics())


@eqx.filter_jit
def at_rest(
    network: AbstractBatchNetwork, batches: Float[Array, "k n i"]
) -> AbstractBatchNetwork:
    """The network with its statistics estimated anew, as means over `batches`.

    Averaged weights need this: the statistics of the weights that were averaged are not
    theirs.
    """
    # A loop, not copies: a deep network is compiled once.
    count = jnp.arange(batches.shape[0], dtype=jnp.float32)
    arrays, static = eqx.partition(network, eqx.is_array)

    def body(arrays, at):
        i, batch = at
        _, seen = eqx.combine(arrays, static).train(batch, keep=i / (i + 1))
        return eqx.filter(seen, eqx.is_array), None

    arrays, _ = jax.lax.scan(body, arrays, (count, batches))
    return eqx.combine(arrays, static)


def stratified_normal(key: PRNGKeyArray, n: int) -> Float[Array, " n"]:
    """`n` standard normal numbers, one in each nth of the distribution, shuffled.

    In order, the first of them would not be standard normal, nor any other by itself.
    """
    key, order_key = jax.random.split(key)
    u = jax.random.uniform(key, (n,), NETWORK_DTYPE)
    strata = jax.random.permutation(order_key, jnp.arange(n, dtype=NETWORK_DTYPE))
    u = (strata + u) / n
    tiny = jnp.finfo(NETWORK_DTYPE).eps
    return jax.scipy.special.ndtri(jnp.clip(u, tiny, 1 - tiny)).astype(NETWORK_DTYPE)
