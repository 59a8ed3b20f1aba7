"""The classic samplers that serve as baselines: Langevin, SGLD, HMC, SVGD, annealed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pushforward as pf
from pushforward import mcmc
from pushforward.errors import UsageError

PRECISION = np.array([0.5, 2.0])
N = 2000


def _gaussian():
    """N(1, diag(1 / PRECISION)), and n of its draws."""
    rates = jnp.asarray(PRECISION, float)
    target = pf.Target(lambda x: -0.5 * jnp.sum(rates * (x - 1) ** 2), dim=2)
    z = jax.random.normal(jax.random.key(0), (N, 2))
    return target, 1 + z / jnp.sqrt(rates)[None]


def _posterior():
    """The mean of 1000 standard Gaussians under a flat prior: N(mean, I / 1000)."""
    data = 3 + jax.random.normal(jax.random.key(9), (1000, 2))
    target = pf.MinibatchTarget(
        lambda w: jnp.sum(0 * w),
        lambda w, y: -0.5 * jnp.sum((w - y) ** 2),
        data,
        dim=2,
        batch_size=100,
    )
    return target, np.asarray(jnp.mean(data, axis=0))


def _assert_moments(draws, mean, variance):
    """Independent Gaussian draws: five standard errors of the mean and variance."""
    draws = np.asarray(draws)
    error = np.sqrt(variance / len(draws))
    np.testing.assert_array_less(np.abs(draws.mean(axis=0) - mean), 5 * error)
    error = variance * np.sqrt(2 / len(draws))
    np.testing.assert_array_less(np.abs(draws.var(axis=0) - variance), 5 * error)


def test_a_langevin_step_is_the_formula():
    """The same key gives the same noise, so a flat target lays the noise bare."""
    target, x = _gaussian()
    flat = pf.ScoreTarget(jnp.zeros_like, dim=2)
    key, h = jax.random.key(1), 0.01
    moved = mcmc.langevin(key, target, x, 1, step_size=h).positions
    noise = mcmc.langevin(key, flat, x, 1, step_size=h).positions - x
    expected = x - h * jnp.asarray(PRECISION, float)[None] * (x - 1)
    np.testing.assert_allclose(moved - noise, expected, rtol=1e-5, atol=1e-6)
    _assert_moments(noise, 0.0, np.full(2, 2 * h))


def test_langevin_has_the_spread_of_its_own_step_size():
    """`(1 - h p) x + sqrt(2 h) z`, for precision p, has variance 1 / (p - h p^2 / 2).

    Of the start's distance from that, (1 - .2 * .5)^120 = 3e-6 is left.
    """
    target, x = _gaussian()
    run = mcmc.langevin(jax.random.key(1), target, 0 * x, 120, step_size=0.2)
    _assert_moments(run.positions, 1.0, 1 / (PRECISION - 0.1 * PRECISION**2))
    assert run.evaluations == N * 120


def test_a_longer_run_begins_as_a_shorter_one():
    """So the rows of a table with several numbers of steps are one run."""
    target, x = _gaussian()
    key, x = jax.random.key(1), x[:10]
    kept = mcmc.sgld(key, target, x, 7, step_size=0.1, keep=3).kept
    assert kept.shape == (10, 3, 2)
    for j, steps in enumerate((5, 6, 7)):
        end = mcmc.sgld(key, target, x, steps, step_size=0.1).positions
        np.testing.assert_array_equal(kept[:, j], end)


def test_sgld_follows_its_schedule():
    """Without a score the variance is the sum of 2 h over the schedule."""
    flat = pf.ScoreTarget(jnp.zeros_like, dim=2)

    def schedule(t):
        return 0.1 / (t + 1) ** 0.55

    start = jnp.zeros((N, 2))
    run = mcmc.sgld(jax.random.key(1), flat, start, 20, step_size=schedule)
    total = sum(2 * schedule(t) for t in range(20))
    _assert_moments(run.positions, 0.0, np.full(2, total))


def test_sgld_sees_minibatches():
    """A batch's score is 1000 (m_B - x), and m_B has variance v / 100 for data of v.

    The chain is `(1 - c) x + c m_B + sqrt(2 h) z` with `c = 1000 h`, of stationary
    variance `(2 h + c^2 v / 100) / (1 - (1 - c)^2)`; from the mean it is there at once
    in the mean, and after 30 steps in the variance up to .9^60 = .002.
    """
    target, mean = _posterior()
    h = 1e-4
    start = jnp.tile(jnp.asarray(mean)[None], (1000, 1))
    run = mcmc.sgld(jax.random.key(1), target, start, 30, step_size=h)
    batch = np.asarray(target.data).var(axis=0) / 100
    _assert_moments(run.positions, mean, (2 * h + 0.01 * batch) / (1 - 0.9**2))
    # All data, no noise of batches: a third less variance.
    full = mcmc.langevin(jax.random.key(1), target, start, 30, step_size=h)
    _assert_moments(full.positions, mean, np.full(2, 2 * h / (1 - 0.9**2)))


def test_hmc_leaves_a_gaussian_as_it_is():
    """Large steps, so that the accept step has work to do."""
    target, x = _gaussian()
    run = mcmc.hmc(jax.random.key(1), target, x, 10, step_size=0.9, leapfrogs=3)
    _assert_moments(run.positions, 1.0, 1 / PRECISION)
    assert float(run.acceptance) < 0.95
    assert run.evaluations == N * (1 + 10 * 3)


def test_hmc_with_a_tiny_step_accepts_and_converges():
    """The energy error of a leapfrog trajectory is of the order step_size^2 = 2.5e-3.

    A trajectory of length 2 turns a coordinate of precision p by 2 sqrt(p), and what is
    left of the start is |cos|^10: .16^10 and .95^10 = .6, so only the first is there.
    """
    target, x = _gaussian()
    run = mcmc.hmc(jax.random.key(1), target, 0 * x, 10, step_size=0.05, leapfrogs=40)
    assert float(run.acceptance) > 0.99
    _assert_moments(run.positions[:, :1], 1.0, 1 / PRECISION[:1])
    rest = np.cos(2 * np.sqrt(2)) ** 10
    mean = 1 - rest
    variance = (1 - rest**2) / PRECISION[1:]
    _assert_moments(run.positions[:, 1:], mean, variance)


def test_hmc_by_the_score_alone():
    """Without an accept step precision p has the variance 1 / (p (1 - h^2 p / 4)).

    For a leapfrog step of size h conserves `p (1 - h^2 p / 4) x^2 + momentum^2`. Here
    that is 1.14 and 2 times the exact variance, and chains that start with it keep it.
    """
    target, x = _gaussian()
    by_score = pf.ScoreTarget(target.score, dim=2)
    h = 1.0
    variance = 1 / (PRECISION * (1 - h**2 * PRECISION / 4))
    x = 1 + (x - 1) * jnp.asarray(np.sqrt(variance * PRECISION), float)[None]
    key = jax.random.key(1)
    settings = {"step_size": h, "leapfrogs": 3, "adjusted": False}
    run = mcmc.hmc(key, by_score, x, 20, **settings)
    _assert_moments(run.positions, 1.0, variance)
    assert float(run.acceptance) == 1.0
    same = mcmc.hmc(key, target, x, 20, **settings)
    np.testing.assert_allclose(same.positions, run.positions, rtol=1e-5, atol=1e-5)


def _svgd_by_loops(score, x, steps, step_size):
    """SVGD as Liu and Wang's code has it, one pair at a time."""
    x, memory = np.array(x, dtype=float), None
    n = len(x)
    for _ in range(steps):
        squares = [[np.sum((a - b) ** 2) for a in x] for b in x]
        h2 = 0.5 * np.median(squares) / np.log(n + 1)
        phi = np.zeros_like(x)
        for i in range(n):
            for j in range(n):
                k = np.exp(-np.sum((x[i] - x[j]) ** 2) / (2 * h2))
                phi[i] += (k * score(x[j]) + k * (x[i] - x[j]) / h2) / n
        memory = phi**2 if memory is None else 0.9 * memory + 0.1 * phi**2
        x = x + step_size * phi / (1e-6 + np.sqrt(memory))
    return x


@pytest.mark.parametrize("n", [6, 7])
def test_svgd_is_the_double_loop(n):
    target, x = _gaussian()
    x = x[:n]
    run = mcmc.svgd(jax.random.key(1), target, x, 3, step_size=0.1)
    expected = _svgd_by_loops(lambda x: -PRECISION * (x - 1), x, 3, 0.1)
    np.testing.assert_allclose(run.positions, expected, rtol=1e-4, atol=1e-5)
    assert run.evaluations == 3 * n


def test_svgd_settles_on_a_gaussian():
    """Its fixed point has the exact mean, by symmetry, and somewhat too little spread.

    The mean keeps trembling by at most about a step. The spread of 50 particles is
    .85 to .9 of the exact one for every seed, and grows towards 1 with their number.
    """
    target, x = _gaussian()
    start = 0.1 * x[:50]
    end = mcmc.svgd(jax.random.key(1), target, start, 300, step_size=0.03).positions
    np.testing.assert_allclose(np.mean(end, axis=0), 1.0, atol=0.03)
    ratio = np.var(end, axis=0) * PRECISION
    assert np.all((ratio > 0.8) & (ratio < 1.0))


def test_svgd_sees_minibatches():
    """Scores of another minibatch move the particles elsewhere, near the same mean."""
    target, mean = _posterior()
    spread = 0.05 * jax.random.normal(jax.random.key(0), (9, 2))
    start = jnp.asarray(mean)[None] + spread
    ends = [
        mcmc.svgd(jax.random.key(k), target, start, 50, step_size=0.005).positions
        for k in (1, 2, 1)
    ]
    np.testing.assert_array_equal(ends[0], ends[2])
    assert not np.allclose(ends[0], ends[1])
    # Steps of about .005, and targets within .1 (the sd of a minibatch's mean).
    np.testing.assert_allclose(np.mean(ends[0], axis=0), mean, atol=0.1)


def _blurred():
    """N(0, I), blurred: its score at the noise level sigma is -x / (1 + sigma^2)."""
    return pf.NoiseConditionalTarget(
        lambda x, sigma: -x / (1 + sigma**2), 2, sigma_range=(0.1, 3.0)
    )


@pytest.mark.parametrize("denoise", [True, False])
def test_annealed_langevin_brings_the_noise_down(denoise):
    """The variance follows `v (1 - a / (1 + sigma^2))^2 + 2 a`, and ends near 1."""
    sigmas, ratio = np.geomspace(3, 0.1, 200), 0.5
    v = 9.0
    for sigma in sigmas:
        a = ratio * sigma**2
        v = v * (1 - a / (1 + sigma**2)) ** 2 + 2 * a
    if denoise:
        v = v / (1 + sigmas[-1] ** 2) ** 2
    start = 3 * jax.random.normal(jax.random.key(0), (N, 2))
    levels = jnp.asarray(sigmas, float)
    run = mcmc.annealed_langevin(
        jax.random.key(1), _blurred(), start, levels, step_ratio=ratio, denoise=denoise
    )
    _assert_moments(run.positions, 0.0, np.full(2, v))
    assert run.evaluations == N * (200 + denoise)
    # What the schedule leaves.
    assert abs(v - 1) < 0.1


def test_the_samplers_refuse_with_a_sentence():
    key, x = jax.random.key(0), jnp.zeros((4, 2))
    density, score = pf.targets.get("mog2"), pf.targets.get("funnel_coinsvgd")
    with pytest.raises(UsageError, match="ask for adjusted=False"):
        mcmc.hmc(key, score, x, 1, step_size=0.1, leapfrogs=1)
    with pytest.raises(UsageError, match="leapfrogs must be a whole number"):
        mcmc.hmc(key, density, x, 1, step_size=0.1, leapfrogs=0)
    with pytest.raises(UsageError, match="steps must be a whole number of at least 0"):
        mcmc.langevin(key, density, x, -1, step_size=0.1)
    with pytest.raises(UsageError, match="steps must be a whole number of at least 0"):
        mcmc.svgd(key, density, x, -1, step_size=0.1)
    with pytest.raises(UsageError, match="keep must lie between 0 and 3"):
        mcmc.sgld(key, density, x, 3, step_size=0.1, keep=4)
    levels = jnp.ones(3)
    with pytest.raises(UsageError, match="depends on the noise level"):
        mcmc.annealed_langevin(key, density, x, levels, step_ratio=0.1)
    with pytest.raises(UsageError, match="sigmas is empty"):
        mcmc.annealed_langevin(key, _blurred(), x, levels[:0], step_ratio=0.1)
