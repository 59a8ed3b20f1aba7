"""Wasserstein distances of order two between two samples."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from pushforward.diagnostics.samples import require_two_samples

# The assignment costs O(n^3): seconds up to here, minutes soon after.
_MAX_ASSIGNMENT = 4000

# Projections sorted at a time, so that memory does not grow with their number.
_PROJECTION_BATCH = 16


def sliced_w2(
    key: PRNGKeyArray,
    x: Float[Array, "n d"],
    y: Float[Array, "m d"],
    *,
    projections: int = 256,
) -> Float[Array, ""]:
    """Sliced Wasserstein distance: the root mean square over random directions.

    For a direction `t`, uniform on the sphere, both samples are projected on `t`. In
    one dimension the optimal plan joins quantile to quantile,

        W2^2 = int_0^1 (F^-1(p) - G^-1(p))^2 dp,

    which for equally many draws is the mean squared difference of the sorted
    projections, and for unequally many a sum over the steps of both quantile
    functions, exact as well. The result is `sqrt(E_t W2^2)`. Two samples that differ
    by a shift `a` have the distance `|a| / sqrt(d)`, up to the sampling of `t`.

    Args:
        key: For the directions.
        x: Draws.
        y: Other draws, or a reference.
        projections: The number of random directions.

    Returns:
        The distance, in the units of the draws.

    Raises:
        ValueError: The arrays do not fit together.
    """
    require_two_samples("sliced_w2", x, y)
    if projections < 1:
        raise ValueError(f"sliced_w2: projections={projections} must be at least 1.")
    x = jnp.asarray(x)
    steps = quantile_steps(len(x), len(y))
    return _sliced_w2(key, x, jnp.asarray(y, x.dtype), steps, projections=projections)


def w2(x: Float[Array, "n d"], y: Float[Array, "n d"]) -> float:
    """Exact Wasserstein distance of two equally large samples.

    `W2^2 = min_pi (1/n) sum_i |x_i - y_pi(i)|^2` over all permutations, solved as a
    linear assignment on the host in 64-bit.

    Args:
        x: Draws.
        y: As many other draws.

    Returns:
        The distance, in the units of the draws.

    Raises:
        ValueError: The arrays do not fit together, or there are too many draws.
    """
    require_two_samples("w2", x, y)
    if len(x) != len(y):
        raise ValueError(
            f"w2: x has {len(x)} draws and y has {len(y)}; give equally many, or use "
            "sliced_w2, which takes any two samples."
        )
    if len(x) > _MAX_ASSIGNMENT:
        raise ValueError(
            f"w2: the exact distance of {len(x)} draws would take too long; give at "
            f"most {_MAX_ASSIGNMENT}, or use sliced_w2."
        )
    cost = cdist(np.asarray(x, np.float64), np.asarray(y, np.float64), "sqeuclidean")
    if not np.isfinite(cost).all():
        return float("nan")
    return float(np.sqrt(np.mean(cost[linear_sum_assignment(cost)])))


@functools.partial(jax.jit, static_argnames="projections")
def _sliced_w2(key, x, y, steps, *, projections):
    directions = jax.random.normal(key, (projections, x.shape[1]), x.dtype)
    directions /= jnp.linalg.norm(directions, axis=1, keepdims=True)
    # A distance does not depend on the origin, but the rounding of projections does.
    centre = jnp.mean(x, axis=0)[None]

    def squared_w2(direction):
        project = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)
        sorted_x = jnp.sort(project(x - centre, direction))
        sorted_y = jnp.sort(project(y - centre, direction))
        return squared_w2_sorted(sorted_x, sorted_y, steps)

    squares = lax.map(squared_w2, directions, batch_size=_PROJECTION_BATCH)
    return jnp.sqrt(jnp.mean(squares))


class QuantileSteps(NamedTuple):
    """Where the quantile functions of two samples are both constant.

    Attributes:
        width: The width of each step; their sum is 1.
        index_x: The index of each step into the first sample, sorted.
        index_y: Its index into the second.
    """

    width: Float[np.ndarray, " s"] | Float[Array, " s"]
    index_x: Int[np.ndarray, " s"] | Int[Array, " s"]
    index_y: Int[np.ndarray, " s"] | Int[Array, " s"]


def quantile_steps(n: int, m: int) -> QuantileSteps | None:
    """The steps of the quantile functions of `n` and of `m` draws.

    The steps end at the multiples of `1/n` and `1/m`; in units of `1/(n m)` they are
    whole numbers, so that no step is lost to rounding.

    Returns:
        The steps; None for equally many draws, where each draw is one.
    """
    if n == m:
        return None
    ends = np.union1d(np.arange(1, n + 1) * m, np.arange(1, m + 1) * n)
    starts = np.concatenate([[0], ends[:-1]])
    return QuantileSteps((ends - starts) / (n * m), starts // m, starts // n)


def squared_w2_sorted(
    x: Float[Array, "*p n"] | Float[np.ndarray, "*p n"],
    y: Float[Array, "*p m"] | Float[np.ndarray, "*p m"],
    steps: QuantileSteps | None,
) -> Any:
    """The squared Wasserstein distance of samples of numbers, sorted along the end.

    Args:
        x: Sorted numbers.
        y: Other sorted numbers.
        steps: What `quantile_steps` returns for their counts.

    Returns:
        The squared distances, in an array of the same library.
    """
    if steps is None:
        return ((x - y) ** 2).mean(axis=-1)
    gap = x[..., steps.index_x] - y[..., steps.index_y]
    return (steps.width.astype(gap.dtype) * gap**2).sum(axis=-1)
