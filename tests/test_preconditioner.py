"""Preconditioning: a bijection, its Jacobian, and scores carried through it."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import quadrature as qd
from pushforward.mcmc.initialise import from_particles
from pushforward.targets import NoiseConditionalTarget, ScoreTarget, Target
from pushforward.targets.preconditioner import Preconditioned, Preconditioner

DIM = 3
POINTS = np.random.default_rng(0).normal(size=(50, DIM))
TAILS = {"straight": np.zeros(DIM), "bent": np.array([0.0, 0.6, 1.4])}
kinds = pytest.mark.parametrize("tails", TAILS.values(), ids=TAILS)


def whitening(tails):
    rng = np.random.default_rng(1)
    factor = np.tril(0.3 * rng.normal(size=(DIM, DIM)), -1)
    return Preconditioner(
        centre=jnp.asarray(3 * rng.normal(size=DIM)),
        scale=jnp.asarray([0.1, 1.0, 7.0]),
        tails=jnp.asarray(tails),
        shift=jnp.asarray(0.2 * rng.normal(size=DIM)),
        factor=jnp.asarray(factor + np.diag([0.8, 1.1, 0.9])),
    )


@pytest.mark.usefixtures("x64")
class TestBijection:
    pytestmark = pytest.mark.once

    @kinds
    def test_round_trips(self, tails):
        w = whitening(tails)

        @jax.jit
        @jax.vmap
        def both(u):
            x = w.to_target(u)
            return x, w.from_target(x), w.to_target(w.from_target(u))

        x, there_and_back, back_and_there = both(jnp.asarray(POINTS))
        assert np.abs(np.asarray(x) - POINTS).max() > 1
        np.testing.assert_allclose(there_and_back, POINTS, atol=1e-10)
        np.testing.assert_allclose(back_and_there, POINTS, atol=1e-10)

    @kinds
    def test_log_det(self, tails):
        w = whitening(tails)
        both = jax.vmap(lambda u: (w.log_det(u), jax.jacfwd(w.to_target)(u)))
        found, jacobians = jax.jit(both)(jnp.asarray(POINTS))
        sign, expected = np.linalg.slogdet(np.asarray(jacobians))
        assert np.all(sign == 1)
        np.testing.assert_allclose(found, expected, rtol=1e-10)

    @kinds
    def test_the_score_is_the_gradient_of_the_log_density(self, tails):
        view = Preconditioned(Target(qd.quartic, DIM), whitening(tails))
        both = jax.vmap(lambda u: (view.score(u), jax.grad(view.log_density)(u)))
        found, expected = jax.jit(both)(jnp.asarray(0.5 * POINTS))
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)

    def test_the_density_keeps_its_mass(self):
        target = Target(lambda x: qd.quartic(x), 1)
        one = Preconditioner(*map(jnp.asarray, ([0.3], [0.5], [0.8], [0.1], [[0.9]])))
        grid = np.linspace(-12, 12, 4001)

        def mass(target):
            values = jax.jit(jax.vmap(target.log_density))(jnp.asarray(grid[:, None]))
            return np.exp(np.asarray(values)).sum() * (grid[1] - grid[0])

        assert mass(target) == pytest.approx(
            mass(Preconditioned(target, one)), rel=1e-9
        )

    def test_identity_and_affine(self):
        u = jnp.asarray(POINTS[0])
        identity = Preconditioner.identity(DIM)
        np.testing.assert_array_equal(identity.to_target(u), u)
        assert float(identity.log_det(u)) == 0.0
        factor = np.array([[2.0, 0, 0], [1.0, 3.0, 0], [0, 1.0, 0.5]])
        affine = Preconditioner.affine(jnp.ones(DIM), jnp.asarray(factor))
        np.testing.assert_allclose(affine.to_target(u), 1 + factor @ POINTS[0])
        assert float(affine.log_det(u)) == pytest.approx(np.log(3.0))


def test_a_view_is_a_target_without_names_or_draws():
    target = Target(qd.quartic, 2, names=("a", "b"), sample=lambda key, n: None)
    view = Preconditioned(target, Preconditioner.identity(2))
    assert (view.dim, view.names, view.can_sample) == (2, ("x[0]", "x[1]"), False)
    for seen in (target, ScoreTarget(jnp.negative, 2)):
        view = Preconditioned(seen, Preconditioner.identity(2))
        assert view.knowledge == seen.knowledge
        assert view.kind is seen.kind


def test_noise_levels_are_scaled_with_the_coordinates():
    # q = N(0, 1); in u = x / 2 noise of level sigma is noise of level 2 sigma there.
    target = NoiseConditionalTarget(
        lambda x, sigma: -x / (1 + sigma**2), 2, sigma_range=(0.1, 1.0)
    )
    view = Preconditioned(target, Preconditioner.affine(jnp.zeros(2), 2 * jnp.eye(2)))
    u = jnp.array([0.5, -1.0])
    # In training the level comes from the networks' side, in their precision.
    found = view.score(u, sigma=jnp.float32(0.3))
    np.testing.assert_allclose(found, -4 * np.asarray(u) / (1 + 0.36), rtol=1e-6)


class TestExtremes:
    """In the networks' precision nothing overflows that does not have to."""

    @staticmethod
    def of(tails):
        return jax.tree.map(lambda a: a.astype(jnp.float32), whitening(tails))

    @kinds
    def test_far_from_the_centre(self, tails):
        w = self.of(tails)
        u = np.array([0.0, 1e-30, 1.0, 30.0, -1e-30, -1.0, -30.0], np.float32)
        u = np.repeat(u[:, None], DIM, axis=1)

        @jax.jit
        @jax.vmap
        def everything(u):
            x = w.to_target(u)
            slopes = jax.jacfwd(w.to_target)(u), jax.jacrev(w.to_target)(u)
            return w.from_target(x), x, slopes, w.log_det(u), w.pull_back(x, u)

        back, *others = everything(u)
        for value in jax.tree.leaves(others):
            assert np.isfinite(value).all()
        np.testing.assert_allclose(back, u, rtol=1e-4, atol=1e-4)

    @kinds
    def test_any_point_has_coordinates(self, tails):
        w = self.of(tails)
        both = jax.vmap(lambda x: (w.from_target(x), jax.jacfwd(w.from_target)(x)))
        x = np.repeat(np.array([[-1e35], [1e35]], np.float32), DIM, axis=1)
        for value in jax.jit(both)(x):
            assert np.isfinite(value).all()

    def test_a_straight_coordinate_never_overflows(self):
        # sinh would, where it is computed and not used, and gradients be 0 * inf.
        w = self.of(TAILS["bent"])
        w = eqx.tree_at(lambda w: w.factor, w, jnp.eye(DIM, dtype=jnp.float32))
        far = np.array([1e4, 0.0, 0.0], np.float32)
        assert np.isfinite(jax.jit(jax.jacrev(w.to_target))(far)).all()


N = 8192
COLUMNS = [
    "gaussian",
    "correlated",
    "student",
    "laplace",
    "uniform",
    "tiny",
    "huge",
    "constant",
]


@functools.cache
def fits():
    """Columns of many kinds, their whitening, and their coordinates there and back."""
    rng = np.random.default_rng(2)
    z = rng.normal(size=(N, 4))
    columns = [
        z[:, 0],
        2 + 100 * (0.8 * z[:, 0] + 0.6 * z[:, 1]),
        1e-3 * rng.standard_t(2, size=N),
        rng.laplace(size=N) + 5,
        1e5 * rng.uniform(size=N),
        1e-12 * z[:, 2],
        1e12 * z[:, 3],
        np.full(N, 3.0),
    ]

    def fit(x, bend):
        w = from_particles(x, bend=bend)
        u = jax.vmap(w.from_target)(x)
        return x, w, u, jax.vmap(w.to_target)(u)

    x = jnp.asarray(np.stack(columns, axis=1), dtype=float)
    both = jax.jit(lambda x: {bend: fit(x, bend) for bend in (True, False)})(x)
    return jax.tree.map(lambda a: np.asarray(a, dtype=float), both)


class TestFromParticles:
    @pytest.mark.parametrize("bend", [True, False])
    def test_mean_zero_and_unit_covariance(self, bend):
        x, _, u, back = fits()[bend]
        moving = u[:, :-1]
        # The covariance is regularised by 1e-6; the rest is float32's rounding.
        np.testing.assert_allclose(moving.mean(axis=0), 0, atol=1e-4)
        np.testing.assert_allclose(np.cov(moving.T, ddof=0), np.eye(7), atol=1e-4)
        # A coordinate that does not move stays where it is.
        np.testing.assert_allclose(back[:, -1], 3.0, rtol=1e-6)
        assert np.isfinite(u).all()
        error = np.abs(back - x).max(axis=0)[:-1]
        assert np.all(error < 1e-3 * x.std(axis=0)[:-1])

    def test_only_heavy_tails_are_bent(self):
        """The 98 % range over the quartile range, against 1.4 times a Gaussian's 3.45.

        A quantile p of n draws has the standard error sqrt(p (1 - p) / n) / density.
        For n = 8192 that of the ratio is 2 % for the Gaussian, 5 % for Student's t with
        2 degrees of freedom, 2.2 % for Laplace. Their ratios are 3.45, 8.53 and 5.64;
        the threshold 4.83 is 20, 8 and 6 standard errors away.
        """
        heavy = ["student", "laplace"]
        tails = fits()[True][1].tails
        assert [c for c, t in zip(COLUMNS, tails, strict=True) if t > 0] == heavy
        np.testing.assert_array_equal(fits()[False][1].tails, 0)

    def test_bending_tames_the_tail(self):
        column = COLUMNS.index("student")
        assert np.abs(fits()[False][2][:, column]).max() > 20
        # The largest of 8192 Gaussians exceeds 6 with probability 2e-5.
        assert np.abs(fits()[True][2][:, column]).max() < 6
