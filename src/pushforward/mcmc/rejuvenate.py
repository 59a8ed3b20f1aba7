"""HMC moves of many sizes, which undo what resampling left to chance."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward import _programs
from pushforward.mcmc.moments import mean_and_covariance
from pushforward.mcmc.result import MCMCResult
from pushforward.targets.base import AbstractTarget

# Logarithms of step sizes, from one that suits the whole target to one that suits a
# part some thirty times narrower, and back again, so that the moves together are
# reversible. Small steps are taken more often: a walk of few of them at a time would
# need hundreds of moves to enter the neck of a funnel, or to leave it.
_LOG_SIZES = np.array([0.0, -0.8, -1.6, -2.4, -3.2, -3.2, -2.4, -1.6, -0.8, 0.0])
_JITTER = 0.4
_LEAPFROGS = np.minimum(48, np.round(4 * np.exp(-_LOG_SIZES))).astype(np.int32)

# Moves of one call, and evaluations that they cost each point.
NUM_MOVES = len(_LOG_SIZES)
NUM_EVALUATIONS = int(np.sum(_LEAPFROGS + 1))


@_programs.compiled
def rejuvenate(
    key: PRNGKeyArray,
    target: AbstractTarget,
    positions: Float[Array, "n d"],
    *,
    covariance: Float[Array, "d d"] | None = None,
) -> MCMCResult:
    """10 HMC moves whose step sizes span almost two orders of magnitude.

    Stronger than MALA with one step size where the scale of the target differs from
    place to place: some of the moves fit the neck of a funnel, some its mouth. A move
    of small steps makes more of them, so that it leads about as far.

    Args:
        key: Random key.
        target: A target with a log density.
        positions: The points to move.
        covariance: Preconditions the proposals. By default that of the points; only
            with a fixed one are the moves together a reversible kernel.
    """
    n, dim = positions.shape
    if covariance is None:
        _, covariance = mean_and_covariance(positions)
    largest = 0.8 * dim**-0.25
    kernel = blackjax.hmc.build_kernel()

    def one_move(key, x, size, leapfrogs):
        state = blackjax.hmc.init(x, target.log_density)
        moved, info = kernel(
            key, state, target.log_density, size, covariance, leapfrogs
        )
        return moved.position, info.acceptance_rate

    def sweep(x, settings):
        i, log_size, leapfrogs = settings
        size_key, move_key = jax.random.split(jax.random.fold_in(key, i))
        jitter = jax.random.uniform(size_key, (n,), minval=-_JITTER, maxval=_JITTER)
        sizes = (largest * jnp.exp(log_size + jitter)).astype(x.dtype)
        keys = jax.random.split(move_key, n)
        move = jax.vmap(one_move, in_axes=(0, 0, 0, None))
        x, rates = move(keys, x, sizes, leapfrogs)
        return x, jnp.mean(jnp.where(jnp.isnan(rates), 0.0, rates))

    settings = (
        jnp.arange(NUM_MOVES),
        jnp.asarray(_LOG_SIZES, float),
        jnp.asarray(_LEAPFROGS),
    )
    moved, rates = jax.lax.scan(sweep, positions, settings)
    return MCMCResult(moved, n * NUM_EVALUATIONS, jnp.mean(rates))
