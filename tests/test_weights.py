"""Importance weights against integrals that are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import pushforward as pf
from pushforward import networks
from pushforward.diagnostics.weights import max_pareto_k, pareto_smoothed
from pushforward.errors import UsageError
from pushforward.sampler import Sampler
from pushforward.targets.preconditioner import Preconditioner
from pushforward.targets.structure import Structure

KEY = jax.random.key(0)


def sampler_of(network, *, noise=0.0, whitening=None):
    dim = network.out_size
    whitening = Preconditioner.identity(dim) if whitening is None else whitening
    return Sampler(network, whitening, Structure.vector(dim), noise)


def bent(network):
    """The same network with other weights: a long way from where it starts."""

    def moved(a):
        waves = jnp.sin(7 * jnp.arange(a.size).reshape(a.shape))
        return a + 0.2 * waves.astype(a.dtype)

    return jax.tree.map(moved, network)


def normal(precision):
    return pf.Target(lambda x: -0.5 * precision * jnp.sum(x**2), dim=2)


NETWORKS = {
    "affine": networks.AffineMap(2),
    "flow": networks.MixtureMap(3, 8, 1, 1, layers=3, key=KEY),
    "mixture": networks.MixtureMap(3, 8, 1, 3, layers=4, key=KEY),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_density_of_draws_integrates_to_one(name):
    """E[1 / p] over draws in a box is the box's volume, whatever the network."""
    sampler = sampler_of(
        bent(NETWORKS[name]),
        whitening=Preconditioner.affine(
            jnp.array([1.0, -1.0]), jnp.diag(jnp.array([0.5, 2]))
        ),
    )
    assert sampler.has_density
    n = 20_000
    x, log_p = sampler.sample_and_log_prob(KEY, n)
    np.testing.assert_allclose(x, sampler.sample(KEY, n), rtol=1e-4, atol=1e-4)
    x = np.asarray(x)
    low, high = np.quantile(x, [0.3, 0.7], axis=0)
    inside = np.all((x > low) & (x < high), axis=1)
    terms = np.where(inside, np.exp(-np.asarray(log_p, np.float64)), 0.0)
    error = terms.std() / n**0.5
    # Four standard errors.
    assert abs(terms.mean() - np.prod(high - low)) < 4 * error
    assert error < 0.05 * np.prod(high - low)


@pytest.mark.parametrize("precision", [1.0, 1.5, 4.0])
def test_the_normaliser_of_a_normal(precision):
    found = pf.weigh(KEY, normal(precision), sampler_of(networks.AffineMap(2)))
    exact = np.log(2 * np.pi / precision)
    assert abs(found.log_normaliser - exact) <= 4 * found.log_normaliser_se + 1e-5
    np.testing.assert_allclose(found.weights.sum(), 1.0, rtol=1e-6)
    # Of N(0, I) for N(0, I / a): E[w]^2 / E[w^2] = (2 a - 1) / a^2 in two dimensions.
    # Its relative sd for 10,000 draws is .85 % at a = 4, less at the others; four.
    worth = (2 * precision - 1) / precision**2
    np.testing.assert_allclose(found.ess / 10_000, worth, rtol=0.034)
    second = found.weights @ found.draws**2
    # The relative sd of a mean square is sqrt(2 / effective); four of them.
    np.testing.assert_allclose(second, 1 / precision, rtol=4 * (2 / found.ess) ** 0.5)
    assert found.reliable and "the weights are reliable" in str(found)


def test_weights_with_a_heavy_tail_are_said_to_be_useless():
    """For N(0, 4 I) the weights of N(0, I) have a Pareto tail of shape 3/4."""
    found = pf.weigh(KEY, normal(0.25), sampler_of(networks.AffineMap(2)), 100_000)
    assert not found.reliable and "Do not rely" in repr(found)


def test_the_shape_of_a_tail():
    for shape in (0.2, 0.5, 1.0):
        # Quantiles in place of draws: exact but for what is beyond the last.
        levels = (np.arange(20_000) + 0.5) / 20_000
        weights = stats.genpareto.ppf(levels, shape)
        smoothed, found = pareto_smoothed(np.log(weights / weights.max()))
        np.testing.assert_allclose(found, shape, atol=0.1)
        # Quantiles are smooth already, but for the last.
        np.testing.assert_allclose(smoothed.sum() * weights.max(), weights.sum(), 0.1)
    assert pareto_smoothed(np.zeros(1000))[1] == 0.0
    # The shape of what exceeds equal weights by less than a percent is of no account.
    excess = stats.genpareto.ppf((np.arange(5000) + 0.5) / 5000, 1.0)
    nearly = np.log1p(5e-3 * excess / excess.max())
    assert pareto_smoothed(nearly - nearly.max())[1] == 0.0
    # Most weights are 0: nothing is known of the tail.
    few = np.where(np.arange(1000) < 50, -np.arange(1000.0), -np.inf)
    weights, found = pareto_smoothed(few)
    assert found == np.inf
    np.testing.assert_array_equal(weights, np.exp(few))


def test_the_threshold_depends_on_the_number_of_draws():
    assert [max_pareto_k(n) for n in (100, 10_000)] == [0.5, 0.7]


def test_weights_and_tempering_agree_about_the_normaliser():
    """Two ways to one number: both know the constant of what they start from."""
    target = pf.Target(lambda x: -jnp.sum(jnp.cosh(x)), dim=2)
    found = pf.weigh(KEY, target, sampler_of(networks.AffineMap(2)))
    run = jax.jit(lambda key: pf.mcmc.repeated_smc(key, target, particles=2000))(KEY)
    # The integral of exp(-cosh(x)) is 2 K_0(1).
    exact = 2 * np.log(2 * special.k0(1.0))
    assert abs(found.log_normaliser - exact) < 4 * found.log_normaliser_se + 1e-4
    # A dozen temperatures, each with a relative variance of 1/n at half the ESS: .08.
    assert abs(float(run.log_normaliser) - exact) < 0.3


def test_a_trained_sampler_of_constrained_parameters():
    """A Gamma density of shape 3: its normaliser is Gamma(3), its mean is 3."""
    target = pf.constrained(
        lambda p: 2 * jnp.log(p["rate"]) - p["rate"] - 0.5 * p["x"] ** 2,
        {"rate": "positive"},
        example={"rate": 1.0, "x": 0.0},
    )
    method = pf.methods.Transport(
        network=networks.mixture(width=8), steps=100, batch_size=64
    )
    sampler = pf.fit(KEY, target, method, progress=False).sampler
    found = pf.weigh(jax.random.key(1), target, sampler, 20_000)
    again = sampler.sample(jax.random.key(1), 20_000)
    np.testing.assert_allclose(found.draws["rate"], again["rate"], rtol=1e-4, atol=1e-4)
    exact = special.gammaln(3) + 0.5 * np.log(2 * np.pi)
    # How heavy the tail of its weights is, theory does not say: k is .55 to .83 over
    # seeds and steps. What the weights add up to, it does.
    assert abs(found.log_normaliser - exact) < 4 * found.log_normaliser_se + 1e-4
    mean = found.weights @ found.draws["rate"]
    assert abs(mean - 3) < 4 * (3 / found.ess) ** 0.5


def test_a_density_that_is_not_a_number_is_zero():
    """N(0, I) where x[0] < 1, NaN up to 2 and +inf beyond: Z is 2 pi Phi(1)."""

    def log_density(x):
        inside = -0.5 * jnp.sum(x**2)
        return jnp.where(x[0] < 1, inside, jnp.where(x[0] < 2, jnp.nan, jnp.inf))

    found = pf.weigh(
        KEY, pf.Target(log_density, dim=2), sampler_of(networks.AffineMap(2)), 20_000
    )
    x = np.asarray(found.draws)[:, 0]
    assert found.undefined == np.sum(x >= 1) > 0
    np.testing.assert_array_equal(found.weights > 0, x < 1)
    assert f"At {found.undefined:,} draws the log density is not a" in repr(found)
    exact = np.log(2 * np.pi) + np.log(special.ndtr(1.0))
    assert abs(found.log_normaliser - exact) < 4 * found.log_normaliser_se + 1e-4


def test_what_cannot_be_weighed():
    plain, target = sampler_of(networks.AffineMap(2)), normal(1.0)
    noisy = sampler_of(networks.AffineMap(2), noise=0.1)
    folding = sampler_of(networks.MixtureMap(3, 8, 1, 2, key=KEY))
    line = sampler_of(networks.MixtureMap(2, 8, 1, 2, key=KEY))
    for sampler in (noisy, folding, line):
        assert not sampler.has_density
        with pytest.raises(UsageError, match="adds noise or has a network that may"):
            pf.weigh(KEY, target, sampler)
    with pytest.raises(UsageError, match="only a score"):
        pf.weigh(KEY, pf.ScoreTarget(lambda x: -x, dim=2), plain)
    with pytest.raises(UsageError, match="other parameters"):
        pf.weigh(KEY, pf.Target(lambda x: -jnp.sum(x**2), dim=3), plain)
    with pytest.raises(UsageError, match="at least 100, not 10"):
        pf.weigh(KEY, target, plain, 10)
    with pytest.raises(UsageError, match="not a number at 10,000"):
        pf.weigh(KEY, pf.Target(lambda x: jnp.nan * jnp.sum(x), dim=2), plain)
    with pytest.raises(UsageError, match="0 at every draw"):
        pf.weigh(KEY, pf.Target(lambda x: -jnp.inf + 0 * jnp.sum(x), dim=2), plain)


@pytest.mark.once
@pytest.mark.parametrize("precision", [1.5, 4.0])
def test_bridge_sampling_knows_the_normaliser(precision):
    """From draws of a normal and of a wider one, whose normalisers are known."""
    target = normal(precision)
    sampler = sampler_of(networks.AffineMap(2))
    exact = np.log(2 * np.pi / precision)
    draws = jax.random.normal(jax.random.key(5), (4000, 2)) / precision**0.5
    found = pf.diagnostics.bridge(KEY, target, sampler, draws)
    assert abs(found.log_normaliser - exact) < 4 * found.log_normaliser_se
    assert 0 < found.log_normaliser_se < 0.05 and 0 < found.overlap < 1


@pytest.mark.once
def test_the_error_of_a_bridge_is_that_of_its_estimates():
    """Over many repeats the estimates scatter as much as each of them says."""
    rng, found = np.random.default_rng(0), []
    for _ in range(200):
        # log q - log p of normals of precision 2 and 1 in one dimension, no constant.
        p, q = rng.normal(size=300), rng.normal(size=600) / 2**0.5
        found.append(pf.diagnostics.bridge_of(-0.5 * p**2, -0.5 * q**2))
    estimates = np.array([each.log_normaliser for each in found])
    errors = np.array([each.log_normaliser_se for each in found])
    # The sd of an sd of 200 numbers is 5 %; the mean has a tenth of that noise.
    assert estimates.std() / errors.mean() == pytest.approx(1, abs=0.2)
    exact = np.log(1 / 2**0.5)
    assert abs(estimates.mean() - exact) < 4 * errors.mean() / 200**0.5
    # The same distribution on both sides: there is nothing to be told apart.
    same = pf.diagnostics.bridge_of(np.full(100, 2.5), np.full(100, 2.5))
    assert same.log_normaliser == pytest.approx(2.5) and same.overlap == 1
    with pytest.raises(UsageError, match="do not meet anywhere"):
        pf.diagnostics.bridge_of(np.full(100, -np.inf), np.full(100, 1.0))
