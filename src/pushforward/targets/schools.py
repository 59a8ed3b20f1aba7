r"""The eight schools of Rubin (1981), in the two usual parametrisations.

School j reports an effect $y_j \sim N(\theta_j, \sigma_j^2)$ with known $\sigma_j$, and
$\theta_j \sim N(\mu, \tau^2)$, $\mu \sim N(0, 5^2)$, $\tau \sim C^+(0, 5)$ (half
Cauchy): posteriordb's `eight_schools`. The densities are those of the constrained
parameters (tau is positive); the target adds the logarithm of the Jacobian.

All but tau is Gaussian given tau, which leaves an integral over one number: exact draws
exist, and no reference from a long run is needed.
"""

import abc
import math
from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.stats import cauchy, norm
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward.targets.base import Target
from pushforward.targets.planar import as_float

EFFECTS = (28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0)
STANDARD_ERRORS = (15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0)


class AbstractEightSchools(eqx.Module):
    """What both parametrisations have in common: the data and the priors.

    Attributes:
        effects: the reported effects y.
        standard_errors: their known standard deviations sigma.
        mu_scale: the standard deviation of mu's prior.
        tau_scale: the scale of tau's half-Cauchy prior.
    """

    effects: Float[Array, " schools"] = eqx.field(converter=as_float, default=EFFECTS)
    standard_errors: Float[Array, " schools"] = eqx.field(
        converter=as_float, default=STANDARD_ERRORS
    )
    mu_scale: Float[Array, ""] = eqx.field(converter=as_float, default=5.0)
    tau_scale: Float[Array, ""] = eqx.field(converter=as_float, default=5.0)

    @abc.abstractmethod
    def __call__(self, params: Mapping[str, Array]) -> Float[Array, ""]:
        """The log density of the parameters, up to a constant."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, n: int) -> dict[str, Array]:
        """Exact draws of the three, each with a leading axis of n."""


class EightSchoolsCentred(AbstractEightSchools):
    """The posterior of mu, tau and theta: a funnel where tau is small."""

    def __call__(self, params: Mapping[str, Array]) -> Float[Array, ""]:
        """The log density of `mu` (), `tau` () and `theta` (8,), up to a constant."""
        mu, tau, theta = params["mu"], params["tau"], params["theta"]
        prior = _log_prior(mu, tau, self.mu_scale, self.tau_scale)
        given = jnp.sum(norm.logpdf(theta, mu, tau))
        likelihood = jnp.sum(norm.logpdf(self.effects, theta, self.standard_errors))
        return prior + given + likelihood

    def sample(self, key: PRNGKeyArray, n: int) -> dict[str, Array]:
        mu, tau, theta_trans = _exact_draws(self, key, n)
        theta = mu[:, None] + tau[:, None] * theta_trans
        return {"mu": mu, "tau": tau, "theta": theta}


class EightSchoolsNoncentred(AbstractEightSchools):
    """The same posterior in theta_trans, where theta = mu + tau * theta_trans."""

    def __call__(self, params: Mapping[str, Array]) -> Float[Array, ""]:
        """The log density of `mu` (), `tau` () and `theta_trans` (8,), as above."""
        mu, tau, theta_trans = params["mu"], params["tau"], params["theta_trans"]
        prior = _log_prior(mu, tau, self.mu_scale, self.tau_scale)
        given = jnp.sum(norm.logpdf(theta_trans))
        theta = mu + tau * theta_trans
        likelihood = jnp.sum(norm.logpdf(self.effects, theta, self.standard_errors))
        return prior + given + likelihood

    def sample(self, key: PRNGKeyArray, n: int) -> dict[str, Array]:
        mu, tau, theta_trans = _exact_draws(self, key, n)
        return {"mu": mu, "tau": tau, "theta_trans": theta_trans}


def _log_prior(mu: Array, tau: Array, mu_scale: Array, tau_scale: Array) -> Array:
    # Twice the Cauchy density: its half on the positive axis.
    half_cauchy = cauchy.logpdf(tau, 0, tau_scale) + math.log(2)
    return norm.logpdf(mu, 0, mu_scale) + half_cauchy


def _exact_draws(
    density: AbstractEightSchools, key: PRNGKeyArray, n: int
) -> tuple[Array, Array, Array]:
    r"""Draws tau by a table, then mu given tau, then theta_trans given both.

    With $v_j = \sigma_j^2 + \tau^2$, $a = s_\mu^{-2} + \sum_j v_j^{-1}$ and
    $b = \sum_j y_j / v_j$: $p(y | \tau) \propto e^{(b^2/a - \sum_j y_j^2/v_j)/2}
    / \sqrt{a \prod_j v_j}$, $\mu | \tau, y \sim N(b/a, 1/a)$, and the theta_trans of
    school j is $N(\tau (y_j - \mu) / v_j, \sigma_j^2 / v_j)$.
    """
    y, sigma = density.effects[None, :], density.standard_errors[None, :]

    def marginal(tau):
        v = sigma**2 + tau[:, None] ** 2
        return v, density.mu_scale**-2 + jnp.sum(1 / v, axis=1), jnp.sum(y / v, axis=1)

    of_tau, of_mu, of_theta = jax.random.split(key, 3)
    dtype = density.effects.dtype
    # tau = s tan(pi w / 2) has its prior where w is uniform on (0, 1), so in w the
    # posterior is the bounded p(y | tau). Beyond the last w it has no mass to speak of.
    w = jnp.linspace(0, 1, 8193, dtype=dtype)[:-1]
    v, a, b = marginal(density.tau_scale * jnp.tan(0.5 * math.pi * w))
    log_mass = 0.5 * (b**2 / a - jnp.log(a) - jnp.sum(y**2 / v + jnp.log(v), axis=1))
    mass = jnp.exp(log_mass - jnp.max(log_mass))
    # Summed from above, where the far tail has room in 32 bits (the other end has no
    # tail), and never 0: that would be the last w, and 1 in ten million draws.
    upper = jnp.pad(jnp.cumsum((mass[1:] + mass[:-1])[::-1]), (1, 0))
    least = float(jnp.finfo(dtype).eps) / 2
    uniform = jax.random.uniform(of_tau, (n,), dtype, minval=least)
    drawn = jnp.interp(uniform, upper / upper[-1], w[::-1])
    tau = density.tau_scale * jnp.tan(0.5 * math.pi * drawn)
    v, a, b = marginal(tau)
    mu = b / a + jax.random.normal(of_mu, (n,), dtype) / jnp.sqrt(a)
    z = jax.random.normal(of_theta, v.shape, dtype)
    mean = tau[:, None] * (y - mu[:, None]) / v
    return mu, tau, mean + sigma / jnp.sqrt(v) * z


def eight_schools_centred() -> Target:
    """The eight schools in mu, tau and theta."""
    return _schools(EightSchoolsCentred(), "theta")


def eight_schools_noncentred() -> Target:
    """The eight schools in mu, tau and theta_trans."""
    return _schools(EightSchoolsNoncentred(), "theta_trans")


def _schools(density: AbstractEightSchools, theta: str) -> Target:
    example = {"mu": as_float(0.0), "tau": as_float(1.0), theta: as_float((0.0,) * 8)}
    return Target(
        density,
        example=example,
        constraints={"tau": "positive"},
        sample=density.sample,
    )
