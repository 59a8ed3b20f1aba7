"""The DFT loss has the gradient of the Fisher divergence (paper, Theorem 1).

Proved for affine samplers of targets that are not Gaussian. Expectations are sums over
Gauss-Hermite nodes or over all minibatches, so there is no sampling error to hide in;
the tests that draw at random derive their thresholds.
"""

import functools
import itertools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import quadrature as qd
from pushforward.errors import UsageError
from pushforward.methods import DFT
from pushforward.networks import AffineMap, ScoreMLP
from pushforward.objectives import DFT as DFTObjective
from pushforward.objectives import AbstractScoreObjective, Noise, ScoreBased
from pushforward.objectives.dft import dft_loss
from pushforward.targets import MinibatchTarget, Target
from pushforward.targets.preconditioner import Preconditioned, Preconditioner
from quadrature import Affine, assert_equal

SIGMA = 0.3
# A hundred times stricter than the 1e-6 that is promised; rounding leaves about 1e-14.
TOLERANCE = 1e-8

in_64_bit = [pytest.mark.usefixtures("x64"), pytest.mark.once]

# Options of `dft_loss`, by name.
FULL = {form: {"form": form} for form in ("denoising", "simplified", "divergence")}
SECOND = {
    "denoising, second part": {"w1": 0.0},
    "divergence, second part": {"w1": 0.0, "form": "divergence"},
}
WEIGHTED = {
    "denoising, weighted": {"w1": 2.0, "w2": 0.5},
    "divergence, weighted": {"w1": 2.0, "w2": 0.5, "form": "divergence"},
}
VARIANTS = FULL | SECOND | WEIGHTED


class Case(NamedTuple):
    target: str
    dim: int
    latent: int
    # The score of `quartic` has degree 3 and its square 6: 4 nodes an axis are exact.
    # Those of `waves` have converged: the two sides are equal only where they have.
    nodes: int


CASES = [
    Case("quartic", 1, 1, 4),
    Case("quartic", 2, 1, 4),
    Case("quartic", 3, 3, 4),
    Case("waves", 1, 2, 24),
]
cases = pytest.mark.parametrize(
    "case", CASES, ids=lambda c: f"{c[0]}-{c[1]}-from-{c[2]}"
)


def loss_gradients(theta, first, second, nodes, variants, sigma=SIGMA):
    """Expected `dft_loss`es, and their gradients in `(A, b)` through `x` alone.

    Args:
        theta: where, and of which sampler.
        first: the target's score.
        second: the same, perhaps from another minibatch.
        nodes: quadrature nodes an axis.
        variants: options of `dft_loss` by name.
        sigma: the noise scale.
    """
    score = theta.frozen_score(sigma)

    def losses(parameters):
        def at(w):
            z, eps = jnp.split(w, [theta.latent])
            x = parameters.A @ z + parameters.b + sigma * eps
            return {
                name: dft_loss(x, -eps / sigma, score, first, second, **options)
                for name, options in variants.items()
            }

        values = qd.expectation(at, theta.latent + theta.dim, nodes)
        return values, values

    parameters = jax.tree.map(jnp.asarray, theta)
    gradients, values = jax.jit(jax.jacfwd(losses, has_aux=True))(parameters)
    return values, gradients


class Exact(NamedTuple):
    """The Fisher divergence by NumPy, and its gradient: as a whole and in two parts."""

    value: float
    fisher: Affine
    first: Affine
    second: Affine


def exact_gradients(theta, score, nodes, sigma=SIGMA):
    x, weights = theta.points(sigma, nodes)

    def fisher(moving):
        x, _ = moving.points(sigma, nodes)
        return weights @ np.sum((score(x) - moving.score(x, sigma)) ** 2, axis=1)

    def through_x(moving):
        x, _ = moving.points(sigma, nodes)
        return weights @ np.sum((score(x) - theta.score(x, sigma)) ** 2, axis=1)

    def through_the_score(moving):
        gap = score(x) - theta.score(x, sigma)
        return weights @ np.sum(-2 * gap * moving.score(x, sigma), axis=1)

    parts = (fisher, through_x, through_the_score)
    return Exact(fisher(theta), *(qd.complex_step(part, theta) for part in parts))


@functools.cache
def proof(case):
    """Both sides of the theorem: one compiled program a case."""
    theta = Affine.random(case.dim + 10 * case.latent, case.dim, case.latent)
    field = jax.grad(getattr(qd, case.target))
    score = getattr(qd, f"{case.target}_score")
    values, found = loss_gradients(theta, field, field, case.nodes, VARIANTS)
    return values, found, exact_gradients(theta, score, case.nodes)


class TestTheorem:
    pytestmark = in_64_bit

    @cases
    @pytest.mark.parametrize("form", FULL)
    def test_the_full_loss_has_the_gradient_of_the_fisher_divergence(self, case, form):
        _, found, exact = proof(case)
        assert_equal(found[form], exact.fisher, TOLERANCE)

    @cases
    @pytest.mark.parametrize("form", SECOND)
    def test_the_second_part_alone_has_grad2(self, case, form):
        _, found, exact = proof(case)
        assert_equal(found[form], exact.second, TOLERANCE)

    @cases
    @pytest.mark.parametrize("form", WEIGHTED)
    def test_weights_weigh_grad1_and_grad2(self, case, form):
        _, found, exact = proof(case)
        expected = jax.tree.map(lambda a, b: 2 * a + 0.5 * b, exact.first, exact.second)
        assert_equal(found[form], expected, TOLERANCE)

    @cases
    def test_it_would_notice(self, case):
        # Neither part is small, and neither is the other: weights matter.
        _, _, exact = proof(case)
        size = np.abs(exact.fisher.A).max()
        assert np.abs(exact.first.A).max() > 0.05 * size
        assert np.abs(exact.second.A).max() > 0.05 * size
        assert np.abs(exact.first.A - exact.second.A).max() > 0.05 * size

    def test_the_divergence_form_needs_no_noise(self):
        # Fisher-NS: the limit of all this at sigma = 0.
        theta, field = Affine.random(1, 1, 1), jax.grad(qd.quartic)
        variants = {"divergence": {"form": "divergence"}}
        _, found = loss_gradients(theta, field, field, 4, variants, sigma=0.0)
        exact = exact_gradients(theta, qd.quartic_score, 4, sigma=0.0)
        assert_equal(found["divergence"], exact.fisher, TOLERANCE)

    @cases
    @pytest.mark.parametrize("form", ["denoising", "divergence"])
    def test_the_value_is_the_fisher_divergence(self, case, form):
        values, _, exact = proof(case)
        np.testing.assert_allclose(values[form], exact.value, rtol=TOLERANCE)
        # Lemma 1: E[u(x).(s(x) - c)] = 0 for every u, where s is the true score.
        second = values[f"{form}, second part"]
        np.testing.assert_allclose(second / exact.value, 0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"form": "simplified", "w1": 0.0}, r"w1 = w2 only, but w1 is 0\.0 and w2 is"),
        ({"noise": 1.0}, r"less than 1, .* not 1\.0"),
        ({"noise": -0.1}, r"at least 0 and .* not -0\.1"),
        ({"noise": 0.0, "form": "divergence"}, "use estimator='exact'"),
        ({"noise": 0.0, "estimator": "exact"}, "use form='divergence'"),
    ],
)
def test_what_cannot_be_is_refused(options, sentence):
    with pytest.raises(UsageError, match=sentence):
        DFT(**options)


# Minibatches of one out of four observations: all of them, and all pairs.
DATA = np.array([-1.5, -0.2, 0.4, 1.9])
MINIBATCH = FULL | {"denoising, second part": SECOND["denoising, second part"]}


def single_scores(x):
    """The score from each single observation, at many points, in NumPy."""
    likelihood = -0.2 * (x[:, None, :] - DATA[None, :, None]) ** 3
    likelihood[..., 0] += 0.2 * DATA[None, :] * x[:, None, 0]
    return len(DATA) * likelihood - x[:, None, :]


@functools.cache
def minibatch_proof():
    """The gradient for every pair of minibatches, and the exact ones."""
    # The likelihood's curvature depends on the datum: else the variance over
    # minibatches would not depend on x, and there would be no bias.
    target = MinibatchTarget(
        lambda x: -0.5 * jnp.sum(x**2),
        lambda x, y: -0.05 * jnp.sum((x - y) ** 4) + 0.1 * y * x[0] ** 2,
        DATA,
        dim=2,
        batch_size=1,
    )
    # Keys that pick each observation once, found by what they pick.
    x = np.array([0.3, -0.7])
    keys = jax.random.split(jax.random.key(0), 64)
    picked = jax.jit(jax.vmap(lambda k: target.score(jnp.asarray(x), key=k)))(keys)
    away = np.abs(np.asarray(picked)[:, None] - single_scores(x[None])).max(axis=2)
    assert away.min(axis=1).max() < 1e-12, "a minibatch that is no observation"
    assert away.min(axis=0).max() < 1e-12, "an observation that is in no minibatch"
    keys = keys[np.argmin(away, axis=0)]

    theta = Affine.random(5, 2, 2)

    @jax.jit
    @jax.vmap
    def gradients(a, b):
        first, second = (functools.partial(target.score, key=k) for k in (a, b))
        return loss_gradients(theta, first, second, 4, MINIBATCH)[1]

    a, b = np.array(list(itertools.product(range(len(DATA)), repeat=2))).T
    found = gradients(keys[a], keys[b])
    one = jax.tree.map(lambda g: np.asarray(g)[a == b].mean(axis=0), found)
    two = jax.tree.map(lambda g: np.asarray(g).mean(axis=0), found)

    def variance(moving):
        x, weights = moving.points(SIGMA, 4)
        scores = single_scores(x)
        spread = scores - scores.mean(axis=1, keepdims=True)
        return weights @ (spread**2).sum(axis=2).mean(axis=1)

    exact = exact_gradients(theta, lambda x: single_scores(x).mean(axis=1), 4)
    return one, two, exact, qd.complex_step(variance, theta)


class TestMinibatches:
    pytestmark = in_64_bit

    @staticmethod
    def proof(variant):
        one, two, exact, variance = minibatch_proof()
        w1 = MINIBATCH[variant].get("w1", 1.0)
        expected = jax.tree.map(lambda a, b: w1 * a + b, exact.first, exact.second)
        return one[variant], two[variant], expected, variance, w1

    @pytest.mark.parametrize("variant", MINIBATCH)
    def test_two_give_no_bias(self, variant):
        _, two, expected, _, _ = self.proof(variant)
        assert_equal(two, expected, TOLERANCE)

    @pytest.mark.parametrize("variant", MINIBATCH)
    def test_one_adds_the_gradient_of_its_variance(self, variant):
        one, _, expected, variance, w1 = self.proof(variant)
        biased = jax.tree.map(lambda a, b: a + w1 * b, expected, variance)
        assert_equal(one, biased, TOLERANCE)

    def test_the_bias_is_not_small(self):
        _, _, expected, variance, _ = self.proof("denoising")
        assert np.abs(variance.A).max() > 0.1 * np.abs(expected.A).max()


SLOPE, SHIFT = 0.8, 0.25


SIGMAS = (0.1, 0.01)


@functools.cache
def draw_gradients():
    """Mean and variance over `(z, eps)` of one draw's gradient in `(A, b)`; d = 1.

    By sigma and by whether the draw is a pair.
    """
    field = jax.grad(qd.waves)

    def losses(theta, w, sigma):
        z, eps = jnp.split(w, 2)
        x0 = theta[0] * z + theta[1]

        def score(x):
            return -(x - SHIFT) / (SLOPE**2 + sigma**2)

        def loss(sign):
            x = x0 + sign * sigma * eps
            return dft_loss(x, -sign * eps / sigma, score, field, field)

        there, back = loss(1.0), loss(-1.0)
        return {False: there, True: 0.5 * (there + back)}

    points, weights = qd.gauss_hermite(2, 32)
    gradients = jax.vmap(jax.jacfwd(losses), (None, 0, None))
    gradients = jax.jit(jax.vmap(gradients, (None, None, 0)))
    found = gradients(jnp.array([SLOPE, SHIFT]), points, jnp.array(SIGMAS))

    def moments(values):
        mean = weights @ values
        return mean, weights @ (values - mean) ** 2

    return {
        (sigma, paired): moments(np.asarray(found[paired][i]))
        for i, sigma in enumerate(SIGMAS)
        for paired in (False, True)
    }


class TestAntitheticNoise:
    pytestmark = in_64_bit

    @pytest.mark.parametrize("sigma", SIGMAS)
    def test_the_mean_is_the_same(self, sigma):
        plain, paired = (draw_gradients()[sigma, p][0] for p in (False, True))
        np.testing.assert_allclose(paired, plain, rtol=TOLERANCE)

    def test_the_variance_is_less_and_bounded(self):
        plain, paired = (
            [draw_gradients()[sigma, p][1] for sigma in SIGMAS] for p in (False, True)
        )
        # A pair costs as much as two draws, so it must do better than half.
        assert np.all(paired[0] < 0.5 * plain[0])
        # The noise of c is of order 1/sigma; in a pair its first order cancels.
        np.testing.assert_allclose(plain[1] / plain[0], 100, rtol=0.1)
        np.testing.assert_allclose(paired[1] / paired[0], 1, rtol=0.1)


@pytest.mark.parametrize("antithetic", [True, False])
def test_the_method_draws_these_gradients(antithetic):
    """What `DFT` differentiates in training, on random batches, against quadrature.

    There are 4 comparisons of a mean with its expectation, each at 5 standard errors
    told by 400 independent batches: Student's t exceeds that with probability 9e-7.
    A draw's gradient has a kurtosis below 80 (by quadrature), so that of a batch of 64
    has an excess below 80 / 64; the variance over 400 batches is then known with the
    relative standard error sqrt((2 + 80 / 64) / 400) = 0.09; 0.5 to 2 allows 5 of them.
    """
    sigma, size, batches = 0.1, 64, 400
    with jax.enable_x64(True):
        mean, variance = draw_gradients()[sigma, antithetic]

    network = AffineMap(1)
    parameters = (jnp.float32([SHIFT]), jnp.log(jnp.float32([[SLOPE]])))
    network = eqx.tree_at(lambda n: (n.mean, n.lower), network, parameters)
    # Without hidden layers a score network is linear: here the sampler's own score.
    precision = 1 / (SLOPE**2 + sigma**2)
    score = ScoreMLP(1, width=1, depth=0, key=jax.random.key(0))
    layer = (jnp.float32([[1 - precision]]), jnp.float32([precision * SHIFT]))
    score = eqx.tree_at(
        lambda s: (s.mlp.layers[0].weight, s.mlp.layers[0].bias), score, layer
    )
    losses = ScoreBased(DFTObjective(), Noise(sigma, antithetic))
    target = Target(qd.waves, dim=1)
    view = Preconditioned(target, Preconditioner.identity(1))

    @jax.jit
    @jax.vmap
    def gradients(key):
        def loss(network):
            return losses.sampler_loss(network, score, view, key, size)[0]

        return eqx.filter_grad(loss)(network)

    found = gradients(jax.random.split(jax.random.key(1), batches))
    # AffineMap keeps log A: d/dA = d/d(log A) / A.
    found = np.stack([found.lower[:, 0, 0] / SLOPE, found.mean[:, 0]], axis=1)
    error = found.std(axis=0, ddof=1) / np.sqrt(batches)
    assert np.all(np.abs(found.mean(axis=0) - mean) < 5 * error)
    ratio = found.var(axis=0, ddof=1) * size / variance
    assert np.all((ratio > 0.5) & (ratio < 2)), ratio


def test_the_method_gives_each_draw_two_minibatches():
    """An objective that tells whether its two scores come from one observation.

    Of N = 4 observations two independent picks agree with probability 1/4. Over 4000
    draws the share has standard deviation 0.0068, and 5 of them are 0.034.
    """

    class Probe(AbstractScoreObjective):
        @property
        def minibatches(self):
            return 2

        def __call__(self, x, conditional, score, first, second):
            same = (first(x)[0] == second(x)[0]).astype(x.dtype)
            return jax.lax.stop_gradient(same) * jnp.sum(x)

    target = MinibatchTarget(
        lambda x: -0.5 * jnp.sum(x**2),
        lambda x, y: jnp.sum(x * y),
        jnp.arange(4.0),
        dim=1,
        batch_size=1,
    )
    view = Preconditioned(target, Preconditioner.identity(1))
    score = ScoreMLP(1, width=1, depth=0, key=jax.random.key(0))
    losses = ScoreBased(Probe(), Noise(0.1))

    @jax.jit
    def share(key):
        # The gradient in the map's mean is the mean of the objective's own.
        def loss(network):
            return losses.sampler_loss(network, score, view, key, 4000)[0]

        return eqx.filter_grad(loss)(AffineMap(1)).mean[0]

    assert abs(float(share(jax.random.key(1))) - 0.25) < 0.034


@pytest.mark.once
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("form", ["denoising", "simplified", "divergence"])
def test_the_damped_loss_has_the_gradient_of_the_weighted_divergence(form):
    """On a line: `d/dm E_p[w |s_q - s|^2]`; p = N(m, t^2 + sigma^2), q = N(0, 1)."""
    m, t, damping = 0.7, 0.8, 0.5
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    v = t**2 + SIGMA**2

    def divergence(m):
        x = m + v**0.5 * nodes
        w = (1 + x**2) ** -damping
        return jnp.sum(weights * w * (-x + (x - m) / v) ** 2)

    def loss(x, eps):
        q, p = (lambda y: -y), (lambda y: -(y - m) / v)
        options = {"form": form, "damping": damping}
        return dft_loss(x, -eps / SIGMA, p, q, q, **options)

    z, eps = (a.ravel()[:, None] for a in np.meshgrid(nodes, nodes))
    both = np.outer(weights, weights).ravel()
    # `dx / dm = 1`.
    slopes = jax.vmap(jax.grad(loss))(m + t * z + SIGMA * eps, eps)[:, 0]
    np.testing.assert_allclose(both @ slopes, jax.grad(divergence)(m), rtol=1e-5)


def test_a_minibatch_score_gives_no_weight():
    line = Target(lambda x: -0.5 * jnp.sum(x**2), dim=1)
    data = MinibatchTarget(
        lambda m: -0.5 * jnp.sum(m**2),
        lambda m, y: -0.5 * jnp.sum((y - m) ** 2),
        jnp.zeros((20, 1)),
        dim=1,
        batch_size=5,
    )
    assert DFT().resolve(line).objective.objective.damping == 0.5
    assert DFT().resolve(data).objective.objective.damping == 0.0
    with pytest.raises(UsageError, match="damping must be at least 0"):
        DFTObjective(damping=-1.0)
