"""Some forty proper models of everyday statistics on R^d, and a dozen improper ones.

Each is written as somebody would write it who knows nothing of this package: raw
predictors, scales on the log, flat priors where the data suffice, -inf outside of a
support, and arithmetic in 32 bits that overflows where it may.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import linalg, special
from jax.scipy.stats import beta, cauchy, gamma, norm, t
from numpyro import distributions as dist
from numpyro.distributions.transforms import (
    CorrCholeskyTransform,
    OrderedTransform,
    StickBreakingTransform,
)

from pushforward.targets import Target

PROPER: dict[str, Target] = {}
IMPROPER: dict[str, Target] = {}

_RNG = np.random.default_rng(20)


def _data(values: Any) -> jax.Array:
    return jnp.asarray(values, float)


def _model(dim: int, table: dict[str, Target] = PROPER) -> Callable:
    """Puts a log density into a table of targets."""

    def register(function: Callable) -> Callable:
        def mixed(x):
            # NumPyro, and many a model, mixes types and ranks.
            standard = jax.numpy_dtype_promotion("standard")
            with standard, jax.numpy_rank_promotion("allow"):
                return function(x)

        mixed.__name__ = function.__name__
        table[function.__name__] = Target(mixed, dim=dim)
        return function

    return register


def _improper(dim: int) -> Callable:
    return _model(dim, IMPROPER)


# Regressions on raw predictors.
N = 60
AGE = _data(_RNG.uniform(20, 80, N))
INCOME = _data(_RNG.normal(40_000, 12_000, N))
RAW = jnp.stack([jnp.ones(N), AGE, INCOME], 1)
RENT = 30 + 1.2 * AGE + 0.02 * INCOME + _data(_RNG.normal(0, 50, N))
PLAIN = _data(_RNG.normal(size=(N, 3)))
BOUGHT = _data(_RNG.random(N) < np.asarray(special.expit(0.1 * AGE - 5)))
COUNTS = _data(_RNG.poisson(np.exp(0.5 + 0.3 * np.asarray(PLAIN[:, 0]))))


@_model(4)
def raw_regression(x):
    residuals = (RENT - RAW @ x[:3]) * jnp.exp(-x[3])
    return -0.5 * jnp.sum(residuals**2) - N * x[3]


@_model(4)
def raw_regression_with_scale_itself(x):
    value = jnp.sum(norm.logpdf(RENT, RAW @ x[:3], x[3]))
    return jnp.where(x[3] > 0, value, -jnp.inf)


@_model(4)
def robust_regression(x):
    return jnp.sum(t.logpdf(RENT, 4.0, RAW @ x[:3], jnp.exp(x[3])))


@_model(5)
def robust_regression_with_degrees_of_freedom(x):
    prior = gamma.logpdf(jnp.exp(x[4]), 2.0, scale=10.0) + x[4]
    return prior + jnp.sum(t.logpdf(RENT, jnp.exp(x[4]), RAW @ x[:3], jnp.exp(x[3])))


@_model(2)
def raw_logistic_regression(x):
    logit = x[0] + x[1] * AGE
    return jnp.sum(BOUGHT * logit - jnp.logaddexp(0.0, logit))


@_model(2)
def logistic_regression_by_probabilities(x):
    p = 1 / (1 + jnp.exp(-x[0] - x[1] * AGE))
    likelihood = jnp.sum(BOUGHT * jnp.log(p) + (1 - BOUGHT) * jnp.log(1 - p))
    return likelihood + jnp.sum(norm.logpdf(x, 0.0, 10.0))


@_model(2)
def raw_probit_regression(x):
    signs = 2 * BOUGHT - 1
    return jnp.sum(norm.logcdf(signs * (x[0] + x[1] * AGE)))


@_model(2)
def raw_poisson_regression(x):
    rate = jnp.exp(x[0] + x[1] * AGE)
    claims = jnp.round(AGE / 10)
    return jnp.sum(claims * jnp.log(rate) - rate) + jnp.sum(norm.logpdf(x, 0.0, 10.0))


@_model(4)
def negative_binomial_regression(x):
    mean, size = jnp.exp(x[0] + PLAIN[:, :2] @ x[1:3]), jnp.exp(x[3])
    likelihood = (
        special.gammaln(COUNTS + size)
        - special.gammaln(size)
        + size * jnp.log(size / (size + mean))
        + COUNTS * jnp.log(mean / (size + mean))
    )
    return jnp.sum(likelihood) + jnp.sum(norm.logpdf(x, 0.0, 5.0))


@_model(5)
def zero_inflated_poisson(x):
    rate, share = jnp.exp(x[0] + PLAIN @ x[1:4]), special.expit(x[4])
    inflated = jnp.log(share + (1 - share) * jnp.exp(-rate))
    counted = jnp.log(1 - share) + COUNTS * jnp.log(rate) - rate
    likelihood = jnp.sum(jnp.where(COUNTS == 0, inflated, counted))
    return likelihood + jnp.sum(norm.logpdf(x, 0.0, 10.0))


@_model(4)
def ordinal_regression(x):
    cuts = OrderedTransform()(x[:2])
    bounds = jnp.array([-jnp.inf, 0.0, 0.0, jnp.inf]).at[1:3].set(cuts)
    answers = jnp.digitize(PLAIN[:, 0], jnp.array([-0.4, 0.4]))
    at = PLAIN[:, :2] @ x[2:]
    p = special.expit(bounds[answers + 1] - at) - special.expit(bounds[answers] - at)
    return jnp.sum(jnp.log(p)) + x[1] + jnp.sum(norm.logpdf(x, 0.0, 5.0))


@_model(4)
def beta_regression(x):
    mean, size = special.expit(x[0] + PLAIN[:, :2] @ x[1:3]), jnp.exp(x[3])
    shares = special.expit(PLAIN[:, 2])
    likelihood = jnp.sum(beta.logpdf(shares, mean * size, (1 - mean) * size))
    return likelihood + jnp.sum(norm.logpdf(x, 0.0, 10.0))


@_model(5)
def lasso_with_a_scale(x):
    scale = jnp.exp(x[4])
    prior = -jnp.sum(jnp.abs(x[:3])) / scale - 3 * x[4] + cauchy.logpdf(scale) + x[4]
    noise = jnp.exp(x[3])
    likelihood = jnp.sum(norm.logpdf(RENT / 100, PLAIN @ x[:3], noise))
    return prior + likelihood + norm.logpdf(x[3], 0.0, 10.0)


# Hierarchies.
EFFECTS = _data([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = _data([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


@_model(10)
def eight_schools_centred(x):
    scale = jnp.exp(x[1])
    prior = norm.logpdf(x[0], 0.0, 5.0) + cauchy.logpdf(scale, 0.0, 5.0) + x[1]
    groups = jnp.sum(norm.logpdf(x[2:], x[0], scale))
    return prior + groups + jnp.sum(norm.logpdf(EFFECTS, x[2:], ERRORS))


@_model(10)
def eight_schools_with_a_flat_scale(x):
    scale = jnp.exp(x[1])
    at = x[0] + scale * x[2:]
    likelihood = jnp.sum(norm.logpdf(EFFECTS, at, ERRORS))
    return x[1] + jnp.sum(norm.logpdf(x[2:])) + likelihood


@_model(8)
def hierarchical_poisson(x):
    scale = jnp.exp(x[1])
    rate = jnp.exp(x[0] + scale * x[2:] + 40 * jnp.arange(6.0) / 5)
    counts = _data([3, 80, 4_000, 1e7, 1e11, 4e17])
    prior = norm.logpdf(x[0], 0.0, 10.0) + cauchy.logpdf(scale) + x[1]
    return prior + jnp.sum(norm.logpdf(x[2:])) + jnp.sum(counts * jnp.log(rate) - rate)


@_model(8)
def beta_binomial_groups(x):
    deaths, patients = (
        _data([0, 18, 8, 46, 8, 13]),
        _data([47, 148, 119, 810, 211, 196]),
    )
    a, b = jnp.exp(x[0]), jnp.exp(x[1])
    p = special.expit(x[2:])
    prior = -2.5 * jnp.log(a + b) + x[0] + x[1]
    groups = jnp.sum(beta.logpdf(p, a, b) + jnp.log(p) + jnp.log1p(-p))
    likelihood = deaths * jnp.log(p) + (patients - deaths) * jnp.log1p(-p)
    return prior + groups + jnp.sum(likelihood)


@_model(11)
def horseshoe(x):
    slopes = x[5:10] * jnp.exp(x[:5] + x[10])
    local = jnp.sum(cauchy.logpdf(jnp.exp(x[:5])) + x[:5])
    prior = (
        local + cauchy.logpdf(jnp.exp(x[10])) + x[10] + jnp.sum(norm.logpdf(x[5:10]))
    )
    few = jnp.concatenate([PLAIN, PLAIN[:, :2] ** 2], 1)[:4]
    return prior + jnp.sum(norm.logpdf(jnp.arange(4.0), few @ slopes))


@_model(3)
def dirichlet_multinomial(x):
    counts = _data([[3, 7, 0], [10, 2, 5], [0, 0, 4], [6, 6, 1]])
    a = jnp.exp(x)
    likelihood = (
        special.gammaln(a.sum())
        - special.gammaln(a.sum() + counts.sum(1))
        + jnp.sum(special.gammaln(a + counts) - special.gammaln(a), axis=1)
    )
    return jnp.sum(likelihood) + jnp.sum(gamma.logpdf(a, 2.0) + x)


@_model(5)
def item_responses(x):
    right = _data([[1, 0, 1], [1, 1, 1], [0, 0, 1], [1, 0, 0], [0, 0, 0]])
    logit = x[:5, None] - _data([-1.0, 0.0, 1.0])
    likelihood = jnp.sum(right * logit - jnp.logaddexp(0.0, logit))
    return likelihood + jnp.sum(norm.logpdf(x, 0.0, 3.0))


# Time series.
STEPS = _data(np.cumsum(_RNG.normal(size=40)) * 0.3 + _RNG.normal(size=40))
RETURNS = _data(_RNG.standard_t(4, size=40))


@_model(4)
def arma(x):
    def step(error, pair):
        before, now = pair
        error = now - x[0] - x[1] * before - x[2] * error
        return error, error

    pairs = STEPS[:-1], STEPS[1:]
    _, errors = jax.lax.scan(step, jnp.zeros(()), pairs)
    prior = norm.logpdf(x[0], 0.0, 10.0) + norm.logpdf(x[1]) + norm.logpdf(x[2])
    scale = jnp.exp(x[3])
    prior += cauchy.logpdf(scale) + x[3]
    return prior + jnp.sum(norm.logpdf(errors, 0.0, scale))


@_model(4)
def garch(x):
    level, a, b = jnp.exp(x[1]), jnp.exp(x[2]), jnp.exp(x[3])

    def step(variance, now):
        following = level + a * (now - x[0]) ** 2 + b * variance
        return following, norm.logpdf(now, x[0], jnp.sqrt(variance))

    _, terms = jax.lax.scan(step, jnp.ones(()), RETURNS)
    inside = (a + b < 1) & (a < 1)
    return jnp.where(inside, jnp.sum(terms) + x[2] + x[3] - level + x[1], -jnp.inf)


@_model(12)
def stochastic_volatility(x):
    persistence, scale = jnp.tanh(x[1]), jnp.exp(x[2])

    def step(before, noise):
        now = persistence * before + scale * noise
        return now, now

    start = scale * x[3] / jnp.sqrt(1 - persistence**2)
    _, states = jax.lax.scan(step, start, x[4:])
    states = jnp.concatenate([start[None], states])
    prior = cauchy.logpdf(x[0], 0.0, 10.0) + cauchy.logpdf(scale, 0.0, 5.0) + x[2]
    prior += jnp.log(1 - persistence**2) + jnp.sum(norm.logpdf(x[3:]))
    return prior + jnp.sum(norm.logpdf(RETURNS[:9], 0.0, jnp.exp((x[0] + states) / 2)))


@_model(11)
def local_level(x):
    first, second = jnp.exp(x[0]), jnp.exp(x[1])
    states = jnp.sum(norm.logpdf(jnp.diff(x[2:]), 0.0, first))
    prior = cauchy.logpdf(first) + cauchy.logpdf(second) + x[0] + x[1]
    likelihood = jnp.sum(norm.logpdf(STEPS[:9], x[2:], second))
    return prior + states + likelihood


@_model(3)
def kalman_filter(x):
    move, noise = jnp.exp(2 * x[1]), jnp.exp(2 * x[2])

    def step(carry, now):
        mean, variance = carry
        ahead = x[0] * mean, x[0] ** 2 * variance + move
        total = ahead[1] + noise
        gain = ahead[1] / total
        mean = ahead[0] + gain * (now - ahead[0])
        term = norm.logpdf(now, ahead[0], jnp.sqrt(total))
        return (mean, (1 - gain) * ahead[1]), term

    _, terms = jax.lax.scan(step, (jnp.zeros(()), jnp.ones(())), STEPS)
    scales = jnp.exp(x[1:])
    return jnp.sum(terms) + norm.logpdf(x[0]) + jnp.sum(x[1:] - scales)


@_model(3)
def change_point(x):
    """The disasters in coal mines, the year of the change a number in between."""
    counts = _data(
        [4, 5, 4, 1, 0, 4, 3, 4, 0, 6, 3, 3, 4, 0, 2, 1, 1, 0, 1, 0, 1, 0, 0, 2]
    )
    years = jnp.arange(24.0)
    early, late = jnp.exp(x[0]), jnp.exp(x[1])
    rate = jnp.where(years < x[2], early, late)
    likelihood = jnp.sum(counts * jnp.log(rate) - rate)
    prior = x[0] - early + x[1] - late + norm.logpdf(x[2], 12.0, 6.0)
    return prior + likelihood


@_model(3)
def hidden_markov(x):
    stay = special.expit(x[2])
    moves = jnp.log(jnp.array([[1.0, 0.0], [0.0, 1.0]]) * (2 * stay - 1) + 1 - stay)
    means = jnp.stack([x[0], x[0] + jnp.exp(x[1])])
    emitted = norm.logpdf(STEPS[:, None], means[None], 1.0)

    def step(forward, now):
        forward = special.logsumexp(forward[:, None] + moves, axis=0) + now
        return forward, None

    forward, _ = jax.lax.scan(step, emitted[0] - jnp.log(2.0), emitted[1:])
    return special.logsumexp(forward) + jnp.sum(norm.logpdf(x, 0.0, 3.0))


# Processes and equations.
PLACES = jnp.linspace(0.0, 1.0, 12)


@_model(3)
def gaussian_process(x):
    """Places close to each other, and no nugget to speak of: nearly singular."""
    height, length, noise = jnp.exp(x)
    distance = PLACES[:, None] - PLACES[None]
    kernel = height**2 * jnp.exp(-0.5 * (distance / length) ** 2)
    kernel += (noise**2 + 1e-6) * jnp.eye(12)
    factor = jnp.linalg.cholesky(kernel)
    y = linalg.solve_triangular(factor, jnp.sin(6 * PLACES), lower=True)
    likelihood = -0.5 * y @ y - jnp.sum(jnp.log(jnp.diagonal(factor)))
    return likelihood + jnp.sum(norm.logpdf(x, -1.0, 2.0))


@_model(14)
def log_gaussian_cox(x):
    height, length = jnp.exp(x[0]), jnp.exp(x[1])
    distance = jnp.abs(PLACES[:, None] - PLACES[None])
    kernel = height**2 * jnp.exp(-distance / length) + 1e-5 * jnp.eye(12)
    field = jnp.linalg.cholesky(kernel) @ x[2:]
    counts = _data([1, 0, 2, 3, 9, 4, 1, 0, 0, 2, 5, 8])
    prior = jnp.sum(norm.logpdf(x[2:])) + jnp.sum(norm.logpdf(x[:2], 0.0, 2.0))
    return prior + jnp.sum(counts * field - jnp.exp(field))


@_model(4)
def predator_and_prey(x):
    """Lotka and Volterra's equations by steps so long that they may blow up."""
    a, b, c, d = jnp.exp(x)

    def step(state, _):
        prey, hunters = state
        more = prey + 0.2 * (a * prey - b * prey * hunters)
        hunters = hunters + 0.2 * (d * prey * hunters - c * hunters)
        return (more, hunters), jnp.stack([more, hunters])

    _, path = jax.lax.scan(step, (jnp.asarray(1.0), jnp.asarray(0.5)), length=20)
    seen = _data([[1.3, 0.5], [1.6, 0.7], [1.4, 1.2], [0.8, 1.3]])
    likelihood = jnp.sum(norm.logpdf(jnp.log(path[4::5]), jnp.log(seen), 0.3))
    return likelihood + jnp.sum(norm.logpdf(x, 0.0, 1.0))


@_model(3)
def dose_response(x):
    doses = _data([0.1, 1.0, 10.0, 100.0, 1000.0])
    share = 1 / (1 + (doses / jnp.exp(x[0])) ** x[1])
    likelihood = norm.logpdf(_data([0.98, 0.9, 0.6, 0.2, 0.03]), share, jnp.exp(x[2]))
    prior = norm.logpdf(x[0], 2.0, 3.0) + norm.logpdf(x[1], 0.0, 3.0)
    return jnp.sum(likelihood) + prior + norm.logpdf(x[2], -3.0, 1.0)


# Survival.
TIMES = _data([5.0, 8.0, 12.0, 24.0, 32.0, 17.0, 30.0, 30.0, 30.0, 9.0])
DIED = _data([1, 1, 1, 1, 0, 1, 0, 0, 0, 1])


@_model(2)
def weibull_with_censoring(x):
    shape, scale = jnp.exp(x[0]), jnp.exp(x[1])
    risk = (TIMES / scale) ** shape
    hazard = jnp.log(shape / scale) + (shape - 1) * jnp.log(TIMES / scale)
    return jnp.sum(DIED * hazard - risk) + jnp.sum(norm.logpdf(x, 0.0, 5.0))


@_model(2)
def lognormal_with_censoring(x):
    scale = jnp.exp(x[1])
    died = norm.logpdf(jnp.log(TIMES), x[0], scale)
    survived = jnp.log(1 - norm.cdf(jnp.log(TIMES), x[0], scale))
    prior = norm.logpdf(x[0], 0.0, 10.0) + cauchy.logpdf(scale) + x[1]
    return prior + jnp.sum(jnp.where(DIED == 1, died, survived))


@_model(2)
def proportional_hazards(x):
    """Cox's partial likelihood."""
    covariates = PLAIN[:10, :2]
    at_risk = jnp.where(TIMES[None] >= TIMES[:, None], (covariates @ x)[None], -jnp.inf)
    terms = covariates @ x - special.logsumexp(at_risk, axis=1)
    return jnp.sum(DIED * terms) + jnp.sum(norm.logpdf(x, 0.0, 10.0))


# Mixtures, correlations, angles, shares.
@_model(5)
def mixture_of_two(x):
    weight = special.expit(x[4])
    scales = jnp.exp(x[2:4])
    first = jnp.log(weight) + norm.logpdf(RENT / 500, x[0], scales[0])
    second = jnp.log1p(-weight) + norm.logpdf(RENT / 500, x[1], scales[1])
    prior = jnp.sum(norm.logpdf(x[:2], 0.0, 10.0)) + jnp.sum(norm.logpdf(x[2:]))
    return prior + jnp.sum(jnp.logaddexp(first, second))


@_model(6)
def correlations(x):
    """A prior of Lewandowski, Kurowicka and Joe, by NumPyro's bijector."""
    bijector = CorrCholeskyTransform()
    factor, scales = bijector(x[:3]), jnp.exp(x[3:])
    prior = dist.LKJCholesky(3, 2.0).log_prob(factor)
    prior += bijector.log_abs_det_jacobian(x[:3], factor)
    prior += jnp.sum(cauchy.logpdf(scales) + x[3:])
    normal = dist.MultivariateNormal(0.0, scale_tril=scales[:, None] * factor)
    return prior + jnp.sum(normal.log_prob(PLAIN))


@_model(3)
def multinomial_shares(x):
    bijector = StickBreakingTransform()
    shares = bijector(x)
    likelihood = jnp.sum(_data([5, 1, 0, 9]) * jnp.log(shares))
    return likelihood + bijector.log_abs_det_jacobian(x, shares)


@_model(2)
def von_mises(x):
    angles = _data([0.1, 0.5, -0.3, 0.9, 2.9])
    size = jnp.exp(x[1])
    value = size * jnp.cos(angles - x[0]) - jnp.log(special.i0e(size)) - size
    value = jnp.sum(value) - size + x[1]
    return jnp.where(jnp.abs(x[0]) < jnp.pi, value, -jnp.inf)


@_model(2)
def truncated_normal(x):
    inside = (x[0] > 0) & (x[0] + x[1] < 1)
    return jnp.where(inside, -0.5 * jnp.sum(x**2), -jnp.inf)


@_model(3)
def gamma_shape_and_rate_as_they_are(x):
    """A gamma density of two parameters that are not told to be positive."""
    values = _data([0.3, 1.2, 2.2, 0.8, 4.0])
    likelihood = jnp.sum(gamma.logpdf(values, x[0], scale=1 / x[1]))
    return likelihood - x[0] - x[1] + norm.logpdf(x[2])


@_model(3)
def all_scales(x):
    return jnp.sum(norm.logpdf(x, _data([0.0, 3e-6, -2e6]), _data([1.0, 1e-6, 1e6])))


@_model(4)
def heavy_tails(x):
    return jnp.sum(cauchy.logpdf(x[:2], 0.0, 25.0)) + jnp.sum(t.logpdf(x[2:], 1.5))


# What has no integral.
@_improper(4)
def no_prior_on_a_coordinate_with_bounded_likelihood(x):
    return normal_of(x[:3]) + jnp.log(special.expit(x[3]))


@_improper(3)
def flat_in_an_oblique_direction(x):
    return -0.5 * (x[0] + 2 * x[1]) ** 2 - 0.5 * x[2] ** 2


@_improper(3)
def only_a_difference(x):
    return -0.5 * (x[0] - x[1]) ** 2 - 0.5 * x[2] ** 2


@_improper(3)
def a_wrong_sign(x):
    return 0.5 * jnp.sum(x**2)


@_improper(3)
def one_wrong_sign(x):
    return -0.5 * jnp.sum(x[:2] ** 2) + 0.5 * x[2] ** 2


@_improper(2)
def a_tail_too_heavy(x):
    return -jnp.log1p(jnp.abs(x[0])) - 0.5 * x[1] ** 2


@_improper(2)
def a_tail_too_heavy_in_the_plane(x):
    return -jnp.log1p(jnp.sum(x**2))


@_improper(2)
def a_linear_increase(x):
    return x[0] - 0.5 * x[1] ** 2


@_improper(2)
def an_exponential_increase(x):
    return jnp.exp(x[0]) - 0.5 * x[1] ** 2


@_improper(9)
def a_scale_without_a_prior(x):
    """1 / tau at 0, in the coordinate log tau."""
    effects = jnp.exp(x[0]) * x[1:]
    return normal_of(x[1:]) + jnp.sum(norm.logpdf(EFFECTS, effects, ERRORS))


@_improper(3)
def a_constant(x):
    return jnp.zeros(()) * jnp.sum(x)


@_improper(3)
def an_ignored_coordinate(x):
    return normal_of(x[:2])


@_improper(3)
def separable_classes(x):
    signs = jnp.sign(PLAIN[:, 0] + 0.5 * PLAIN[:, 1] + 0.1)
    logit = x[0] + PLAIN[:, :2] @ x[1:]
    return -jnp.sum(jnp.logaddexp(0.0, -signs * logit))


@_improper(3)
def probabilities_without_a_prior(x):
    return jnp.sum(_data([5, 1, 9]) * jax.nn.log_softmax(x))


@_improper(3)
def a_rate_never_seen(x):
    """No event in a group: its log rate may be as low as it likes."""
    return jnp.sum(_data([5, 0, 9]) * x - jnp.exp(x))


def normal_of(x):
    return -0.5 * jnp.sum(x**2)
