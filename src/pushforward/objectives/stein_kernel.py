"""The Stein kernel with the inverse multiquadric base: of a pair, and of two blocks."""

import functools

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

# Up to this many dimensions |x - y|^2 is summed from differences. Beyond it the
# expansion |x|^2 - 2 x.y + |y|^2 is several times faster, and its cancellation does
# no harm: where the space has many dimensions, hardly any two draws are so close
# together, measured against their distance from the mean, that it would show.
_MAX_DIRECT_DIM = 4

_dot = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)


def stein_kernel(
    x: Float[Array, " d"],
    y: Float[Array, " d"],
    score_x: Float[Array, " d"],
    score_y: Float[Array, " d"],
    *,
    c: float = 1.0,
    beta: float = -0.5,
) -> Float[Array, ""]:
    r"""The Stein kernel of one pair of points, with the inverse multiquadric base.

    With `k(x, y) = b^beta`, `b = c^2 + |x - y|^2`, the Stein operator applied to both
    arguments of `k` gives

        k0(x, y) = s_x.s_y k + s_x.grad_y k + s_y.grad_x k + div_x grad_y k
                 = s_x.s_y b^beta - 2 beta ((s_x - s_y).(x - y) + d) b^(beta - 1)
                   - 4 beta (beta - 1) |x - y|^2 b^(beta - 2),

    whose mean over independent `x, y ~ q` is zero when `s` is the score of `q`.

    Args:
        x: a point.
        y: another point.
        score_x: the target's score at `x`.
        score_y: the target's score at `y`.
        c: the length scale of the base kernel.
        beta: the exponent of the base kernel, between -1 and 0.
    """
    difference = x - y
    squared = _dot(difference, difference)
    cross = _dot(score_x - score_y, difference)
    return _assemble(squared, cross, _dot(score_x, score_y), x.shape[0], c, beta)


def squared_distances(
    x: Float[Array, "n d"], y: Float[Array, "m d"]
) -> Float[Array, "n m"]:
    """All `|x_i - y_j|^2`; in many dimensions by one matrix product.

    Args:
        x: points, roughly centred on zero.
        y: other points, roughly centred on zero.
    """
    if x.shape[1] <= _MAX_DIRECT_DIM:
        return sum(
            (jnp.square(a[:, None] - b[None]) for a, b in zip(x.T, y.T, strict=True)),
            start=jnp.zeros((x.shape[0], y.shape[0]), x.dtype),
        )
    expanded = _outer_sum(jnp.sum(x * x, axis=1), jnp.sum(y * y, axis=1))
    return jnp.maximum(expanded - 2 * _dot(x, y.T), 0)


def median_squared_distance(x: Float[Array, "n d"]) -> Float[Array, ""]:
    """The median of `|x_i - x_j|^2` over all pairs: the median heuristic of kernels.

    Args:
        x: points, roughly centred on zero.
    """
    return jnp.median(squared_distances(x, x)[np.triu_indices(x.shape[0], 1)])


def stein_kernel_matrix(
    x: Float[Array, "n d"],
    y: Float[Array, "m d"],
    score_x: Float[Array, "n d"],
    score_y: Float[Array, "m d"],
    *,
    c: float = 1.0,
    beta: float = -0.5,
) -> Float[Array, "n m"]:
    """`k0(x_i, y_j)` of every pair, for points roughly centred on zero.

    Args:
        x: points.
        y: other points.
        score_x: the target's score at each `x_i`.
        score_y: the target's score at each `y_j`.
        c: the length scale of the base kernel.
        beta: the exponent of the base kernel, between -1 and 0.
    """
    if x.shape[1] <= _MAX_DIRECT_DIM:
        cross = products = jnp.zeros((x.shape[0], y.shape[0]), x.dtype)
        for a, b, sa, sb in zip(x.T, y.T, score_x.T, score_y.T, strict=True):
            difference = a[:, None] - b[None]
            cross += (sa[:, None] - sb[None]) * difference
            products += sa[:, None] * sb[None]
    else:
        # (s_x - s_y).(x - y) = s_x.x + s_y.y - (s_x, x).(y, s_y)
        cross = _outer_sum(jnp.sum(score_x * x, axis=1), jnp.sum(score_y * y, axis=1))
        cross -= _dot(
            jnp.concatenate([score_x, x], axis=1),
            jnp.concatenate([y, score_y], axis=1).T,
        )
        products = _dot(score_x, score_y.T)
    return _assemble(squared_distances(x, y), cross, products, x.shape[1], c, beta)


def _assemble(squared, cross, products, dim, c, beta):
    """`k0` from |x - y|^2, (s_x - s_y).(x - y) and s_x.s_y."""
    b = c**2 + squared
    # The usual exponent costs one reciprocal square root, a general one ten times that.
    power = lax.rsqrt(b) if beta == -0.5 else b**beta
    inverse = 1 / b
    inner = -2 * beta * (cross + dim) - 4 * beta * (beta - 1) * squared * inverse
    return power * (products + inverse * inner)


def _outer_sum(a, b):
    return a[:, None] + b[None]
