"""Wasserstein distances: closed forms, and one against the other."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pushforward.diagnostics import sliced_w2, w2


def _normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def test_a_sample_is_at_distance_zero_from_itself_in_any_order():
    x = _normal(0, 100, 2)
    shuffled = x[np.random.default_rng(0).permutation(100)]
    np.testing.assert_allclose(sliced_w2(jax.random.key(2), x, shuffled), 0, atol=1e-6)
    assert w2(x, shuffled) == 0


def test_a_shift_is_its_own_distance():
    x = _normal(0, 100, 2)
    shift = jnp.asarray([1.5, -2.0])
    length = 2.5
    np.testing.assert_allclose(w2(x, x + shift[None]), length, rtol=1e-6)
    # With t = (cos, sin) of a uniform angle, (t.a)^2 has mean |a|^2 / 2 and standard
    # deviation |a|^2 / sqrt(8). The mean of 256 is four standard errors, 18 %, from it
    # at most, and the root half of that.
    sliced = sliced_w2(jax.random.key(1), x, x + shift[None])
    np.testing.assert_allclose(sliced, length / np.sqrt(2), rtol=0.09)


def test_both_agree_in_one_dimension():
    x, y = _normal(0, 100, 1), 1 + 2 * _normal(1, 100, 1)
    sliced = sliced_w2(jax.random.key(2), x, y, projections=3)
    np.testing.assert_allclose(sliced, w2(x, y), rtol=1e-5)


@pytest.mark.parametrize(("n", "m"), [(20, 30), (7, 1)])
def test_samples_of_unequal_size_are_compared_by_their_quantile_functions(n, m):
    x, y = _normal(0, n, 1), 1 + 2 * _normal(1, m, 1)
    # Each draw of one repeated as often as the other has draws: the same two laws.
    expected = w2(jnp.repeat(x, m, axis=0), jnp.repeat(y, n, axis=0))
    sliced = sliced_w2(jax.random.key(2), x, y, projections=3)
    np.testing.assert_allclose(sliced, expected, rtol=1e-5)


def test_sliced_is_the_root_mean_square_over_directions():
    key, x, y = jax.random.key(5), _normal(0, 100, 2), _normal(1, 100, 2)
    directions = np.asarray(jax.random.normal(key, (256, 2)), np.float64)
    directions = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    sorted_x, sorted_y = (np.sort(np.asarray(a) @ directions.T, axis=0) for a in (x, y))
    expected = np.sqrt(np.mean(np.square(sorted_x - sorted_y)))
    np.testing.assert_allclose(sliced_w2(key, x, y), expected, rtol=1e-5)


def test_a_far_origin_costs_no_digits():
    # Exact in 32 bits before and after the shift.
    x, y = (jnp.round(64 * _normal(seed, 100, 2)) / 64 for seed in (0, 1))
    near = sliced_w2(jax.random.key(2), x, y)
    far = sliced_w2(jax.random.key(2), x + 4096, y + 4096)
    np.testing.assert_allclose(far, near, rtol=1e-5)


def test_exact_distance_of_a_dilation():
    # Joining x to s x is optimal, being the gradient of a convex function (Brenier).
    x = _normal(0, 200, 2)
    expected = 0.5 * np.sqrt(np.mean(np.sum(np.square(x), axis=1)))
    np.testing.assert_allclose(w2(x, 1.5 * x), expected, rtol=1e-6)


def test_draws_that_are_not_finite_have_no_distance():
    x = _normal(0, 100, 2)
    broken = x.at[0, 0].set(jnp.nan)
    assert np.isnan(w2(x, broken))
    assert np.isnan(sliced_w2(jax.random.key(0), x, broken))


def test_precision_follows_the_draws():
    with jax.enable_x64(True):
        x = jnp.zeros((4, 2), jnp.float64)
        assert sliced_w2(jax.random.key(0), x, x).dtype == jnp.float64


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.ones((5, 2)), np.ones((6, 2)), "give equally many, or use sliced_w2"),
        (np.ones((4001, 2)), np.ones((4001, 2)), "would take too long; give at most"),
        (np.ones((5, 2)), np.ones((5, 3)), "two samples of the same space"),
        (np.ones(5), np.ones(5), r"x must be an \(n, d\) array"),
    ],
)
def test_exact_distance_refuses_with_one_sentence(x, y, message):
    # What users see: without the run-time checks of annotations that tests add.
    with pytest.raises(ValueError, match=message) as caught:
        inspect.unwrap(w2)(x, y)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("x", "y", "projections", "message"),
    [
        (np.ones((5, 2)), np.ones((5, 3)), 4, "two samples of the same space"),
        (np.ones((5, 2)), np.ones((0, 2)), 4, "y must be"),
        (np.ones((5, 2), int), np.ones((5, 2)), 4, "convert it to floating point"),
        (np.ones((5, 2)), np.ones((5, 2)), 0, "at least 1"),
    ],
)
def test_sliced_distance_refuses_with_one_sentence(x, y, projections, message):
    with pytest.raises(ValueError, match=message) as caught:
        inspect.unwrap(sliced_w2)(jax.random.key(0), x, y, projections=projections)
    assert "\n" not in str(caught.value)
