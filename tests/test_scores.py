"""Each score-matching loss is minimised by the score, and by nothing else.

Expectations are by quadrature, in 64-bit; the test that draws at random derives its
threshold.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import quadrature as qd
from pushforward.objectives import score_matching as scores
from quadrature import Affine

in_64_bit = [pytest.mark.usefixtures("x64"), pytest.mark.once]

SIGMA = 0.4
DENOISING = {
    "denoising": scores.denoising_loss,
    "antithetic": scores.antithetic_denoising_loss,
}
LOSSES = ["exact", "sliced", *DENOISING]


def expected_loss(name, score, theta, nodes):
    """The mean of a loss over `x0 = A z + b`, its noise and its directions.

    The losses without noise of their own see `x0` alone, so they learn its score; the
    denoising ones learn that of `x0 + SIGMA eps`.
    """

    def at(w):
        z, eps = jnp.split(w, [theta.latent])
        x = jnp.asarray(theta.A) @ z + theta.b
        if name == "exact":
            return scores.exact_loss(score, x)
        if name == "sliced":
            # All sign vectors, so the mean over directions is exact.
            signs = itertools.product([-1.0, 1.0], repeat=theta.dim)
            along = jax.vmap(functools.partial(scores.sliced_loss, score, x))
            return jnp.mean(along(jnp.asarray(list(signs))))
        return DENOISING[name](score, x, eps, SIGMA)

    noise = theta.dim if name in DENOISING else 0
    return qd.expectation(at, theta.latent + noise, nodes)


class TestGaussian:
    """A linear model `s(x) = h - P x` of a Gaussian's score: the loss is quadratic."""

    pytestmark = in_64_bit
    dim = 2
    theta = Affine.random(1, 2, 2)

    @pytest.mark.parametrize("name", LOSSES)
    def test_the_minimiser_is_the_score(self, name):
        dim = self.dim

        def loss(parameters):
            P, h = parameters[: dim**2].reshape(dim, dim), parameters[dim**2 :]
            return expected_loss(name, lambda x: h - P @ x, self.theta, 2)

        start = jnp.zeros(dim**2 + dim)
        slope, curvature = jax.jit(
            lambda p: (jax.jacfwd(loss)(p), jax.jacfwd(jax.jacfwd(loss))(p))
        )(start)
        # One Newton step from anywhere is the minimiser of a convex quadratic.
        assert np.linalg.eigvalsh(curvature).min() > 1e-3
        found = np.linalg.solve(curvature, -slope)
        sigma = SIGMA if name in DENOISING else 0.0
        P = np.linalg.inv(self.theta.covariance(sigma))
        expected = np.concatenate([P.ravel(), P @ self.theta.b])
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        # The same as a statement about the gradient at the true score.
        gradient = slope + np.asarray(curvature) @ expected
        np.testing.assert_allclose(gradient, 0.0, atol=1e-9)


# Two components of unequal weight: nothing about this score is linear.
WEIGHTS, MEANS, WIDTH = np.array([0.3, 0.7]), np.array([-0.8, 1.0]), 0.8


@pytest.mark.usefixtures("x64")
@pytest.mark.once
@pytest.mark.parametrize("name", ["exact", *DENOISING])
def test_the_score_of_a_mixture_is_stationary(name):
    """Nothing is gained by adding any of a few functions to the true score."""
    smoothing = SIGMA if name in DENOISING else 0.0
    variance = WIDTH**2 + smoothing**2

    def log_density(x):
        normals = -0.5 * (x - MEANS) ** 2 / variance
        return jax.nn.logsumexp(normals + jnp.log(WEIGHTS))

    @jax.jit
    @jax.value_and_grad
    def loss(step):
        def score(x):
            extra = step[0] + step[1] * x + step[2] * jnp.sin(2 * x)
            return jax.grad(lambda x: log_density(x[0]))(x) + extra

        parts = [
            expected_loss(name, score, Affine(np.array([[WIDTH]]), mean[None]), 60)
            for mean in MEANS
        ]
        return jnp.sum(jnp.stack(parts) * WEIGHTS)

    least, gradient = loss(jnp.zeros(3))
    np.testing.assert_allclose(gradient, 0.0, atol=1e-6)
    for step in 0.05 * np.concatenate([np.eye(3), -np.eye(3)]):
        assert loss(jnp.asarray(step))[0] > least


@functools.cache
def point_gradients(loss, sigmas):
    """Mean and variance over `(x0, eps)` of the gradient, for each sigma; d = 1.

    The model is `s(x) = -x + step sin(x)`, on samples of N(0, 1). Divided by sigma^2
    the losses have the gradient of the squared error of `s`.
    """

    def at(w, sigma):
        x0, eps = jnp.split(w, 2)

        def value(step):
            return loss(lambda x: -x + step * jnp.sin(x), x0, eps, sigma) / sigma**2

        return jax.grad(value)(0.1)

    points, weights = qd.gauss_hermite(2, 24)
    over_points = jax.vmap(at, (0, None))
    found = jax.jit(jax.vmap(over_points, (None, 0)))(points, jnp.asarray(sigmas))
    found = np.asarray(found)
    mean = found @ weights
    return mean, (found - mean[:, None]) ** 2 @ weights


class TestAntithetic:
    pytestmark = in_64_bit
    sigmas = (0.1, 0.01, 0.001)

    def test_the_mean_is_the_same(self):
        plain, paired = (point_gradients(f, self.sigmas)[0] for f in DENOISING.values())
        np.testing.assert_allclose(paired, plain, rtol=1e-6)

    def test_the_variance_has_a_limit(self):
        plain, paired = (point_gradients(f, self.sigmas)[1] for f in DENOISING.values())
        # Ten times less noise: a hundred times the variance, or the same.
        np.testing.assert_allclose(plain[1:] / plain[:-1], 100, rtol=0.1)
        np.testing.assert_allclose(paired[1:] / paired[:-1], 1, rtol=0.1)


@pytest.mark.usefixtures("x64")
@pytest.mark.once
@pytest.mark.parametrize("dim", [1, 4])
def test_divergence(dim):
    rng = np.random.default_rng(dim)
    matrix, point = jnp.asarray(rng.normal(size=(dim, dim))), rng.normal(size=dim)

    def field(x):
        return jnp.tanh(matrix @ x) * x + jnp.sum(x**2)

    @jax.jit
    def all_ways(x):
        signs = jnp.asarray(list(itertools.product([-1.0, 1.0], repeat=dim)))
        sliced = jax.vmap(functools.partial(scores.sliced_divergence, field, x))(signs)
        exact = scores.divergence(field, x)
        return exact, jnp.mean(sliced), jax.jacfwd(field)(x)

    exact, sliced, jacobian = all_ways(jnp.asarray(point))
    np.testing.assert_allclose(exact, np.trace(jacobian), rtol=1e-12)
    np.testing.assert_allclose(sliced, np.trace(jacobian), rtol=1e-12)


@pytest.mark.parametrize(
    ("estimator", "antithetic"),
    [("denoising", True), ("denoising", False), ("exact", True), ("sliced", True)],
)
def test_score_loss_learns_the_score_of_the_noisy_samples(estimator, antithetic):
    """By its name, on random draws: the gradient at the true score has mean zero.

    3 numbers for each of 4 estimators, each at 5 standard errors of 4000 draws: chance
    exceeds one of them with probability 7e-6. The precision without the noise is 16 %
    larger, which moves the gradient in it by 7 standard errors at least.
    """
    width, mean, sigma = 1.0, 0.5, 0.4
    precision = 1 / (width**2 + sigma**2)

    @functools.partial(jax.vmap, in_axes=(0, 0, None))
    @functools.partial(jax.grad, argnums=2)
    def gradients(x0, key, parameters):
        def score(x):
            # The last tells whether directions are independent across coordinates.
            return parameters[0] * (parameters[1] - x) + parameters[2] * x[::-1]

        return scores.score_loss(
            estimator, score, x0, sigma, key, antithetic=antithetic
        )

    x_key, noise_key = jax.random.split(jax.random.key(3))
    x0 = mean + width * jax.random.normal(x_key, (4000, 2))
    keys = jax.random.split(noise_key, 4000)
    gradients = jax.jit(gradients)

    def z_scores(precision):
        found = np.asarray(gradients(x0, keys, jnp.array([precision, mean, 0.0])))
        return found.mean(axis=0) / (found.std(axis=0) / np.sqrt(len(found)))

    assert np.abs(z_scores(precision)).max() < 5
    assert abs(z_scores(1 / width**2)[0]) > 5, "it would not notice"
