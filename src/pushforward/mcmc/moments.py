"""Mean and covariance of points, which precondition the moves."""

import jax.numpy as jnp
from jaxtyping import Array, Float

# The variance in a coordinate in which all points have the same value.
_MIN_VARIANCE = 1e-30


def mean_and_covariance(
    points: Float[Array, "n d"],
) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """Mean and covariance of points; the covariance is always positive definite.

    Each variance grows by a fraction of itself, because coordinates may have units of
    very different sizes.
    """
    mean = jnp.mean(points, axis=0)
    centred = points - mean[None]
    covariance = centred.T @ centred / points.shape[0]
    variances = jnp.diagonal(covariance)
    return mean, covariance + jnp.diag(1e-6 * variances + _MIN_VARIANCE)
