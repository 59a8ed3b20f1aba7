"""Log densities and scores of draws, and how they move under an exact chain."""

import dataclasses

import blackjax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy import stats

from pushforward.mcmc.mala import mala
from pushforward.mcmc.spread import spread
from pushforward.targets.base import AbstractTarget, MinibatchTarget

# Draws are evaluated in blocks of this size, so that their number compiles nothing.
_BLOCK = 2048

# The moves of `stir`: logarithms of step sizes, from one that suits the whole target to
# one that suits a part some thirty times narrower, and back again, so that the moves
# together are reversible. Small steps are taken more often: a walk of few of them at
# a time would need hundreds of moves to enter the neck of a funnel, or to leave it.
_LOG_SIZES = np.array([0.0, -0.8, -1.6, -2.4, -3.2, -3.2, -2.4, -1.6, -0.8, 0.0])
_JITTER = 0.4
_LEAPFROGS = np.minimum(48, np.round(4 * np.exp(-_LOG_SIZES))).astype(np.int32)
MOVES = len(_LOG_SIZES)
STIR_EVALUATIONS = int(np.sum(_LEAPFROGS + 1))

# Terms of a sum over data that one evaluation may hold at once.
_TERMS = 2**22


def log_densities(
    target: AbstractTarget, draws: Float[np.ndarray, "n d"]
) -> Float[np.ndarray, " n"]:
    """The un-normalised log density at each draw."""
    return _in_blocks(_log_density_block, target, draws)


def scores(
    target: AbstractTarget, draws: Float[np.ndarray, "n d"]
) -> Float[np.ndarray, "n d"]:
    """The score at each draw, over all data where there are data."""
    return _in_blocks(_score_block, target, draws)


@dataclasses.dataclass(frozen=True)
class Drift:
    """How a quantity moved from draws to the same draws after some steps of a chain.

    Attributes:
        mean: The mean change.
        error: Its standard error.
        p_value: How often a chain that starts from its target would move as much.
    """

    mean: float
    error: float
    p_value: float


def drift(before: Float[np.ndarray, " n"], after: Float[np.ndarray, " n"]) -> Drift:
    """The mean change `after - before`, and whether it is zero.

    A reversible chain that starts from its target makes `(x_0, x_k)` exchangeable, so
    the changes of any function have a symmetric law around zero, and under that law
    `mean / error` is close to standard normal whatever the tails.
    """
    change = after - before
    mean = float(np.mean(change))
    error = float(np.sqrt(np.mean(np.square(change)) / len(change)))
    if error == 0:
        return Drift(mean, error, 1.0)
    return Drift(mean, error, float(2 * stats.norm.sf(abs(mean) / error)))


def after_mala(
    key: PRNGKeyArray,
    target: AbstractTarget,
    draws: Float[np.ndarray, "n d"],
    steps: int,
) -> Float[np.ndarray, "n d"]:
    """The draws after `steps` steps of MALA."""
    # Short of a whole number of blocks, some draws are moved twice and the second
    # copies are dropped.
    rows = np.arange(-(-len(draws) // _BLOCK) * _BLOCK) % len(draws)
    start = jnp.asarray(draws[rows], float)
    moved = np.asarray(mala(key, target, start, steps).positions, np.float64)
    return moved[: len(draws)]


@eqx.filter_jit
def stir(
    key: PRNGKeyArray,
    target: AbstractTarget,
    positions: Float[Array, "n d"],
) -> Float[Array, "n d"]:
    """10 HMC moves whose step sizes span almost two orders of magnitude.

    Stronger than MALA with one step size where the scale of the target differs from
    place to place: some of the moves fit the neck of a funnel, some its mouth. A move
    of small steps makes more of them, so that it leads about as far. Proposals are
    preconditioned by the covariance of the points.
    """
    n, dim = positions.shape
    _, covariance = spread(positions)
    largest = 0.8 * dim**-0.25
    kernel = blackjax.hmc.build_kernel()

    def one_move(key, x, size, leapfrogs):
        state = blackjax.hmc.init(x, target.log_density)
        moved, _ = kernel(key, state, target.log_density, size, covariance, leapfrogs)
        return moved.position

    def sweep(x, settings):
        i, log_size, leapfrogs = settings
        size_key, move_key = jax.random.split(jax.random.fold_in(key, i))
        jitter = jax.random.uniform(size_key, (n,), minval=-_JITTER, maxval=_JITTER)
        sizes = (largest * jnp.exp(log_size + jitter)).astype(x.dtype)
        keys = jax.random.split(move_key, n)
        move = jax.vmap(one_move, in_axes=(0, 0, 0, None))
        return move(keys, x, sizes, leapfrogs), None

    settings = (
        jnp.arange(MOVES),
        jnp.asarray(_LOG_SIZES, float),
        jnp.asarray(_LEAPFROGS),
    )
    return jax.lax.scan(sweep, positions, settings)[0]


def terms(target: AbstractTarget) -> int:
    """How many terms one evaluation of the target sums: the data, where it has any."""
    return target.size if isinstance(target, MinibatchTarget) else 1


@eqx.filter_jit
def _log_density_block(target, block):
    return _map(target, target.log_density, block)


@eqx.filter_jit
def _score_block(target, block):
    return _map(target, target.score, block)


def _map(target, function, block):
    batch = max(1, _TERMS // terms(target))
    if batch >= _BLOCK:
        return jax.vmap(function)(block)
    return jax.lax.map(function, block, batch_size=batch)


def _in_blocks(function, target, draws):
    parts = []
    for start in range(0, len(draws), _BLOCK):
        part = draws[start : start + _BLOCK]
        rows = np.arange(_BLOCK) % len(part)
        values = function(target, jnp.asarray(part[rows], float))
        parts.append(np.asarray(values, np.float64)[: len(part)])
    return np.concatenate(parts)
