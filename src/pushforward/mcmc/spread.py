"""How far points are spread, in which moves are measured."""

import jax.numpy as jnp
from jaxtyping import Array, Float

# The variance in a coordinate in which all points have the same value.
_FLOOR = 1e-30


def spread(
    points: Float[Array, "n d"],
) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """Mean and covariance of points, the covariance positive for certain.

    What is added to a variance is a share of itself: coordinates may have units of
    very different sizes.
    """
    mean = jnp.mean(points, axis=0)
    centred = points - mean[None]
    covariance = centred.T @ centred / points.shape[0]
    variances = jnp.diagonal(covariance)
    return mean, covariance + jnp.diag(1e-6 * variances + _FLOOR)
