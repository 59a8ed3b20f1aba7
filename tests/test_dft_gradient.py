"""The DFT loss has the gradient of the Fisher divergence (paper, Theorem 1).

Proved for affine samplers of targets that are not Gaussian. Expectations are sums over
Gauss-Hermite nodes, so there is no sampling error to hide in; the few statements about
random batches say so and derive their thresholds.
"""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadrature import Affine, assert_equal, expectation, gauss_hermite, quartic, waves

from pushforward.errors import UsageError
from pushforward.methods import DFT
from pushforward.methods.dft import dft_loss
from pushforward.networks import AffineMap
from pushforward.targets import MinibatchTarget, Target
from pushforward.targets.coordinates import Whitened, Whitening

FORMS = ["denoising", "simplified", "divergence"]
SIGMA = 0.3
# A hundred times stricter than the 1e-6 that was promised; rounding leaves about 1e-14.
TOLERANCE = 1e-8

# (log density, coordinates, latent numbers, nodes an axis). The score of `quartic` has
# degree 3 and its square 6: 4 nodes are exact. For `waves`, doubling the nodes moves
# nothing by more than 1e-9.
CASES = [
    pytest.param(quartic, 1, 1, 4, id="quartic-1"),
    pytest.param(quartic, 1, 2, 4, id="quartic-1-from-2"),
    pytest.param(quartic, 2, 2, 4, id="quartic-2"),
    pytest.param(quartic, 2, 1, 4, id="quartic-2-from-1"),
    pytest.param(quartic, 3, 3, 4, id="quartic-3"),
    pytest.param(waves, 1, 1, 24, id="waves-1"),
    pytest.param(waves, 2, 1, 24, id="waves-2-from-1"),
]
in_64_bit = [pytest.mark.usefixtures("x64"), pytest.mark.once]


def loss_gradient(theta, first, second, nodes, sigma=SIGMA, **options):
    """The gradient in `(A, b)` of the expected `dft_loss`, through `x` alone."""

    def loss(theta):
        def at(w):
            z, eps = theta.split(w)
            x = theta(z) + sigma * eps
            score = theta.frozen_score(sigma)
            return dft_loss(x, -eps / sigma, score, first, second, **options)

        dim, latent = theta.A.shape
        return expectation(at, dim + latent, nodes)

    return jax.jit(jax.grad(loss))(theta)


def mean_square(theta, field, nodes, *, frozen, sigma=SIGMA):
    """`E |field(x) - s(x)|^2` over the noisy sampler's own Gaussian.

    With `frozen`, `s` is a function of `x` alone; else it depends on `theta` too, and
    this is the Fisher divergence.
    """
    score = theta.frozen_score(sigma) if frozen else theta.score(sigma)

    def at(w):
        x = theta.at(w, sigma)
        return jnp.sum((field(x) - score(x)) ** 2)

    return expectation(at, theta.b.shape[0], nodes)


def fisher_gradient(theta, field, nodes):
    return jax.jit(
        jax.grad(lambda theta: mean_square(theta, field, nodes, frozen=False))
    )(theta)


def first_gradient(theta, field, nodes):
    """Grad1: through `x` alone."""
    return jax.jit(
        jax.grad(lambda theta: mean_square(theta, field, nodes, frozen=True))
    )(theta)


def second_gradient(theta, field, nodes):
    """Grad2, `E[-2 (s_q - s)' ds/dtheta]`, with `x` held fixed."""

    def loss(theta):
        def at(w):
            x = jax.lax.stop_gradient(theta).at(w, SIGMA)
            gap = field(x) - theta.frozen_score(SIGMA)(x)
            return -2 * jnp.sum(gap * theta.score(SIGMA)(x))

        return expectation(at, theta.b.shape[0], nodes)

    return jax.jit(jax.grad(loss))(theta)


@functools.cache
def _exact(case):
    log_density, dim, latent, nodes = case
    theta = Affine.random(dim + 10 * latent, dim, latent)
    field = jax.grad(log_density)
    one, two = (g(theta, field, nodes) for g in (first_gradient, second_gradient))
    return theta, field, one, two


class TestTheorem:
    pytestmark = in_64_bit

    @pytest.mark.parametrize(("log_density", "dim", "latent", "nodes"), CASES)
    def test_full_loss_has_the_gradient_of_the_fisher_divergence(
        self, log_density, dim, latent, nodes
    ):
        theta, field, _, _ = _exact((log_density, dim, latent, nodes))
        expected = fisher_gradient(theta, field, nodes)
        for form in FORMS:
            actual = loss_gradient(theta, field, field, nodes, form=form)
            assert_equal(actual, expected, TOLERANCE)

    @pytest.mark.parametrize(("log_density", "dim", "latent", "nodes"), CASES)
    def test_each_part_has_its_own_gradient(self, log_density, dim, latent, nodes):
        theta, field, one, two = _exact((log_density, dim, latent, nodes))
        actual = loss_gradient(theta, field, field, nodes, w1=0.0)
        assert_equal(actual, two, TOLERANCE)
        actual = loss_gradient(theta, field, field, nodes, w2=0.0)
        assert_equal(actual, one, TOLERANCE)

    @pytest.mark.parametrize(("w1", "w2"), [(0.0, 1.0), (-0.4, 1.0), (2.0, 0.5)])
    def test_denoising_and_divergence_agree_for_unequal_weights(self, w1, w2):
        theta, field, one, two = _exact((quartic, 2, 2, 4))
        expected = jax.tree.map(lambda a, b: w1 * a + w2 * b, one, two)
        for form in ("denoising", "divergence"):
            actual = loss_gradient(theta, field, field, 4, w1=w1, w2=w2, form=form)
            assert_equal(actual, expected, TOLERANCE)

    def test_the_parts_differ_so_that_weights_matter(self):
        _, _, one, two = _exact((quartic, 2, 2, 4))
        assert np.abs(one.A - two.A).max() > 0.1 * np.abs(one.A).max()

    def test_the_second_part_is_zero_in_value(self):
        # Lemma 1: E[u(x).(s(x) - c)] = 0 for every u, where s is the true score.
        theta, field, _, _ = _exact((quartic, 2, 2, 4))

        def at(w):
            z, eps = theta.split(w)
            x = theta(z) + SIGMA * eps
            score = theta.score(SIGMA)
            return dft_loss(x, -eps / SIGMA, score, field, field, w1=0.0)

        assert abs(float(expectation(at, 4, 4))) < 1e-12

    def test_a_wrong_score_gives_a_wrong_gradient(self):
        # The score of the sampler without its noise: the test would notice.
        theta, field, _, _ = _exact((quartic, 2, 2, 4))
        expected = fisher_gradient(theta, field, 4)
        with pytest.raises(AssertionError):
            wrong = loss_gradient(theta, field, field, 4, sigma=0.5 * SIGMA)
            assert_equal(wrong, expected, 1e-3)


def test_simplified_form_refuses_unequal_weights():
    with pytest.raises(UsageError, match="w1 = w2"):
        DFT(form="simplified", w1=0.0)


# Minibatches of one of four observations, all of which can be enumerated.
DATA = np.array([-1.5, -0.2, 0.4, 1.9])


@functools.cache
def _minibatches():
    """A target seen through single observations, and its score from each of them."""
    # A likelihood whose curvature depends on the datum: else the minibatch variance
    # would not depend on x, and there would be no bias.
    target = MinibatchTarget(
        lambda x: -0.5 * jnp.sum(x**2),
        lambda x, datum: -0.05 * jnp.sum((x - datum) ** 4) + 0.1 * datum * x[0] ** 2,
        jnp.asarray(DATA),
        dim=2,
        batch_size=1,
    )
    # Keys differ in what they draw; these four draw each observation once.
    keys, at = {}, jnp.array([0.3, -0.7])
    for i in range(100):
        key = jax.random.key(i)
        keys.setdefault(tuple(np.asarray(target.score(at, key=key))), key)
    assert len(keys) == len(DATA)
    fields = [functools.partial(target.score, key=key) for key in keys.values()]
    return target, fields


def _mean(gradients):
    return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *gradients)


class TestMinibatches:
    pytestmark = in_64_bit
    nodes = 4

    def expected_gradient(self, pairs, **options):
        """The mean over equally likely pairs of minibatches."""
        theta = Affine.random(5, 2, 2)

        def first(pair):
            return [field for field in _minibatches()[1]][pair]

        gradients = [
            loss_gradient(theta, first(a), first(b), self.nodes, **options)
            for a, b in pairs
        ]
        return theta, _mean(gradients)

    @pytest.mark.parametrize(
        "options",
        [
            {"form": "denoising"},
            {"form": "simplified"},
            {"form": "divergence"},
            {"w1": 2.0, "w2": 0.5},
        ],
        ids=str,
    )
    def test_two_minibatches_give_no_bias_and_one_gives_its_variance(self, options):
        target, fields = _minibatches()
        four = range(len(DATA))
        theta, two = self.expected_gradient(itertools.product(four, four), **options)
        exact = loss_gradient(theta, target.score, target.score, self.nodes, **options)
        assert_equal(two, exact, TOLERANCE)

        def variance(theta):
            def at(w):
                x = theta.at(w, SIGMA)
                scores = jnp.stack([field(x) for field in fields])
                return jnp.sum(jnp.var(scores, axis=0))

            return expectation(at, 2, self.nodes)

        _, one = self.expected_gradient([(i, i) for i in four], **options)
        bias = jax.tree.map(lambda a, b: a - b, one, exact)
        w1 = options.get("w1", 1.0)
        predicted = jax.tree.map(lambda a: w1 * a, jax.jit(jax.grad(variance))(theta))
        assert_equal(bias, predicted, TOLERANCE)

    def test_the_second_part_alone_needs_one_minibatch(self):
        target, _ = _minibatches()
        theta, one = self.expected_gradient([(i, i) for i in range(4)], w1=0.0)
        exact = loss_gradient(theta, target.score, target.score, self.nodes, w1=0.0)
        assert_equal(one, exact, TOLERANCE)


def _per_draw_gradients(antithetic, sigma, nodes):
    """The gradient of each draw of a 1-d sampler at quadrature nodes, and weights."""
    theta = Affine.random(3, 1, 1)
    field = jax.grad(quartic)
    signs = (1, -1) if antithetic else (1,)

    def at(theta, w):
        z, eps = theta.split(w)
        losses = [
            dft_loss(
                theta(z) + sign * sigma * eps, -sign * eps / sigma,
                theta.frozen_score(sigma), field, field,
            )
            for sign in signs
        ]  # fmt: skip
        return sum(losses) / len(signs)

    points, weights = gauss_hermite(2, nodes)
    gradients = jax.vmap(jax.grad(at), (None, 0))(theta, points)
    flat = jnp.stack([gradients.A[:, 0, 0], gradients.b[:, 0]], axis=1)
    mean = weights @ flat
    return np.asarray(mean), np.asarray(weights @ (flat - mean[None]) ** 2)


class TestAntitheticNoise:
    @pytest.mark.usefixtures("x64")
    @pytest.mark.once
    def test_same_mean_and_bounded_variance(self):
        # The gradient in A has degree 6, its square 12: 7 nodes are exact.
        plain, paired = {}, {}
        for sigma in (0.1, 0.01):
            plain[sigma] = _per_draw_gradients(False, sigma, 7)
            paired[sigma] = _per_draw_gradients(True, sigma, 7)
            np.testing.assert_allclose(plain[sigma][0], paired[sigma][0], rtol=1e-9)
        # A pair costs two draws: it pays where its variance is less than half. The
        # plain variance grows like 1/sigma^2, the paired one has a limit.
        for sigma, gain in ((0.1, 2), (0.01, 200)):
            assert np.all(paired[sigma][1] * gain * 2 < plain[sigma][1])
        np.testing.assert_allclose(plain[0.01][1] / plain[0.1][1], 100, rtol=0.1)
        np.testing.assert_allclose(paired[0.01][1] / paired[0.1][1], 1, rtol=0.1)

    def test_the_method_itself_draws_these_gradients(self):
        """What `DFT` differentiates in training, against quadrature.

        The mean of `chunks` independent batch gradients has a standard error that the
        batches themselves tell. At 5 standard errors, two-sided, each of the 4
        comparisons of means fails by chance with probability 6e-7 (Student's t with 399
        degrees of freedom: 9e-7). A batch of 64 draws is near enough to Gaussian for its
        variance to be known to a factor 1 +- 5 sqrt(2 (1 + kappa / 2) / 399), under 2
        for an excess kurtosis kappa as large as 14.
        """
        sigma, batch, chunks = 0.1, 64, 400
        with jax.enable_x64(True):
            theta = Affine.random(3, 1, 1)
            exact = {a: _per_draw_gradients(a, sigma, 7) for a in (True, False)}
            precision = float(1 / theta.covariance(sigma)[0, 0])
            slope, shift = float(theta.A[0, 0]), float(theta.b[0])

        network = eqx.tree_at(
            lambda n: (n.mean, n.lower),
            AffineMap(1),
            (jnp.float32([shift]), jnp.log(jnp.float32([[slope]]))),
        )
        target = Target(quartic, dim=1)
        view = Whitened(target, Whitening.identity(1))
        score = _GaussianScore(jnp.float32(precision), jnp.float32(shift))
        keys = jax.random.split(jax.random.key(0), chunks)
        for antithetic in (True, False):
            method = DFT(batch_size=batch, noise_scale=sigma, antithetic=antithetic)

            @eqx.filter_jit
            def gradients(keys, method=method):
                def one(key):
                    loss = lambda n: method._sampler_loss(n, score, view, target, key)[0]  # noqa: E731
                    return eqx.filter_grad(loss)(network)

                return jax.vmap(one)(keys)

            found = gradients(keys)
            # `lower` holds log A on its diagonal: d/dA = d/d(log A) / A.
            found = np.stack([found.lower[:, 0, 0] / slope, found.mean[:, 0]], axis=1)
            mean, variance = exact[antithetic]
            error = found.std(axis=0, ddof=1) / np.sqrt(chunks)
            assert np.all(np.abs(found.mean(axis=0) - mean) < 5 * error)
            ratio = found.var(axis=0, ddof=1) * batch / variance
            assert np.all((ratio > 0.5) & (ratio < 2)), ratio


class _GaussianScore(eqx.Module):
    """The closed-form score in the place of a score network."""

    precision: jax.Array
    mean: jax.Array
    conditional: bool = False

    def __call__(self, x):
        return -self.precision * (x - self.mean)
