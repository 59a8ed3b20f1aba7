"""Modes: what a statistician would count, and what sampling noise must not add."""

import inspect

import jax.numpy as jnp
import numpy as np
import pytest

from pushforward.diagnostics import compare_modes, find_modes, mode_weights


def _gaussian(rng, n):
    return rng.normal(size=(n, 2)) @ np.array([[3.0, 0.0], [-1.0, 0.5]])


def _mog2(rng, n, share=0.5, apart=4.0):
    side = np.where(rng.random((n, 1)) < share, -1.0, 1.0)
    return side * apart / 2 * np.array([1.0, -1.0]) + np.sqrt(0.5) * rng.normal(
        size=(n, 2)
    )


def _donut(rng, n, width=0.5):
    radius, angle = 2.5 + width * rng.normal(size=n), 2 * np.pi * rng.random(n)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def _ring(rng, n):
    return _donut(rng, n, width=0.05)


def _banana(rng, n):
    x = rng.normal(size=n)
    return np.stack([x, x**2 + 0.3 * rng.normal(size=n)], axis=1)


def _squiggle(rng, n):
    cholesky = np.linalg.cholesky([[2, 0.25], [0.25, 0.5]])
    x, y = (1 + rng.normal(size=(n, 2)) @ cholesky.T).T
    return np.stack([x, y - np.sin(2 * x)], axis=1)


def _funnel(rng, n):
    y = 4 + 3 * rng.normal(size=n)
    return np.stack([1 + np.exp(y / 2) * rng.normal(size=n), y], axis=1)


def _line(rng, n):
    return rng.random((n, 1))


def _heavy(rng, n):
    return rng.standard_t(2, size=(n, 3))


def _gaussian10(rng, n):
    return rng.normal(size=(n, 10))


ONE_MODE = [
    _gaussian,
    _donut,
    _ring,
    _banana,
    _squiggle,
    _funnel,
    _line,
    _heavy,
    _gaussian10,
]


@pytest.mark.parametrize("draw", ONE_MODE)
def test_sampling_noise_makes_no_modes(draw):
    # Seven sets of each of the nine: 63 in all. At the promised one in a hundred, a
    # kind with two or more has a chance of .2 %.
    rng = np.random.default_rng(0)
    found = [len(find_modes(draw(rng, 2000)).centres) for _ in range(7)]
    assert found.count(1) >= 6, found


@pytest.mark.slow
@pytest.mark.parametrize("draw", [_line, _funnel, _donut])
def test_sampling_noise_makes_modes_in_less_than_a_hundredth_of_samples(draw):
    rng = np.random.default_rng(1)
    invented = sum(len(find_modes(draw(rng, 2000)).centres) > 1 for _ in range(500))
    # At a rate of 1 % the number is Poisson with mean 5, and 13 has a chance of .2 %.
    assert invented < 13


def test_two_gaussians_are_two_modes():
    rng = np.random.default_rng(0)
    for _ in range(5):
        modes = find_modes(_mog2(rng, 2000))
        order = np.argsort(modes.centres[:, 0])
        # The densest spot of 1000 draws is known to within a standard deviation.
        np.testing.assert_allclose(modes.centres[order], [[-2, 2], [2, -2]], atol=0.7)
        # Six standard errors of a binomial share.
        np.testing.assert_allclose(
            modes.reference_weights, 0.5, atol=6 * 0.5 / 2000**0.5
        )


def test_a_light_mode_is_found_and_weighed():
    rng = np.random.default_rng(0)
    modes = find_modes(_mog2(rng, 2000, share=0.95))
    assert modes.reference_weights.shape == (2,)
    np.testing.assert_allclose(modes.reference_weights, [0.95, 0.05], atol=0.03)
    assert modes.centres[0, 0] < 0 < modes.centres[1, 0]
    np.testing.assert_allclose(
        np.bincount(modes.labels) / 2000, modes.reference_weights
    )
    collapsed = _mog2(rng, 500, share=1.0)
    np.testing.assert_array_equal(modes.weights(collapsed), [1, 0])


def test_a_grid_of_forty_gaussians_has_about_forty_modes():
    rng = np.random.default_rng(0)
    means = 10.0 * np.stack(np.meshgrid(np.arange(8), np.arange(5)), -1).reshape(-1, 2)
    draws = means[rng.integers(40, size=4000)] + 1.3133 * rng.normal(size=(4000, 2))
    modes = find_modes(draws)
    assert 38 <= len(modes.centres) <= 40
    gaps = np.linalg.norm(modes.centres[:, None] - means[None], axis=-1)
    assert (gaps.min(axis=1) < 2.0).all()


def test_modes_are_seen_among_other_coordinates_and_in_other_units():
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(2000, 8))
    draws[:, 0] += np.where(rng.random(2000) < 0.3, -5, 5)
    mixing = np.linalg.qr(rng.normal(size=(8, 8)))[0] * np.logspace(-3, 3, 8)
    modes = find_modes(draws @ mixing.T + 100)
    assert len(modes.centres) == 2
    np.testing.assert_array_equal(modes.labels, (draws[:, 0] < 0).astype(int))


def test_draws_belong_to_the_mode_whose_shape_they_have():
    # A ring around a spot: distance to centres would give half of the ring away.
    rng = np.random.default_rng(0)
    ring, spot = _ring(rng, 2500), 0.2 * rng.normal(size=(1500, 2))
    modes = find_modes(np.concatenate([ring, spot]))
    np.testing.assert_array_equal(modes.counts(_ring(rng, 400)), [400, 0])
    np.testing.assert_array_equal(modes.counts(0.2 * rng.normal(size=(50, 2))), [0, 50])
    assert 2.2 < np.linalg.norm(modes.centres[0]) < 2.8


def test_the_order_of_draws_does_not_matter():
    draws = _mog2(np.random.default_rng(0), 1000)
    order = np.random.default_rng(1).permutation(1000)
    plain, shuffled = find_modes(draws), find_modes(draws[order])
    np.testing.assert_allclose(plain.centres, shuffled.centres)
    np.testing.assert_array_equal(plain.labels[order], shuffled.labels)


def test_repeated_draws_make_no_modes_but_have_weight():
    rng = np.random.default_rng(0)
    left, right = _mog2(rng, 600, share=1.0), _mog2(rng, 600, share=0.0)
    # Every draw of the left mode three times, as where a chain rejects often.
    modes = find_modes(np.concatenate([left, left, left, right]))
    np.testing.assert_allclose(modes.reference_weights, [0.75, 0.25])
    assert len(find_modes(np.ones((100, 2))).centres) == 1
    assert len(find_modes(rng.normal(size=(1, 2))).centres) == 1


def test_a_coordinate_that_does_not_vary_does_no_harm():
    rng = np.random.default_rng(0)
    draws = np.concatenate([_mog2(rng, 1000), np.full((1000, 1), 3.0)], axis=1)
    assert len(find_modes(draws).centres) == 2


def test_large_references_are_thinned_for_the_search_and_labelled_whole():
    draws = _mog2(np.random.default_rng(0), 25_000)
    modes = find_modes(draws)
    assert len(modes.points) == 20_000
    assert modes.labels.shape == (25_000,)
    np.testing.assert_array_equal(modes.labels, modes.assign(draws))


def test_comparison_finds_the_mode_that_is_missing():
    compared = compare_modes(np.array([500, 300, 200]), np.array([640, 360, 0]))
    np.testing.assert_allclose(compared.reference_weights, [0.5, 0.3, 0.2])
    np.testing.assert_allclose(compared.draw_weights, [0.64, 0.36, 0.0])
    assert compared.p_values[2] == compared.p_values.min() < 1e-50
    same = compare_modes(np.array([500, 300, 200]), np.array([500, 300, 200]))
    np.testing.assert_allclose(same.p_values, 1.0)


def test_two_modes_are_one_question():
    compared = compare_modes(np.array([50, 50]), np.array([60, 40]))
    # Fisher's exact test of [[50, 50], [60, 40]], by summing the hypergeometric law.
    np.testing.assert_allclose(compared.p_values, 0.2007, atol=2e-4)
    single = compare_modes(np.array([100]), np.array([70]))
    np.testing.assert_allclose(single.p_values, 1.0)


def test_comparison_rarely_rejects_samples_of_one_law():
    rng = np.random.default_rng(0)
    weights = [0.4, 0.3, 0.2, 0.1]
    smallest = [
        compare_modes(
            rng.multinomial(400, weights), rng.multinomial(500, weights)
        ).p_values.min()
        for _ in range(100)
    ]
    # At most 5 in expectation; a Poisson variable of mean 5 reaches 15 once in 4000.
    assert np.sum(np.array(smallest) < 0.05) < 15


def test_mode_weights_are_shares_of_the_nearest():
    draws = jnp.asarray([[0.0, 0.1], [0.2, 0.0], [4.9, 5.0], [2.0, 2.0]])
    modes = jnp.asarray([[0.0, 0.0], [5.0, 5.0]])
    np.testing.assert_allclose(mode_weights(draws, modes), [0.75, 0.25])
    common = mode_weights(draws, modes, covariance=jnp.diag(jnp.asarray([2.0, 0.5])))
    np.testing.assert_allclose(common, [0.75, 0.25])
    # The second mode is so wide that (2, 2) is nearer to it in its own units.
    each = jnp.stack([jnp.eye(2), 25 * jnp.eye(2)])
    np.testing.assert_allclose(mode_weights(draws, modes, covariance=each), [0.5, 0.5])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: find_modes(np.ones(5)), r"find_modes: reference must be an \(n, d\)"),
        (
            lambda: find_modes(np.full((5, 2), np.nan)),
            "5 of 5 reference are not finite",
        ),
        (lambda: find_modes(np.ones((5, 2))).assign(np.ones((5, 3))), "the same space"),
        (lambda: mode_weights(np.ones((5, 2)), np.ones((2, 3))), "do not fit"),
        (
            lambda: mode_weights(
                np.ones((5, 2)), np.ones((2, 2)), covariance=np.ones(2)
            ),
            "for all modes or",
        ),
        (lambda: compare_modes(np.ones(2, int), np.ones(3, int)), "one for each mode"),
        (lambda: compare_modes(np.zeros(2, int), np.ones(2, int)), "all zero"),
    ],
)
def test_bad_input_gets_one_sentence(call, message, monkeypatch):
    # What users see: without the run-time checks of annotations that tests add.
    for function in (find_modes, mode_weights, compare_modes):
        monkeypatch.setitem(globals(), function.__name__, inspect.unwrap(function))
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
