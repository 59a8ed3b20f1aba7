"""The built-in densities against formulas and distributions of SciPy's."""

import functools
import itertools
import math
import subprocess
import sys
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, linalg, stats

from pushforward.errors import UsageError
from pushforward.targets import catalogue, planar, schools

N = 20_000
MIXTURES = ["mog2", "ring", "grid", "gmm40"]

# Draws are fixed by the seed, so these tests fail always or never; the chance that
# right code had met an unlucky seed is kept to 1 in 1000 over the whole file. There are
# fewer than 1000 z-scores and p-values in it.
LEVEL = 1e-3 / 1000
Z_BOUND = stats.norm.isf(LEVEL / 2)


class Evaluated(NamedTuple):
    """A built-in target at its own exact draws and at chosen points."""

    draws: np.ndarray
    points: np.ndarray
    log_density: np.ndarray
    score: np.ndarray
    hessian: np.ndarray


@functools.cache
def evaluate(name):
    """Draws from a target and evaluates it, once and compiled: most of the time."""
    target = catalogue.get(name)
    key = jax.random.key(catalogue.names().index(name))
    draws = np.asarray(eqx.filter_jit(target.sample)(key, N))
    d = draws.shape[1]
    around = draws[:100] + np.random.default_rng(0).normal(size=(100, d))
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=2)))
    signs = np.pad(signs, ((0, 0), (0, d - 2)), mode="edge")
    extremes = [signs * r for r in (0, 1e-30, 1e-20, 1e-3, 1, 10, 40)]
    points = np.concatenate([draws, around, *extremes]).astype(np.float32)

    @jax.jit
    @jax.vmap
    def derivatives(x):
        def gradient(x):
            value, score = jax.value_and_grad(target.log_density)(x)
            return score, (value, score)

        hessian, (value, score) = jax.jacfwd(gradient, has_aux=True)(x)
        return value, score, hessian

    results = derivatives(jnp.asarray(points, dtype=float))
    return Evaluated(*(np.asarray(a, dtype=float) for a in (draws, points, *results)))


def assert_mean(values, expected):
    """The mean of independent rows agrees with what theory expects."""
    values = np.asarray(values, dtype=float).reshape(len(values), -1)
    error = values.mean(axis=0) - np.ravel(expected)
    z = error / (values.std(axis=0) / math.sqrt(len(values)))
    assert np.abs(z).max() < Z_BOUND, z


def assert_standard_normal(white):
    """Columns are standard normal; none shifts or stretches another."""
    for column in white.T:
        assert stats.kstest(column, "norm").pvalue > LEVEL
    first, second = np.nonzero(~np.eye(white.shape[1], dtype=bool))
    assert_mean(white[:, first] * white[:, second], np.zeros(first.size))
    assert_mean(white[:, first] * (white[:, second] ** 2 - 1), np.zeros(first.size))


def mixture(means, scale):
    def reference(x):
        parts = [stats.multivariate_normal(m, scale**2).pdf(x) for m in means]
        return np.log(np.mean(parts, axis=0))

    return reference


def toeplitz(rho, dim):
    return linalg.toeplitz(rho ** np.arange(dim))


def ring_means():
    turn = np.exp(2j * np.pi * np.arange(8) / 8)
    return 5 * np.stack([turn.real, turn.imag], axis=1)


def grid_means():
    return np.array(list(itertools.product([-4, -2, 0, 2, 4], repeat=2)), dtype=float)


def gmm40_means():
    return np.random.Generator(np.random.PCG64(0)).uniform(-40, 40, (40, 2))


MEANS = {
    "mog2": (np.array([[-2.0, 2.0], [2.0, -2.0]]), math.sqrt(0.5)),
    "ring": (ring_means(), 0.5),
    "grid": (grid_means(), 0.3),
    "gmm40": (gmm40_means(), 1.3133),
}
PRECISION = np.array([[3.0, -0.5], [-0.5, 1.0]])
BENT = stats.multivariate_normal([0, 1], [[1, 0.5], [0.5, 1]])
WAVED = stats.multivariate_normal([1, 1], [[2, 0.25], [0.25, 0.5]])


def reference_funnel(p):
    x, y = p.T
    return stats.norm.logpdf(y, 4, 3) + stats.norm.logpdf(x, 1, np.exp(y / 2))


def reference_neal(p):
    v, x = p[:, :1], p[:, 1:]
    given = stats.norm.logpdf(x, 0, np.exp(v / 2)).sum(axis=1)
    return stats.norm.logpdf(v[:, 0], 0, 3) + given


def reference_banana(p):
    x, y = p.T
    return stats.norm.logpdf(x, 0, 10) + stats.norm.logpdf(y + 0.03 * (x**2 - 100))


# Each is normalised but the donut's.
REFERENCES = {
    "gaussian": stats.multivariate_normal([-1, 1], np.linalg.inv(PRECISION)).logpdf,
    "rosenbrock": lambda p: BENT.logpdf(
        np.stack([-p[:, 0], -p[:, 1] - p[:, 0] ** 2 - 1], axis=1)
    ),
    "donut": lambda p: -((np.hypot(*p.T) - 2.5) ** 2) / 0.5,
    "funnel": reference_funnel,
    "squiggle": lambda p: WAVED.logpdf(
        np.stack([p[:, 0], p[:, 1] + np.sin(2 * p[:, 0])], axis=1)
    ),
    "correlated_gaussian": stats.multivariate_normal(cov=toeplitz(0.9, 10)).logpdf,
    "neal_funnel": reference_neal,
    "banana": reference_banana,
    "student_t": stats.multivariate_t(df=5, shape=np.eye(5)).logpdf,
    **{name: mixture(*MEANS[name]) for name in MIXTURES},
}


@pytest.mark.parametrize("name", REFERENCES)
def test_log_density_agrees_with_scipy(name):
    at = evaluate(name)
    # Some draws, and the points around draws.
    chosen = np.r_[0:200, N : N + 100]
    expected = REFERENCES[name](at.points[chosen])
    actual = at.log_density[chosen]
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-4)


@pytest.mark.parametrize("name", REFERENCES)
def test_log_density_is_right_in_64_bits(name):
    points = evaluate(name).draws[:50]
    with jax.enable_x64(True):
        target = catalogue.get(name)
        actual = jax.jit(jax.vmap(target.log_density))(jnp.asarray(points))
        draws = jax.eval_shape(lambda key: target.sample(key, 3), jax.random.key(0))
    assert actual.dtype == draws.dtype == jnp.float64
    np.testing.assert_allclose(actual, REFERENCES[name](points), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", REFERENCES)
def test_derivatives_are_finite(name):
    at = evaluate(name)
    assert np.isfinite(at.score).all()
    assert np.isfinite(at.hessian).all()


@pytest.mark.parametrize("name", [n for n in REFERENCES if "funnel" not in n])
def test_draws_follow_the_density(name):
    """Stein's identity, E[s_i] = 0 and E[s_i x_j] = -1 if i = j and 0 if not.

    (In the funnels s has no useful variance; they are tested by their construction.)
    """
    at = evaluate(name)
    x, score = at.draws, at.score[:N]
    assert_mean(score, np.zeros(x.shape[1]))
    assert_mean(score[:, :, None] * x[:, None, :], -np.eye(x.shape[1]))


def wave_moments():
    """Mean and covariance of squiggle: E exp(2ix) is known, and so is Stein's lemma."""
    variance, covariance = 2.0, 0.25
    sine, cosine = (f(2) * math.exp(-2 * variance) for f in (math.sin, math.cos))
    of_sine = (1 - math.cos(4) * math.exp(-8 * variance)) / 2 - sine**2
    across = covariance - 2 * variance * cosine
    of_y = 0.5 + of_sine - 2 * covariance * 2 * cosine
    return [1, 1 - sine], [[variance, across], [across, of_y]]


def donut_moments():
    def mass(power):
        f = lambda r: r**power * math.exp(-((r - 2.5) ** 2) / 0.5)  # noqa: E731
        return integrate.quad(f, 0, 8)[0]

    return [0, 0], np.eye(2) * mass(3) / mass(1) / 2


def mixture_moments(name):
    means, scale = MEANS[name]
    return means.mean(axis=0), np.cov(means.T, bias=True) + scale**2 * np.eye(2)


MOMENTS = {
    "gaussian": ([-1, 1], np.linalg.inv(PRECISION)),
    "rosenbrock": ([0, -3], [[1, 0.5], [0.5, 3]]),
    "donut": donut_moments(),
    "squiggle": wave_moments(),
    "correlated_gaussian": (np.zeros(10), toeplitz(0.9, 10)),
    "banana": ([0, 0], np.diag([100, 1 + 2 * (0.03 * 100) ** 2])),
    **{name: mixture_moments(name) for name in MIXTURES},
}


@pytest.mark.parametrize("name", MOMENTS)
def test_draws_have_the_moments(name):
    x = evaluate(name).draws
    mean, covariance = MOMENTS[name]
    assert_mean(x, mean)
    centred = x - np.asarray(mean)
    assert_mean(centred[:, :, None] * centred[:, None, :], covariance)


def test_draws_of_bent_gaussians_unbend():
    x, y = evaluate("gaussian").draws.T
    assert_standard_normal(
        (np.stack([x + 1, y - 1], axis=1)) @ np.linalg.cholesky(PRECISION)
    )
    x, y = evaluate("rosenbrock").draws.T
    u, v = -x, -y - x**2 - 1
    assert_standard_normal(np.stack([u, (v - 1 - u / 2) / math.sqrt(3 / 4)], axis=1))
    x, y = evaluate("squiggle").draws.T
    u, v = (x - 1) / math.sqrt(2), y + np.sin(2 * x) - 1
    rest = (v - 0.25 * u / math.sqrt(2)) / math.sqrt(0.5 - 0.25**2 / 2)
    assert_standard_normal(np.stack([u, rest], axis=1))
    x, y = evaluate("banana").draws.T
    assert_standard_normal(np.stack([x / 10, y + 0.03 * (x**2 - 100)], axis=1))
    x = evaluate("correlated_gaussian").draws
    assert_standard_normal(x @ np.linalg.inv(linalg.cholesky(toeplitz(0.9, 10))))


def test_draws_of_funnels_are_gaussian_level_by_level():
    x, y = evaluate("funnel").draws.T
    assert_standard_normal(np.stack([(y - 4) / 3, (x - 1) * np.exp(-y / 2)], axis=1))
    p = evaluate("neal_funnel").draws
    v, x = p[:, :1], p[:, 1:]
    assert_standard_normal(np.concatenate([v / 3, x * np.exp(-v / 2)], axis=1))


def test_draws_of_student_t():
    x = evaluate("student_t").draws
    square = np.sum(x**2, axis=1)
    assert stats.kstest(square / 5, stats.f(5, 5).cdf).pvalue > LEVEL
    for column in x.T:
        assert stats.kstest(column, stats.t(5).cdf).pvalue > LEVEL
    # The direction is uniform on the sphere, whatever the length.
    unit = x / np.sqrt(square)[:, None]
    assert_mean(unit[:, :, None] * unit[:, None, :], np.eye(5) / 5)


def donut_cdf():
    r = np.linspace(0, 7, 200_001)
    density = r * np.exp(-((r - 2.5) ** 2) / 0.5)
    mass = integrate.cumulative_simpson(density, x=r, initial=0)
    return r, mass / mass[-1]


def test_draws_of_donut():
    r, cdf = donut_cdf()
    x, y = evaluate("donut").draws.T
    radius, turn = np.hypot(x, y), np.arctan2(y, x) / (2 * np.pi)
    assert stats.kstest(radius, lambda q: np.interp(q, r, cdf)).pvalue > LEVEL
    assert stats.kstest(turn, stats.uniform(-0.5, 1).cdf).pvalue > LEVEL
    assert_mean((radius - radius.mean()) * np.cos(2 * np.pi * turn), 0)


def test_donut_quantile_is_accurate_in_both_tails():
    r, cdf = donut_cdf()
    tail = np.geomspace(1e-5, 0.5, 200)
    for upper, probability in ((False, tail), (True, 1 - tail)):
        side = jnp.full(tail.shape, upper)
        quantile = eqx.filter_jit(planar.Donut().quantile)
        actual = quantile(jnp.asarray(tail, dtype=float), side)
        np.testing.assert_allclose(actual, np.interp(probability, cdf, r), atol=1e-5)


@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures_name_their_modes_and_visit_them_equally(name):
    means, scale = MEANS[name]
    np.testing.assert_allclose(catalogue.get(name).modes, means, atol=1e-5)
    # The posterior probability of a component has mean 1/k, however they overlap, and
    # the squared distance weighted by it has mean d * scale^2.
    square = ((evaluate(name).draws[:, None, :] - means[None]) ** 2).sum(axis=2)
    weight = np.exp(-0.5 * (square - square.min(axis=1, keepdims=True)) / scale**2)
    weight /= weight.sum(axis=1, keepdims=True)
    assert_mean(weight, np.full(len(means), 1 / len(means)))
    assert_mean((weight * square).sum(axis=1), 2 * scale**2)


def test_gmm40_means_are_pinned():
    modes = np.asarray(catalogue.get("gmm40").modes)
    np.testing.assert_allclose(modes[0], [10.9569354, -18.4170633], rtol=1e-6)
    assert modes.shape == (40, 2)
    assert np.abs(modes).max() < 40


def test_funnel_coinsvgd_is_wrong_in_y_only():
    points = jnp.asarray(
        np.random.default_rng(0).normal(size=(100, 2)) * 3, dtype=float
    )
    wrong = jax.jit(jax.vmap(planar.FunnelCoinSVGD()))(points)
    true = jax.jit(jax.vmap(jax.grad(planar.Funnel())))(points)
    np.testing.assert_allclose(wrong[:, 0], true[:, 0], rtol=1e-5)
    y = points[:, 1]
    excess = ((y - 4) ** 2 - 9) / 27 + (y - 4) / 9
    np.testing.assert_allclose(wrong[:, 1], true[:, 1] + excess, rtol=1e-4, atol=1e-4)
    assert catalogue.get("funnel_coinsvgd").dim == 2


def some_schools(seed):
    rng = np.random.default_rng(seed)
    mu, tau, raw = rng.normal(0, 5), rng.exponential(5) + 0.1, rng.normal(size=8)
    return mu, tau, raw


@pytest.mark.parametrize("seed", range(5))
def test_eight_schools_agree_with_scipy_and_each_other(seed):
    mu, tau, raw = some_schools(seed)
    theta = mu + tau * raw
    y = [28, 8, -3, 7, -1, 1, 18, 12]
    sigma = [15, 10, 16, 11, 9, 11, 10, 18]
    expected = (
        stats.norm.logpdf(mu, 0, 5)
        + stats.halfcauchy.logpdf(tau, scale=5)
        + stats.norm.logpdf(theta, mu, tau).sum()
        + stats.norm.logpdf(y, theta, sigma).sum()
    )

    def params(**values):
        return {name: jnp.asarray(value, dtype=float) for name, value in values.items()}

    centred = schools.EightSchoolsCentred()(params(mu=mu, tau=tau, theta=theta))
    assert centred.shape == ()
    np.testing.assert_allclose(centred, expected, rtol=1e-4)
    other = schools.EightSchoolsNoncentred()(params(mu=mu, tau=tau, theta_trans=raw))
    # theta = mu + tau * theta_trans has the Jacobian tau^8.
    np.testing.assert_allclose(other, expected + 8 * math.log(tau), rtol=1e-4)


def schools_posterior_moments():
    """Posterior means of mu, log tau, mu^2 and mu log tau, on a grid of 64-bit sums."""
    mu = np.linspace(-30, 40, 281)[:, None]
    log_tau = np.linspace(-14, 8, 881)[None, :]
    tau = np.exp(log_tau)
    log_p = (
        stats.norm.logpdf(mu, 0, 5) + stats.halfcauchy.logpdf(tau, scale=5) + log_tau
    )
    for y, sigma in zip(schools.EFFECTS, schools.STANDARD_ERRORS, strict=True):
        log_p = log_p + stats.norm.logpdf(y, mu, np.hypot(sigma, tau))
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    functions = (mu, log_tau, mu**2, mu * log_tau)
    return [(p * f).sum() for f in functions]


def test_draws_of_eight_schools():
    target = catalogue.get("eight_schools_noncentred")
    centred = catalogue.get("eight_schools_centred")

    @jax.jit
    def evaluate_both(key):
        flat = target.sample_flat(key, N)
        scores = jax.vmap(target.score)(flat)
        return target.sample(key, N), flat, scores, centred.sample(key, N)

    results = evaluate_both(jax.random.key(99))
    draws, flat, scores, others = jax.tree.map(
        lambda a: np.asarray(a, dtype=float), results
    )
    mu, tau = draws["mu"], draws["tau"]
    moments = np.stack([mu, np.log(tau), mu**2, mu * np.log(tau)], axis=1)
    assert_mean(moments, schools_posterior_moments())
    # Stein's identity again, in the unconstrained coordinates.
    assert_mean(scores, np.zeros(10))
    assert_mean(scores[:, :, None] * flat[:, None, :], -np.eye(10))
    theta = mu[:, None] + tau[:, None] * draws["theta_trans"]
    np.testing.assert_allclose(others["theta"], theta, rtol=1e-4, atol=1e-4)


def test_a_second_instance_traces_nothing():
    traces = 0

    @eqx.filter_jit
    def evaluate(density, x):
        nonlocal traces
        traces += 1
        return density(x)

    x = jnp.zeros(2)
    first = evaluate(planar.Donut(), x)
    second = evaluate(planar.Donut(radius=1.0), x)
    assert traces == 1
    assert first != second


@pytest.mark.parametrize("entry", catalogue.ENTRIES, ids=lambda entry: entry.name)
def test_catalogue_describes_what_it_makes(entry):
    target = catalogue.get(entry.name)
    assert target.dim == entry.dim
    assert target.can_sample == entry.exact
    assert (target.why_no_density() is None) == (entry.kind == "density")


@pytest.mark.once
def test_catalogue_lists_without_jax():
    code = (
        "import sys; import pushforward.targets.catalogue as c; c.describe();"
        "assert not {'jax', 'numpy', 'equinox'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_catalogue_rows_are_complete():
    rows = catalogue.describe()
    assert [row[0] for row in rows] == list(catalogue.names())
    assert len(set(catalogue.names())) == len(rows)
    assert all(len(row) == len(catalogue.COLUMNS) and all(row) for row in rows)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "dounut",
            "There is no built-in target 'dounut'; did you mean 'donut'? "
            "`pushforward targets` lists them all.",
        ),
        (
            "qqqq",
            "There is no built-in target 'qqqq'; `pushforward targets` lists them all.",
        ),
    ],
)
def test_unknown_names(name, message):
    with pytest.raises(UsageError) as caught:
        catalogue.get(name)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["Donut", "eight-schools-centred", "neals_funnel"])
def test_near_misses_are_offered(name):
    with pytest.raises(UsageError, match="did you mean"):
        catalogue.get(name)
