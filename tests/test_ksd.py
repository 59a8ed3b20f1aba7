"""The kernel Stein discrepancy against its definition, a peer, and its own theory."""

import importlib
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pushforward.diagnostics import ksd, stein_kernel

# The package exports a function of the module's name.
module = importlib.import_module("pushforward.diagnostics.ksd")


def _sample(seed, n, d, scale=1.0):
    """Student-t draws and their Gaussian scores: neither tame nor fitting."""
    draws = scale * np.random.default_rng(seed).standard_t(4, size=(n, d))
    return draws, 0.3 - draws / scale**2


def _dense(draws, scores, **settings):
    kernel = lambda x, y, sx, sy: stein_kernel(x, y, sx, sy, **settings)  # noqa: E731
    rows = jax.vmap(kernel, in_axes=(None, 0, None, 0))
    return jax.vmap(rows, in_axes=(0, None, 0, None))(draws, draws, scores, scores)


@pytest.mark.parametrize(("d", "c", "beta"), [(1, 1.0, -0.5), (3, 0.7, -0.3)])
def test_stein_kernel_is_the_stein_operator_applied_to_both_arguments(d, c, beta):
    def base(x, y):
        return (c**2 + jnp.sum((x - y) ** 2)) ** beta

    with jax.enable_x64(True):
        x, y, sx, sy = jnp.asarray(np.random.default_rng(d).normal(size=(4, d)))
        expected = (
            jnp.dot(sx, sy) * base(x, y)
            + jnp.dot(sx, jax.grad(base, 1)(x, y))
            + jnp.dot(sy, jax.grad(base, 0)(x, y))
            + jnp.trace(jax.jacfwd(jax.grad(base, 0), 1)(x, y))
        )
        np.testing.assert_allclose(
            stein_kernel(x, y, sx, sy, c=c, beta=beta), expected, rtol=1e-12
        )


# Few dimensions go through differences, many through matrix products.
@pytest.mark.parametrize(
    ("d", "dtype", "rtol", "settings"),
    [
        (2, np.float32, 2e-6, {}),
        (7, np.float32, 2e-6, {}),
        (2, np.float64, 1e-12, {}),
        (7, np.float64, 1e-12, {"c": 2.0, "beta": -0.25}),
    ],
)
def test_blocks_give_the_sums_of_the_whole_matrix(d, dtype, rtol, settings):
    draws, scores = _sample(0, 150, d)
    with jax.enable_x64(dtype is np.float64):
        draws, scores = jnp.asarray(draws, dtype), jnp.asarray(scores, dtype)
        found = ksd(draws, scores, block=64, **settings)
        assert found.v.dtype == found.u.dtype == dtype
    with jax.enable_x64(True):
        matrix = np.asarray(
            _dense(draws.astype(jnp.float64), scores.astype(jnp.float64), **settings)
        )
    off_diagonal = matrix.sum() - np.trace(matrix)
    np.testing.assert_allclose(found.v, np.sqrt(matrix.sum()) / 150, rtol=rtol)
    np.testing.assert_allclose(
        found.u, off_diagonal / (150 * 149), atol=rtol * matrix.sum() / 150**2
    )
    assert found.p_value is None
    assert found.n == 150


def test_v_and_u_differ_by_the_diagonal():
    draws, scores = map(jnp.asarray, _sample(1, 300, 2))
    found = ksd(draws, scores)
    # k0(x, x) = |s|^2 + d for c = 1, beta = -1/2.
    diagonal = np.sum(np.square(scores)) + 2 * 300
    expected = 300 * 299 * float(found.u) + diagonal
    np.testing.assert_allclose((300 * float(found.v)) ** 2, expected, rtol=1e-5)


@pytest.mark.parametrize(("d", "scale"), [(2, 1.0), (2, 30.0), (10, 1.0)])
def test_agrees_with_stein_thinning(d, scale):
    reason = "stein-thinning is not installed: pip install stein-thinning"
    kernel = pytest.importorskip("stein_thinning.kernel", reason=reason)
    stein = pytest.importorskip("stein_thinning.stein", reason=reason)
    draws, scores = (a.astype(np.float32) for a in _sample(2, 500, d, scale))
    k0 = kernel.make_imq(draws.astype(float), "id")
    x, s = draws.astype(float), scores.astype(float)
    peer = stein.ksd(lambda i, j: k0(x[i], x[j], s[i], s[j]), 500)[-1]
    ours = ksd(jnp.asarray(draws), jnp.asarray(scores))
    np.testing.assert_allclose(ours.v, peer, rtol=1e-5)


def test_the_order_of_draws_and_the_origin_do_not_matter():
    draws, scores = _sample(3, 200, 2)
    # On a grid of 1/64 the shift by 1024 is exact in 32 bits, so that only the
    # computation could lose digits.
    draws, scores = jnp.asarray(np.round(64 * draws) / 64), jnp.asarray(scores)
    order = np.random.default_rng(0).permutation(200)
    plain = ksd(draws, scores).v
    np.testing.assert_allclose(ksd(draws[order], scores[order]).v, plain, rtol=1e-5)
    np.testing.assert_allclose(ksd(draws + 1024, scores).v, plain, rtol=1e-5)


def test_exact_draws_have_uniform_p_values_and_a_centred_u():
    sets = 100
    keys = jax.random.split(jax.random.key(0), (2, sets))
    draws = jax.vmap(lambda key: jax.random.normal(key, (200, 2)))(keys[0])
    judge = jax.jit(
        jax.vmap(lambda key, x: ksd(x, -x, key=key, bootstraps=200, block=100))
    )
    found = judge(keys[1], draws)
    # Kolmogorov's statistic exceeds sqrt(log(2 / a) / 2) / sqrt(sets) with probability
    # a; a = 1e-4, and 1/201 for the steps of the p-value.
    ranks = np.arange(1, sets + 1) / sets
    gap = np.max(np.abs(np.sort(found.p_value) - ranks))
    assert gap < np.sqrt(np.log(2e4) / 2 / sets) + 1 / sets + 1 / 201
    assert abs(np.mean(found.u)) < 4 * np.std(found.u) / np.sqrt(sets)


def test_a_shifted_gaussian_is_rejected():
    draws = jax.random.normal(jax.random.key(0), (1000, 2)) + 0.3
    found = ksd(draws, -draws, key=jax.random.key(1), bootstraps=500)
    np.testing.assert_allclose(found.p_value, 1 / 501, rtol=1e-6)


def test_other_numbers_of_draws_do_not_recompile():
    draws, scores = map(jnp.asarray, _sample(4, 130, 3))
    ksd(draws, scores, block=65)
    before = module._statistics._cache_size()
    ksd(draws[:70], scores[:70], block=65)
    ksd(draws[:129], scores[:129], block=65)
    assert module._statistics._cache_size() == before


def test_draws_that_are_not_finite_do_not_pass():
    draws, scores = map(jnp.asarray, _sample(5, 50, 2))
    found = ksd(draws, scores.at[7, 0].set(jnp.nan), key=jax.random.key(0))
    assert np.isnan([found.v, found.u, found.p_value]).all()


@pytest.mark.parametrize(
    ("draws", "scores", "settings", "message"),
    [
        (
            np.ones(5),
            np.ones(5),
            {},
            r"must be an \(n, d\) array.*each row is one draw",
        ),
        (np.ones((5, 2)), np.ones((5, 3)), {}, "score at every draw"),
        (np.ones((1, 2)), np.ones((1, 2)), {}, "at least two draws"),
        (np.ones((5, 2), int), np.ones((5, 2)), {}, "convert them to floating point"),
        (np.ones((5, 2)), np.ones((5, 2)), {"beta": 0.5}, "-1 < beta < 0"),
        (np.ones((5, 2)), np.ones((5, 2)), {"block": 0}, "must both be at least 1"),
    ],
)
def test_bad_input_gets_one_sentence(draws, scores, settings, message):
    # What users see: without the run-time checks of annotations that tests add.
    with pytest.raises(ValueError, match=message) as caught:
        inspect.unwrap(ksd)(draws, scores, **settings)
    assert "\n" not in str(caught.value)
