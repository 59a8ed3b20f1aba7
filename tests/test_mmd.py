"""The maximum mean discrepancy against its definition and its own theory."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.distance import cdist, pdist

from pushforward.diagnostics import mmd


def _samples(seed, n, m, d):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), 0.2 + 1.1 * rng.normal(size=(m, d))


def _dense(x, y, bandwidth):
    def kernel(a, b):
        return (1 + cdist(a, b, "sqeuclidean") / bandwidth**2) ** -0.5

    n, m = len(x), len(y)
    within_x = (kernel(x, x).sum() - n) / (n * (n - 1))
    within_y = (kernel(y, y).sum() - m) / (m * (m - 1))
    return within_x + within_y - 2 * kernel(x, y).mean()


# Few dimensions go through differences, many through matrix products.
@pytest.mark.parametrize("d", [2, 9])
@pytest.mark.parametrize(("dtype", "atol"), [(np.float32, 1e-6), (np.float64, 1e-13)])
def test_blocks_give_the_definition(d, dtype, atol):
    x, y = _samples(d, 150, 90, d)
    with jax.enable_x64(dtype is np.float64):
        found = mmd(jnp.asarray(x, dtype), jnp.asarray(y, dtype), block=64)
        assert found.value.dtype == dtype
        given = mmd(
            jnp.asarray(x, dtype), jnp.asarray(y, dtype), bandwidth=0.5, block=64
        )
    median = np.median(pdist(np.concatenate([x, y])))
    np.testing.assert_allclose(found.bandwidth, median, rtol=1e-5)
    bandwidth = float(found.bandwidth)
    np.testing.assert_allclose(found.value, _dense(x, y, bandwidth), rtol=0, atol=atol)
    np.testing.assert_allclose(given.value, _dense(x, y, 0.5), rtol=0, atol=atol)
    assert found.p_value is None


def test_neither_the_order_of_draws_nor_of_samples_matters():
    x, y = map(jnp.asarray, _samples(0, 200, 130, 2))
    plain = mmd(x, y, bandwidth=1.0).value
    order = np.random.default_rng(1).permutation(200)
    shuffled = mmd(x[order], y, bandwidth=1.0).value
    swapped = mmd(y, x, bandwidth=1.0).value
    np.testing.assert_allclose([shuffled, swapped], plain, rtol=0, atol=1e-6)


def test_samples_of_one_law_have_uniform_p_values_and_mean_zero():
    sets = 100
    keys = jax.random.split(jax.random.key(0), (3, sets))

    def judge(for_x, for_y, key):
        x, y = jax.random.normal(for_x, (90, 2)), jax.random.normal(for_y, (60, 2))
        return mmd(x, y, key=key, permutations=200, bandwidth=1.5, block=75)

    found = jax.jit(jax.vmap(judge))(*keys)
    # Kolmogorov's statistic exceeds sqrt(log(2 / a) / 2) / sqrt(sets) with probability
    # a; a = 1e-4, and 1/201 for the steps of the p-value.
    ranks = np.arange(1, sets + 1) / sets
    gap = np.max(np.abs(np.sort(found.p_value) - ranks))
    assert gap < np.sqrt(np.log(2e4) / 2 / sets) + 1 / sets + 1 / 201
    assert abs(np.mean(found.value)) < 4 * np.std(found.value) / np.sqrt(sets)


def test_a_shift_is_detected_and_what_is_not_finite_does_not_pass():
    x, y = jax.random.normal(jax.random.key(0), (2, 250, 2))
    found = mmd(x, y + 0.7, key=jax.random.key(1))
    assert found.value > 0
    np.testing.assert_allclose(found.p_value, 1 / 1001, rtol=1e-6)
    broken = mmd(x.at[3, 1].set(jnp.nan), y, key=jax.random.key(1))
    assert np.isnan([broken.value, broken.p_value]).all()


def test_draws_that_all_coincide_do_not_differ():
    same = jnp.ones((150, 2))
    # The three means are of size 1/3: what is left of them is rounding.
    np.testing.assert_allclose(mmd(same, same).value, 0, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "y", "settings", "message"),
    [
        (np.ones(5), np.ones((5, 2)), {}, r"x must be an \(n, d\) array"),
        (np.ones((5, 2)), np.ones((1, 2)), {}, "y must be .* at least two draws"),
        (np.ones((5, 2)), np.ones((5, 3)), {}, "two samples of the same space"),
        (np.ones((5, 2), int), np.ones((5, 2)), {}, "floating point"),
        (np.ones((5, 2)), np.ones((5, 2)), {"bandwidth": 0.0}, "must be positive"),
        (np.ones((5, 2)), np.ones((5, 2)), {"permutations": 0}, "at least 1"),
    ],
)
def test_bad_input_gets_one_sentence(x, y, settings, message):
    # What users see: without the run-time checks of annotations that tests add.
    with pytest.raises(ValueError, match=message) as caught:
        inspect.unwrap(mmd)(x, y, **settings)
    assert "\n" not in str(caught.value)
