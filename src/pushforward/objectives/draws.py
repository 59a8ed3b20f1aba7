"""Draws of a network in training, and the target's scores at them."""

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward._precision import NETWORK_DTYPE
from pushforward.errors import UsageError
from pushforward.networks import AbstractBatchNetwork, AbstractNetwork
from pushforward.targets.base import AbstractTarget


def latents(key: PRNGKeyArray, n: int, size: int) -> Float[Array, "{n} {size}"]:
    """The standard normal numbers that `n` draws start from."""
    return jax.random.normal(key, (n, size), NETWORK_DTYPE)


def points(
    network: AbstractNetwork, key: PRNGKeyArray, n: int
) -> Float[Array, "{n} d"]:
    """`n` draws of the network, one by one."""
    if isinstance(network, AbstractBatchNetwork):
        raise UsageError(
            "This objective draws its points one by one, and does not train networks "
            "that look at whole batches; use the method DFT or KL."
        )
    return jax.vmap(network)(latents(key, n, network.in_size))


def in_training(
    network: AbstractNetwork, z: Float[Array, "n l"]
) -> tuple[Float[Array, "n d"], AbstractBatchNetwork | None]:
    """Draws in training, and the network that has seen the batch, if it looks at it."""
    if isinstance(network, AbstractBatchNetwork):
        return network.train(z)
    return jax.vmap(network)(z), None


def scores_at(
    target: AbstractTarget, x: Float[Array, "n d"], key: PRNGKeyArray
) -> Float[Array, "n d"]:
    """The target's score at every point, each from a minibatch of its own.

    So the scores of two different points are independent given the points, and what is
    linear in each of them is unbiased.
    """
    keys = jax.random.split(key, x.shape[0])
    return jax.vmap(lambda x, key: target.score(x, key=key))(x, keys)
