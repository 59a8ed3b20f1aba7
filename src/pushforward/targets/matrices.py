"""Matrices and vectors from free numbers: the mathematics of their constraints.

A correlation matrix is `R = L L'` with rows of length 1 in the lower triangle `L`.
These rows come from partial correlations `z = tanh(u)`,

    L_ij = z_ij sqrt(prod_{k<j} (1 - z_ik^2)),

and a covariance matrix from a triangle with the exponential of free numbers on its
diagonal. Densities are of the numbers below the diagonal (and on it, for covariances):
the others follow from them. Functions take any leading axes.
"""

import numpy as np
from jax import numpy as jnp
from jaxtyping import Array, Float

# What keeps square roots and quotients finite where rounding has lost all.
_TINY = 1e-30


def rows_below(size: int) -> int:
    """The side of a square with so many numbers below its diagonal."""
    return round((1 + (1 + 8 * size) ** 0.5) / 2)


def _log_sech_squared(u: Float[Array, "..."]) -> Float[Array, "..."]:
    """`log(1 - tanh(u)^2)`, without its cancellation."""
    a = jnp.abs(u)
    return 2 * (np.log(2.0).astype(u.dtype) - a - jnp.log1p(jnp.exp(-2 * a)))


def _triangle(numbers: Array, n: int, *, diagonal: bool) -> Array:
    """The square with these numbers in its lower triangle, row by row."""
    rows, columns = np.tril_indices(n, 0 if diagonal else -1)
    square = jnp.zeros((*numbers.shape[:-1], n, n), numbers.dtype)
    return square.at[..., rows, columns].set(numbers)


def _below(square: Array, *, diagonal: bool) -> Array:
    """The numbers of the lower triangle, row by row."""
    rows, columns = np.tril_indices(square.shape[-1], 0 if diagonal else -1)
    return square[..., rows, columns]


def _diagonal(square: Array) -> Array:
    return jnp.diagonal(square, axis1=-2, axis2=-1)


def _transposed(square: Array) -> Array:
    return jnp.swapaxes(square, -1, -2)


def to_cholesky_correlation(u: Float[Array, "... k"]) -> Float[Array, "... n n"]:
    """A triangle whose rows have length 1."""
    n = rows_below(u.shape[-1])
    free = _triangle(u, n, diagonal=False)
    logs = 0.5 * _log_sech_squared(free)
    # What is left of a row's length before each of its numbers.
    left = jnp.exp(jnp.cumsum(logs, axis=-1) - logs)
    return jnp.tanh(free) * left + left * jnp.eye(n, dtype=u.dtype)


def from_cholesky_correlation(x: Float[Array, "... n n"]) -> Float[Array, "... k"]:
    """Inverse of `to_cholesky_correlation`: no sum in it cancels."""
    squares = x**2
    # The squared length of a row from each number on; then after it.
    rest = jnp.flip(jnp.cumsum(jnp.flip(squares, -1), axis=-1), -1)
    after = jnp.concatenate([rest[..., 1:], jnp.zeros_like(rest[..., :1])], axis=-1)
    below = _below(x, diagonal=False)
    length = jnp.sqrt(jnp.maximum(_below(after, diagonal=False), _TINY))
    return jnp.arcsinh(below / length)


def log_det_cholesky_correlation(u: Float[Array, "... k"]) -> Float[Array, "... k"]:
    """The log-determinant, a part for each free number."""
    rows, columns = np.tril_indices(rows_below(u.shape[-1]), -1)
    # A number scales itself, and as much of its row as follows it below the diagonal.
    power = 1 + 0.5 * (rows - 1 - columns)
    return _log_sech_squared(u) * jnp.broadcast_to(power.astype(u.dtype), u.shape)


def to_correlation(u: Float[Array, "... k"]) -> Float[Array, "... n n"]:
    """A correlation matrix."""
    factor = to_cholesky_correlation(u)
    product = factor @ _transposed(factor)
    # Exactly 1, and exactly symmetric.
    lower = jnp.tril(product, -1)
    return lower + _transposed(lower) + jnp.eye(product.shape[-1], dtype=u.dtype)


def from_correlation(x: Float[Array, "... n n"]) -> Float[Array, "... k"]:
    """Inverse of `to_correlation`."""
    return from_cholesky_correlation(jnp.linalg.cholesky(x))


def log_det_correlation(u: Float[Array, "... k"]) -> Float[Array, "... k"]:
    """As of the triangle, and `sum_j (n - 1 - j) log L_jj` for its product."""
    n = rows_below(u.shape[-1])
    rows, columns = np.tril_indices(n, -1)
    # log L_ii is half the sum of the logs of its row.
    power = 1 + 0.5 * (rows - 1 - columns) + 0.5 * (n - 1 - rows)
    return _log_sech_squared(u) * jnp.broadcast_to(power.astype(u.dtype), u.shape)


def rows_with_diagonal(size: int) -> int:
    """The side of a square with so many numbers on and below its diagonal."""
    return rows_below(size) - 1


def to_cholesky_covariance(u: Float[Array, "... k"]) -> Float[Array, "... n n"]:
    """A triangle with a positive diagonal."""
    square = _triangle(u, rows_with_diagonal(u.shape[-1]), diagonal=True)
    eye = jnp.eye(square.shape[-1], dtype=bool)
    return jnp.where(jnp.broadcast_to(eye, square.shape), jnp.exp(square), square)


def from_cholesky_covariance(x: Float[Array, "... n n"]) -> Float[Array, "... k"]:
    """Inverse of `to_cholesky_covariance`."""
    eye = jnp.broadcast_to(jnp.eye(x.shape[-1], dtype=bool), x.shape)
    logs = jnp.where(eye, jnp.log(jnp.where(eye, x, 1.0)), x)
    return _below(logs, diagonal=True)


def log_det_cholesky_covariance(u: Float[Array, "... k"]) -> Float[Array, "... n"]:
    """The log-determinant, a part for each number on the diagonal."""
    return _diagonal(_triangle(u, rows_with_diagonal(u.shape[-1]), diagonal=True))


def to_covariance(u: Float[Array, "... k"]) -> Float[Array, "... n n"]:
    """A covariance matrix."""
    factor = to_cholesky_covariance(u)
    product = factor @ _transposed(factor)
    lower = jnp.tril(product, -1)
    return jnp.tril(product) + _transposed(lower)


def from_covariance(x: Float[Array, "... n n"]) -> Float[Array, "... k"]:
    """Inverse of `to_covariance`."""
    return from_cholesky_covariance(jnp.linalg.cholesky(x))


def log_det_covariance(u: Float[Array, "... k"]) -> Float[Array, "... n"]:
    """As of the triangle, and `n log 2 + sum_j (n - j) log L_jj` for its product."""
    logs = log_det_cholesky_covariance(u)
    n = logs.shape[-1]
    power = 1 + (n - np.arange(n)).astype(u.dtype)
    return np.log(2.0).astype(u.dtype) + jnp.broadcast_to(power, logs.shape) * logs


def is_triangle(x: Float[Array, "... n n"]) -> Array:
    """Whether it is a lower triangle with a positive diagonal."""
    empty = jnp.all(jnp.triu(x, 1) == 0, axis=(-2, -1))
    return empty & jnp.all(_diagonal(x) > 0, axis=-1)


# Rounding of many numbers adds up; what is further off was not meant as such.
_CLOSE = 1e-3


def is_cholesky_correlation(x: Float[Array, "... n n"]) -> Array:
    """Whether it is a triangle, and its rows have length 1."""
    lengths = jnp.sum(x**2, axis=-1)
    return is_triangle(x) & jnp.all(jnp.abs(lengths - 1) < _CLOSE, axis=-1)


def is_covariance(x: Float[Array, "... n n"]) -> Array:
    """Whether it is symmetric and positive definite."""
    scale = jnp.sqrt(jnp.abs(_diagonal(x)))
    size = _CLOSE * scale[..., :, None] * scale[..., None, :]
    alike = jnp.all(jnp.abs(x - _transposed(x)) <= size, axis=(-2, -1))
    # What has no such factor has one that is not a number.
    factor = jnp.linalg.cholesky(x)
    return alike & jnp.all(jnp.isfinite(factor), axis=(-2, -1))


def is_correlation(x: Float[Array, "... n n"]) -> Array:
    """Whether it is a covariance matrix with ones on its diagonal."""
    ones = jnp.all(jnp.abs(_diagonal(x) - 1) < _CLOSE, axis=-1)
    return is_covariance(x) & ones


def _zero_sum_basis(n: int, dtype: np.dtype) -> Float[np.ndarray, "k n"]:
    """Orthonormal rows that are orthogonal to the vector of ones (Helmert's)."""
    k = np.arange(1, n)[:, None]
    rows = np.where(np.arange(n)[None] < k, 1.0, 0.0) - k * np.eye(n, dtype=float)[1:]
    return (rows / np.sqrt(k * (k + 1.0))).astype(dtype)


def to_zero_sum(u: Float[Array, "... k"]) -> Float[Array, "... n"]:
    """A vector whose sum is 0; lengths and angles stay as they are."""
    return u @ _zero_sum_basis(u.shape[-1] + 1, u.dtype)


def from_zero_sum(x: Float[Array, "... n"]) -> Float[Array, "... k"]:
    """Inverse of `to_zero_sum`."""
    return x @ _zero_sum_basis(x.shape[-1], x.dtype).T


def is_zero_sum(x: Float[Array, "... n"]) -> Array:
    """Whether the sum is 0, up to rounding."""
    size = jnp.sum(jnp.abs(x), axis=-1)
    return jnp.abs(jnp.sum(x, axis=-1)) <= _CLOSE * jnp.maximum(size, 1.0)


def _length(u: Float[Array, "... k"]) -> Float[Array, "... 1"]:
    """The length of a vector, with a gradient at 0 too."""
    return jnp.sqrt(jnp.sum(u**2, axis=-1, keepdims=True) + _TINY)


def _log_sech(r: Array) -> Array:
    return np.log(2.0).astype(r.dtype) - r - jnp.log1p(jnp.exp(-2 * r))


def to_unit_vector(u: Float[Array, "... k"]) -> Float[Array, "... n"]:
    """A point of the sphere: `u / |u|` is its direction seen from the last axis.

    The angle to that axis is `2 arctan(sinh |u|)`, whose tails are exponential. The
    opposite end of the axis alone is left out.
    """
    r = _length(u)
    sech = jnp.exp(_log_sech(r))
    return jnp.concatenate([2 * jnp.tanh(r) * sech * (u / r), 2 * sech**2 - 1], -1)


def from_unit_vector(x: Float[Array, "... n"]) -> Float[Array, "... k"]:
    """Inverse of `to_unit_vector`."""
    side, last = x[..., :-1], x[..., -1:]
    sine = _length(side)
    # The tangent of half the angle, by whichever quotient does not cancel.
    near = sine / jnp.where(last >= 0, 1 + last, 1.0)
    far = (1 - jnp.where(last < 0, last, 0.0)) / sine
    return side / sine * jnp.arcsinh(jnp.where(last >= 0, near, far))


def log_det_unit_vector(u: Float[Array, "... k"]) -> Float[Array, "... 1"]:
    """The logarithm of what an element of volume becomes on the sphere."""
    r = _length(u)
    # sine / r, which is 2 at 0.
    ratio = jnp.where(r > 1e-3, jnp.tanh(r) / r, 1 - r**2 / 3)
    log_two, k = np.log(2.0).astype(u.dtype), u.shape[-1]
    return k * (log_two + _log_sech(r)) + (k - 1) * jnp.log(ratio)


def is_unit_vector(x: Float[Array, "... n"]) -> Array:
    """Whether the length is 1, up to rounding."""
    return jnp.abs(jnp.sum(x**2, axis=-1) - 1) < _CLOSE
