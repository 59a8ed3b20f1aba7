"""Methods with a loss that the sampler's draws and the target alone make up.

`x = g(z)`, and a step is one gradient of the loss in the weights of `g`: there is no
second network to learn a score. Such methods differ in the loss: `KSD`, `SteinGAN`.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward._precision import NETWORK_DTYPE, widen
from pushforward.errors import UsageError
from pushforward.methods.base import (
    AbstractMethod,
    Adam,
    AutoInt,
    Clock,
    average,
    fill_in,
)
from pushforward.methods.common import Schedule, Shape, coordinates, new_map, pace
from pushforward.networks import AbstractNetwork
from pushforward.sampler import Sampler
from pushforward.targets.base import AbstractTarget
from pushforward.whitening import Look


class DirectState(eqx.Module):
    """What the next step needs."""

    network: AbstractNetwork
    averaged: AbstractNetwork
    optimiser: tuple
    look: Look
    clock: Clock


class AbstractDirect(AbstractMethod):
    """One network and one loss; `new_network` and `loss` complete it."""

    learning_rate: eqx.AbstractVar[float]
    momentum: eqx.AbstractVar[float]
    schedule: eqx.AbstractVar[Schedule]
    averaging: eqx.AbstractVar[float]
    whiten: eqx.AbstractVar[bool]
    particles: eqx.AbstractVar[int]

    @abc.abstractmethod
    def new_network(self, target: AbstractTarget, key: PRNGKeyArray) -> AbstractNetwork:
        """The sampler network before training."""

    @abc.abstractmethod
    def loss(
        self, network: AbstractNetwork, view: AbstractTarget, key: PRNGKeyArray
    ) -> Float[Array, ""]:
        """What a step differentiates in the weights of the network.

        Args:
            network: the sampler.
            view: the target in the sampler's coordinates.
            key: for the latents, and the minibatches of a stochastic target.
        """

    @property
    def evaluations(self) -> int:
        return self.batch_size

    def stages(self) -> tuple[AbstractMethod, ...]:
        return (self,)

    @property
    def _adam(self) -> Adam:
        return Adam(self.learning_rate, b1=self.momentum)

    def init(self, key, target, steps, previous=None) -> DirectState:
        look_key, network_key = jax.random.split(key)
        seen = coordinates(
            look_key, target, particles=self.particles, whiten=self.whiten
        )
        network = self.new_network(target, network_key)
        optimiser = self._adam.init(network)
        return DirectState(network, network, optimiser, seen, Clock.start(steps))

    def step(self, key, target, state):
        view = state.look.view(target)
        loss, gradient = eqx.filter_value_and_grad(self.loss)(state.network, view, key)
        network, optimiser = self._adam.update(
            gradient, state.optimiser, state.network, pace(self.schedule, state.clock)
        )
        averaged = average(state.averaged, network, state.clock, self.averaging)
        new = DirectState(network, averaged, optimiser, state.look, state.clock.tick())
        return new, {"loss": loss}

    def sampler(self, target, state) -> Sampler:
        zero = jnp.zeros((), jnp.result_type(float))
        return Sampler(state.averaged, state.look.whitening, zero, target.structure)


class AbstractPairwise(AbstractDirect):
    """A direct method whose loss compares the draws of a batch with one another."""

    width: eqx.AbstractVar[AutoInt]
    depth: eqx.AbstractVar[int]
    shape: eqx.AbstractVar[Shape]
    latent: eqx.AbstractVar[AutoInt]
    activation: eqx.AbstractVar[str]

    def __check_init__(self):
        if self.batch_size is not None and self.batch_size < 2:
            raise UsageError(
                "This method compares draws with one another; batch_size must be at "
                f"least 2, not {self.batch_size}."
            )

    def resolve(self, target: AbstractTarget, platform: str):
        refuse_smoothed(self, target)
        refuse_images(self, self.shape)
        fast = platform != "cpu"
        return fill_in(
            self,
            {
                "steps": 15_000 if fast else 4_000,
                "batch_size": 2048 if fast else 512,
                "width": 256 if fast else 64,
                "latent": target.dim,
            },
        )

    def new_network(self, target, key):
        return new_map(
            self.shape,
            self.latent,
            target.dim,
            self.width,
            self.depth,
            self.activation,
            key=key,
        )


def latents(key: PRNGKeyArray, n: int, size: int) -> Float[Array, "n size"]:
    """What `n` draws of a network with `size` inputs start from."""
    return jax.random.normal(key, (n, size), NETWORK_DTYPE)


def points(network: AbstractNetwork, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]:
    """`n` draws of the network, in full precision."""
    return widen(jax.vmap(network)(latents(key, n, network.in_size)))


def scores_at(
    view: AbstractTarget, x: Float[Array, "n d"], key: PRNGKeyArray
) -> Float[Array, "n d"]:
    """The target's score at every point, each from a minibatch of its own.

    So the scores of two different points are independent given the points, and what is
    linear in each of them is unbiased.
    """
    if not view.is_stochastic:
        return jax.vmap(lambda x: view.score(x))(x)
    keys = jax.random.split(key, x.shape[0])
    return jax.vmap(lambda x, key: view.score(x, key=key))(x, keys)


def refuse_smoothed(method: AbstractMethod, target: AbstractTarget) -> None:
    """For methods that have no noise: a noise-conditional target is not for them."""
    if target.is_noise_conditional:
        raise UsageError(
            f"{type(method).__name__} has no noise, and the target is known only with "
            "noise added; use the method DFT, KL or Fisher."
        )


def refuse_images(method: AbstractMethod, shape: Shape) -> None:
    """For methods that do not train networks that look at whole batches."""
    if shape == "image":
        raise UsageError(
            f"{type(method).__name__} does not train networks of shape='image'; use "
            "the method DFT or KL."
        )
