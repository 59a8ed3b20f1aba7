"""The two reverse-KL objectives have the gradient of the KL divergence.

`kl_loss` through a score (KL-NS), and `reverse_kl_loss` through a change of variables
(`Transport`). Expectations are by quadrature, in 64-bit.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import quadrature as qd
from pushforward.networks import MixtureMap, ResidualMap
from pushforward.objectives import reverse_kl
from pushforward.objectives.kl import kl_loss
from pushforward.objectives.reverse_kl import reverse_kl_loss
from pushforward.targets import ScoreTarget, Target
from quadrature import Affine, assert_equal

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.once]

SIGMA = 0.3
TOLERANCE = 1e-8


CASES = [
    ("quartic", 1, 1, 4),
    ("quartic", 2, 1, 4),
    ("quartic", 3, 3, 4),
    ("waves", 1, 1, 24),
]


@pytest.mark.parametrize(("name", "dim", "latent", "nodes"), CASES)
def test_the_surrogate_has_the_gradient_of_the_kl(name, dim, latent, nodes):
    theta = Affine.random(dim, dim, latent)
    log_density = getattr(qd, name)
    field, score = jax.grad(log_density), theta.frozen_score(SIGMA)

    @jax.jit
    @jax.jacfwd
    def found(parameters):
        def at(w):
            z, eps = jnp.split(w, [latent])
            x = parameters.A @ z + parameters.b + SIGMA * eps
            return kl_loss(x, score, field)

        return qd.expectation(at, latent + dim, nodes)

    def kl(moving):
        # -entropy - E[log q], up to constants.
        x, weights = moving.points(SIGMA, nodes)
        entropy = 0.5 * np.log(np.linalg.det(moving.covariance(SIGMA)))
        return -entropy - weights @ log_density(x, np)

    assert_equal(found(theta), qd.complex_step(kl, theta), TOLERANCE)


def filled(seed, network_type, *arguments):
    """A network of normal numbers, in 64-bit; its initialisation is not compiled."""
    rng = np.random.default_rng(seed)
    make = functools.partial(network_type, *arguments)
    shapes = eqx.filter_eval_shape(lambda key: make(key=key), jax.random.key(0))
    return jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape)), shapes)


# Weights of two components that four latent numbers share out exactly.
QUARTERS = np.array([0.25, 0.75])


def mixture_map(seed, dim, components, *, bend):
    """A mixture map with random components; its map the identity or bent."""
    network = filled(seed, MixtureMap, dim + 1, 4, 1, components)
    if components == 2:
        network = eqx.tree_at(lambda n: n.logits, network, jnp.log(QUARTERS) + 0.3)
    scales = np.random.default_rng(seed).uniform(0.5, 1.0, (components, dim, 1))
    factors = 0.2 * jnp.tril(network.factors, -1) + scales * np.eye(dim)
    last = jax.tree.map(lambda a: a * bend, network.map.mlp.layers[-1])
    return eqx.tree_at(
        lambda n: (n.factors, n.map.mlp.layers[-1]), network, (factors, last)
    )


def expected_free_energy(network, target, nodes):
    """`reverse_kl_loss` averaged over the latent Gaussian.

    Each component has its exact share of the points that differ in the last latent
    number alone, which picks the component.
    """
    last = jnp.asarray(stats.norm.ppf((np.arange(4) + 0.5) / 4))

    def at(z):
        same = jnp.broadcast_to(z, (4, z.shape[0]))
        points = jnp.concatenate([same, last[:, None]], axis=1)
        return reverse_kl_loss(network, target, points, jax.random.key(0))[0]

    return qd.expectation(at, network.out_size, nodes)


def test_free_energy_of_one_gaussian_against_another():
    dim = 3
    network = mixture_map(10 + dim, dim, 1, bend=0.0)
    rng = np.random.default_rng(dim)
    root = np.eye(dim) + 0.3 * rng.normal(size=(dim, dim))
    precision, centre = root @ root.T, rng.normal(size=dim)

    def log_density(x):
        return -0.5 * (x - centre) @ precision @ (x - centre)

    # log q is a polynomial of degree 2: two nodes an axis are exact.
    @jax.jit
    @jax.value_and_grad
    def found(parameters):
        means, factors = parameters
        moved = eqx.tree_at(lambda n: (n.means, n.factors), network, (means, factors))
        return expected_free_energy(moved, Target(log_density, dim), 2)

    value, (mean_gradient, factor_gradient) = found((network.means, network.factors))
    mean, factor = np.asarray(network.means[0]), np.asarray(network.factors[0])
    # KL(N(m, LL') || N(c, P^-1)), less log Z of q.
    spread = np.trace(precision @ factor @ factor.T)
    away = (mean - centre) @ precision @ (mean - centre)
    entropy = stats.multivariate_normal(mean, factor @ factor.T).entropy()
    np.testing.assert_allclose(value, 0.5 * (spread + away) - entropy, rtol=1e-10)
    assert_equal(mean_gradient[0], precision @ (mean - centre), TOLERANCE)
    exact = np.tril(precision @ factor) - np.diag(1 / np.diag(factor))
    assert_equal(factor_gradient[0], exact, TOLERANCE)


@pytest.fixture
def unclipped(monkeypatch):
    """Far out one draw tells more than is believed in training."""
    monkeypatch.setattr(reverse_kl, "_MOST_NATS", np.inf)


def double_well(x):
    return -0.25 * jnp.sum((x**2 - 1.5) ** 2) + 0.3 * jnp.sum(x) * jnp.cos(x[0])


def bent_mixture():
    return mixture_map(7, 2, 2, bend=0.05)


@eqx.filter_jit
@eqx.filter_value_and_grad
def bent_free_energy(network, target):
    return expected_free_energy(network, target, 40)


def test_free_energy_of_a_bent_mixture(unclipped):
    """Against the KL as an integral over a fixed grid, by another route.

    On a grid `b` does not move with the parameters, and its density does: the gradients
    in weights, means and factors come from the density, and not through the points.
    """
    # The trapezoidal rule converges faster than any power for smooth functions that
    # vanish at the ends.
    axis = np.linspace(-9, 9, 181)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def integral(network):
        def at(b):
            density = 0.0
            for k in range(2):
                (a, _), (c, d) = network.factors[k]
                away = b - network.means[k]
                first = away[0] / a
                second = (away[1] - c * first) / d
                normal = jnp.exp(-0.5 * (first**2 + second**2)) / (2 * jnp.pi * a * d)
                density += jax.nn.softmax(network.logits)[k] * normal
            (p, q), (r, s) = jax.jacrev(network.map)(b)
            log_p = jnp.log(density + 1e-300) - jnp.log(jnp.abs(p * s - q * r))
            return density * (log_p - double_well(network.map(b)))

        cell = (axis[1] - axis[0]) ** 2
        return cell * jnp.sum(jax.vmap(at)(jnp.asarray(grid)))

    network = bent_mixture()
    value, gradient = bent_free_energy(network, Target(double_well, 2))
    exact_value, exact_gradient = integral(network)
    np.testing.assert_allclose(value, exact_value, rtol=TOLERANCE)
    for part in ("logits", "means", "factors", "map"):
        assert_equal(getattr(gradient, part), getattr(exact_gradient, part), 1e-6)


def test_without_a_density_only_the_weights_stay(unclipped):
    """A score alone gives the same gradient, but none in the mixture's weights."""
    network = bent_mixture()
    _, dense = bent_free_energy(network, Target(double_well, 2))
    _, scored = bent_free_energy(network, ScoreTarget(jax.grad(double_well), 2))
    assert np.abs(dense.logits).max() > 0.01
    np.testing.assert_array_equal(scored.logits, 0.0)
    for part in ("means", "factors", "map"):
        assert_equal(getattr(scored, part), getattr(dense, part), TOLERANCE)


@pytest.mark.parametrize("dim", [1, 2, 3, 5])
def test_a_residual_map_knows_the_log_det_of_its_jacobian(dim):
    network = filled(dim, ResidualMap, dim, dim, 8, 1)
    points = np.random.default_rng(dim).normal(size=(20, dim))

    @jax.jit
    @jax.vmap
    def both(b):
        return network.with_log_det(b)[1], jax.jacrev(network)(b)

    found, jacobians = both(points)
    expected = np.linalg.slogdet(np.asarray(jacobians))[1]
    assert np.ptp(expected) > 0.1, "the map is linear"
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dim", [1, 3])
def test_base_log_density_is_that_of_the_mixture(dim):
    network = mixture_map(3, dim, 3, bend=0.0)
    points = 2 * np.random.default_rng(0).normal(size=(50, dim))

    @eqx.filter_jit
    def log_densities(network, points):
        inverses = network.inverse_factors()
        return jax.vmap(lambda b: network.base_log_density(b, inverses))(points)

    found = log_densities(network, jnp.asarray(points))
    logits, means, factors = map(
        np.asarray, (network.logits, network.means, network.factors)
    )
    weights = np.exp(logits) / np.exp(logits).sum()
    parts = [
        w * stats.multivariate_normal(m, L @ L.T).pdf(points)
        for w, m, L in zip(weights, means, factors, strict=True)
    ]
    np.testing.assert_allclose(found, np.log(np.sum(parts, axis=0)), rtol=1e-9)


def test_the_component_follows_the_weights():
    network = filled(0, MixtureMap, 3, 4, 1, 4)
    weights = np.array([0.1, 0.0, 0.6, 0.3])
    logits = jnp.log(jnp.asarray(weights + 1e-30)).astype(jnp.float32)
    network = eqx.tree_at(lambda n: n.logits, network, logits)
    # The quantiles of N(0, 1) in equal steps: shares are weights up to one step.
    count = 10_000
    latent = stats.norm.ppf((np.arange(count) + 0.5) / count).astype(np.float32)
    pick = jax.jit(jax.vmap(network.component))
    shares = np.bincount(pick(latent), minlength=4) / count
    np.testing.assert_allclose(shares, weights, atol=1.5 / count)
    extremes = jnp.float32([-jnp.inf, -40.0, 40.0, jnp.inf])
    np.testing.assert_array_equal(pick(extremes), [0, 0, 3, 3])
