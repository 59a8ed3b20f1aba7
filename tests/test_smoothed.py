"""A plain density at every noise level, against closed forms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pushforward as pf
from pushforward.errors import UsageError
from pushforward.mcmc.smoothed import SmoothedScore, _prepare

KEY = jax.random.key(5)
# Three normals in the plane: means, variances, weights.
MEANS = jnp.array([[-3.0, 0.0], [3.0, 1.0], [0.5, -2.0]])
VARIANCES, WEIGHTS = jnp.array([0.3, 0.6, 0.1]), jnp.array([0.5, 0.3, 0.2])


def log_density(x, sigma=0.0):
    """Of the mixture with noise, normalised."""
    variances = VARIANCES + sigma**2
    squares = jnp.sum((x[None] - MEANS) ** 2, axis=1) / variances
    logs = jnp.log(WEIGHTS) - 0.5 * squares - jnp.log(2 * jnp.pi * variances)
    return jax.nn.logsumexp(logs)


def draw(key, n, sigma=0.0):
    which_key, key = jax.random.split(key)
    which = jax.random.choice(which_key, 3, (n,), p=WEIGHTS)
    sd = jnp.sqrt(VARIANCES[which] + sigma**2)
    return MEANS[which] + sd[:, None] * jax.random.normal(key, (n, 2))


def smoothed(num_proposals=64, num_particles=512) -> SmoothedScore:
    directions = jax.random.normal(KEY, (num_proposals // 2, 2))
    return _prepare(
        pf.Target(log_density, dim=2),
        jnp.concatenate([directions, -directions]),
        draw(jax.random.key(8), num_particles),
        jnp.zeros(()),
    )


@eqx.filter_jit
def relative_error(score, sigma):
    """The squared error of the score at draws of the mixture with noise."""
    x = draw(jax.random.key(1), 300, sigma)
    exact = jax.vmap(jax.grad(log_density), in_axes=(0, None))(x, sigma)
    found = jax.vmap(lambda x: score(x, sigma))(x)
    return jnp.mean((found - exact) ** 2) / jnp.mean(exact**2)


LEVELS = [0.03, 0.1, 0.3, 1.0, 3.0, 10.0]


@pytest.mark.parametrize("sigma", LEVELS)
def test_the_score_of_a_mixture_at_every_level(sigma):
    error = relative_error(smoothed(64, 512), jnp.asarray(sigma))
    # Of about a hundred useful points the mean has a squared error of a hundredth.
    assert error < 0.02


def test_fewer_points_have_larger_errors():
    """A quarter of the points: four times the error, on average."""
    many, few = (
        np.array([relative_error(smoothed(*n), jnp.asarray(s)) for s in LEVELS])
        for n in ((64, 512), (16, 128))
    )
    assert np.mean(many / few) < 0.6


def test_of_a_normal_nothing_is_left_to_chance():
    """`lambda slope + (1 - lambda) pull` is the same at all points."""
    variance = 0.7
    target = pf.Target(lambda x: -0.5 * jnp.sum(x**2) / variance, dim=3)
    directions = jax.random.normal(KEY, (6, 3))
    score = _prepare(
        target,
        jnp.concatenate([directions, -directions]),
        variance**0.5 * jax.random.normal(jax.random.key(2), (20, 3)),
        jnp.asarray(1.5 * np.log(2 * np.pi * variance), float),
    )
    x = jnp.array([0.4, -1.3, 2.0])
    for sigma in (0.2, 1.0, 4.0):
        found = score(x, jnp.asarray(sigma))
        np.testing.assert_allclose(found, -x / (variance + sigma**2), rtol=2e-3)


def test_bad_input():
    positive = pf.Target(lambda x: -jnp.sum(x), dim=2, constraints="positive")
    with pytest.raises(UsageError, match="cannot add noise under the constraint"):
        pf.smooth(KEY, positive)
    with pytest.raises(UsageError, match="smooth needs the log density"):
        pf.smooth(KEY, pf.ScoreTarget(lambda x: -x, dim=2))
    with pytest.raises(UsageError, match="num_proposals"):
        pf.smooth(KEY, pf.Target(log_density, dim=2), num_proposals=1)


@pytest.mark.slow
def test_a_smoothed_target_is_one_of_noise_levels():
    target = pf.Target(log_density, dim=2)
    found = pf.smooth(KEY, target, max_evaluations=1)
    low, high = found.noise_range
    # A tenth of the narrowest mode, and the spread of all.
    assert 0.02 < low < 0.06
    assert 2 < high < 4
    x = jnp.array([0.5, -1.0])
    assert np.array_equal(found.score(x, sigma=1.0), found.score(x, sigma=1.0))
    exact = jax.grad(log_density)(x, 1.0)
    np.testing.assert_allclose(found.score(x, sigma=1.0), exact, atol=0.15)
