"""Rational-quadratic splines: against flowjax, and their inverse."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flowjax.bijections import RationalQuadraticSpline

from pushforward.networks.spline import SplineMap

RNG = np.random.default_rng(0)
POINTS = np.linspace(-7, 7, 201).astype(np.float32)


def bent(dim=1, bins=8, size=1.5):
    spline = SplineMap(dim, bins, 4.0)
    return jax.tree.map(
        lambda a: a + jnp.asarray(size * RNG.normal(size=a.shape), a.dtype), spline
    )


def test_it_starts_at_the_identity():
    y, log_det = jax.vmap(SplineMap(1, 8, 4.0).with_log_det)(POINTS[:, None])
    np.testing.assert_allclose(y[:, 0], POINTS, atol=2e-6)
    np.testing.assert_allclose(log_det, 0, atol=5e-6)


def test_it_is_that_of_flowjax():
    theirs = RationalQuadraticSpline(knots=8, interval=4.0)
    spline = bent()
    knots = jax.tree.map(lambda a: a[0], spline._knots())
    theirs = eqx.tree_at(
        lambda s: (s.x_pos, s.y_pos, s.derivatives),
        theirs,
        (knots.x, knots.y, knots.slope),
    )
    with jax.numpy_dtype_promotion("standard"):
        y, log_slope = jax.vmap(theirs.transform_and_log_det)(POINTS)
        x, back = jax.vmap(theirs.inverse_and_log_det)(POINTS)
    ours, our_slope = jax.vmap(knots.bend)(POINTS)
    np.testing.assert_allclose(ours, y, atol=1e-5)
    np.testing.assert_allclose(our_slope, log_slope, atol=1e-4)
    ours, our_slope = jax.vmap(knots.unbend)(POINTS)
    np.testing.assert_allclose(ours, x, atol=1e-4)
    np.testing.assert_allclose(our_slope, -np.asarray(back), atol=1e-3)


@pytest.mark.parametrize("size", [0.5, 2.0])
def test_the_inverse(size):
    spline = bent(3, 16, size)
    x = RNG.normal(0, 3, size=(500, 3)).astype(np.float32)
    y, log_det = jax.vmap(spline.with_log_det)(x)
    back, again = jax.vmap(spline.inverse_with_log_det)(y)
    # Where the map is flat, its image says little of the point.
    slopes = np.diagonal(jax.vmap(jax.jacfwd(spline))(x), axis1=1, axis2=2)
    assert (np.abs(back - x) * np.minimum(slopes, 1)).max() < 1e-5
    np.testing.assert_allclose(jax.vmap(spline)(back), y, atol=1e-5)
    if size < 1:
        np.testing.assert_allclose(again, log_det, atol=1e-3)


def test_the_log_determinant_is_that_of_the_jacobian():
    spline = bent(3, 8, 1.0)
    x = RNG.normal(0, 2, size=(50, 3)).astype(np.float32)
    _, log_det = jax.vmap(spline.with_log_det)(x)
    expected = np.linalg.slogdet(jax.vmap(jax.jacfwd(spline))(x))[1]
    np.testing.assert_allclose(log_det, expected, atol=1e-4)


def test_the_score_that_lands():
    spline = bent(2, 8, 0.5)
    x = RNG.normal(0, 2, size=(40, 2)).astype(np.float32)

    def density(y):
        z, log_det = spline.inverse_with_log_det(y)
        return -0.5 * jnp.sum(z**2) - log_det

    def pushed(x):
        return spline.push(x, -0.5 * jnp.sum(x**2), -x)

    y, log_p, score = jax.vmap(pushed)(x)
    np.testing.assert_allclose(log_p, jax.vmap(density)(y), atol=1e-3)
    np.testing.assert_allclose(score, jax.vmap(jax.grad(density))(y), atol=2e-2)


def test_gradients_are_finite_at_and_beyond_the_knots():
    spline = bent()
    knots = jax.tree.map(lambda a: a[0], spline._knots())
    for x in [*np.asarray(knots.x), -100.0, 100.0]:
        at = jnp.asarray([x], jnp.float32)
        for function in (spline.with_log_det, spline.inverse_with_log_det):
            jacobian = jax.jacrev(function)(at)
            assert all(np.isfinite(part).all() for part in jacobian)
