"""One HMC move for each of many particles, with step sizes of all orders."""

from typing import NamedTuple

import blackjax
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward.targets.base import AbstractTarget

LEAPFROGS = 3
# Logarithms of the smallest and the largest step size, in units of the scale.
_LOG_SIZES = -3.5, 0.3
_ACCEPTANCE = 0.7


class Refreshed(NamedTuple):
    """Particles after a move, and what to move them by next."""

    positions: Float[Array, "n d"]
    log_density: Float[Array, " n"]
    scale: Float[Array, ""]


def refresh(
    key: PRNGKeyArray,
    target: AbstractTarget,
    positions: Float[Array, "n d"],
    scale: Float[Array, ""],
) -> Refreshed:
    """Moves each particle by HMC, which leaves the target as it is.

    Each particle has a step size of its own, since densities such as funnels have no
    single right one; `scale` multiplies all of them, and follows the acceptance rate.
    It takes `LEAPFROGS + 1` evaluations of the target a particle.

    Args:
        key: Random key.
        target: A target with a log density, in coordinates in which it is about
            standard.
        positions: The particles.
        scale: What the last call returned; about 1 at the start.
    """
    n, dim = positions.shape
    size_key, move_key = jax.random.split(key)
    kernel = blackjax.hmc.build_kernel()
    metric = jnp.ones(dim, positions.dtype)
    sizes = jax.random.uniform(
        size_key, (n,), positions.dtype, _LOG_SIZES[0], _LOG_SIZES[1]
    )

    def move(key, x, size):
        state = blackjax.hmc.init(x, target.log_density)
        moved, info = kernel(key, state, target.log_density, size, metric, LEAPFROGS)
        return moved.position, moved.logdensity, info.acceptance_rate

    keys = jax.random.split(move_key, n)
    steps = scale * dim**-0.25 * jnp.exp(sizes)
    moved, log_density, rates = jax.vmap(move)(keys, positions, steps)
    accepted = jnp.mean(jnp.where(jnp.isnan(rates), 0.0, rates))
    scale = jnp.clip(scale * jnp.exp(0.2 * (accepted - _ACCEPTANCE)), 1e-3, 2.0)
    return Refreshed(moved, log_density, scale.astype(positions.dtype))
