"""The classic samplers that the rest leans on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pushforward as pf
from pushforward import mcmc
from pushforward.errors import UsageError
from pushforward.mcmc.moments import mean_and_covariance


def test_refining_repairs_what_is_close():
    """Draws that are too wide are moved by MALA towards the target."""
    target = pf.targets.get("mog2")
    wide = target.sample(jax.random.key(0), 2000)
    wide = wide + 0.5 * jax.random.normal(jax.random.key(1), wide.shape)
    energy = jax.jit(jax.vmap(target.log_density))
    exact = energy(target.sample(jax.random.key(2), 2000)).mean()
    refined = pf.refine(jax.random.key(3), target, wide, steps=50)
    gap = abs(float(energy(refined).mean() - exact))
    # The sd of a log density of 2-d Gaussians is 1: 2000 draws give .02 each side.
    assert gap < 0.1 < abs(float(energy(wide).mean() - exact))


def test_refining_needs_a_density_and_a_count():
    draws = jnp.zeros((10, 2))
    with pytest.raises(UsageError, match="only a score"):
        pf.refine(jax.random.key(0), pf.targets.get("funnel_coinsvgd"), draws, steps=5)
    with pytest.raises(UsageError, match="at least 0, not -1"):
        pf.refine(jax.random.key(0), pf.targets.get("mog2"), draws, steps=-1)


def test_tempering_finds_both_modes():
    """Both halves of mog2 keep their share."""
    target = pf.targets.get("mog2")
    run = jax.jit(lambda key: mcmc.repeated_smc(key, target, particles=2000))(
        jax.random.key(0)
    )
    assert float(run.inverse_temperature) == 1.0 and bool(run.finished)
    share = float(jnp.mean(run.positions[:, 0] < 0))
    # Resampled particles are worth fewer: five sd of 500 independent ones.
    assert abs(share - 0.5) < 5 * 0.5 / 500**0.5
    assert int(run.evaluations) > 0 and int(run.ancestors) > 10


def test_draws_that_span_no_volume_are_not_refined():
    """One draw used to come back unmoved, as if it had been improved."""
    target = pf.targets.get("mog2")
    with pytest.raises(UsageError, match=r"2 draws do not span 2 coordinates"):
        pf.refine(jax.random.key(0), target, jnp.zeros((2, 2)), steps=5)


@pytest.mark.parametrize("width", [1.0, 10.0])
def test_tempering_knows_the_normaliser(width):
    """A normal of precision P has the integral sqrt(det(2 pi / P))."""
    factor = jnp.asarray([[2.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.0, -0.3, 0.5]])
    target = pf.Target(lambda x: -0.5 * jnp.sum((factor @ (x - 2.0)) ** 2), dim=3)
    run = jax.jit(
        lambda key: mcmc.repeated_smc(key, target, particles=2000, start_scale=width)
    )(jax.random.key(0))
    exact = 1.5 * np.log(2 * np.pi) - np.log(np.prod(np.diag(factor)))
    # A dozen temperatures, each with a relative variance of 1/n at half the ESS: .08.
    assert abs(float(run.log_normaliser) - exact) < 0.3


def test_a_run_that_is_cut_short_says_so():
    """Even on the very temperature that reaches 1: the particles are not there yet."""
    target = pf.Target(lambda x: -0.5 * jnp.sum(x**2), dim=1)
    explore = jax.jit(
        lambda n: mcmc.repeated_smc(
            jax.random.key(0), target, particles=200, rounds=1, max_temperatures=n
        )
    )
    whole = explore(60)
    assert bool(whole.finished)
    # The last three are mutations at the inverse temperature 1.
    reached = int(whole.num_temperatures) - 3
    for count in (reached, reached + 2):
        cut = explore(count)
        assert cut.inverse_temperature == 1 and not bool(cut.finished)


def test_tempering_does_not_care_for_units():
    """A correlated normal whose coordinates differ in size by a factor of a million."""
    units, n = jnp.asarray(np.geomspace(1e-3, 1e3, 6), float), 2048
    factor = jnp.eye(6) - 0.9 * jnp.eye(6, k=-1)
    target = pf.Target(lambda x: -0.5 * jnp.sum((factor @ (x / units)) ** 2), dim=6)
    run = jax.jit(lambda key: mcmc.repeated_smc(key, target, particles=n))(
        jax.random.key(0)
    )
    assert run.inverse_temperature == 1 and run.acceptance > 0.5
    white = np.asarray(run.positions / units[None]) @ np.asarray(factor).T
    # Resampled particles are worth a third of independent ones: four standard errors.
    np.testing.assert_allclose(white.mean(axis=0), 0.0, atol=4 * (3 / n) ** 0.5)
    np.testing.assert_allclose(white.std(axis=0), 1.0, atol=4 * (1.5 / n) ** 0.5)
    # Points that agree in a coordinate have a covariance too.
    _, covariance = mean_and_covariance(jnp.zeros((3, 2)).at[:, 0].set(jnp.arange(3.0)))
    assert np.isfinite(np.linalg.cholesky(covariance)).all()


def test_nuts_has_the_moments_of_a_gaussian():
    target = pf.Target(lambda x: -0.5 * jnp.sum((x - 2.0) ** 2), dim=2)
    starts = jax.random.normal(jax.random.key(0), (4, 2))
    run = mcmc.nuts(jax.random.key(1), target, starts, draws=500, warmup=200)
    draws = np.asarray(run.positions).reshape(-1, 2)
    # 2000 draws worth at least 400: five standard errors of .05.
    np.testing.assert_allclose(draws.mean(axis=0), 2.0, atol=0.25)
    assert int(run.leapfrogs) > 0 and int(run.divergences) == 0
