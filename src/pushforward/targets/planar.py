"""The six planar densities of the paper's first experiment, with exact draws.

They are those of Coin-SVGD's code (Sharrock and Nemeth, 2023), which the paper names,
and a seventh that is a score without a density. The parameters of each are array
fields, hence leaves of a pytree: a second instance runs compiled code of the first.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, PRNGKeyArray

from pushforward.targets.base import ScoreTarget, Target


def as_float(value: ArrayLike | tuple) -> Array:
    """Makes an array of JAX's default float, so that it follows the x64 flag."""
    return jnp.asarray(value, dtype=float)


class Gaussian(eqx.Module):
    r"""A Gaussian in d dimensions, given by its mean and precision $P$.

    $$\log q(x) = -\tfrac12 (x - m)^\top P (x - m) + \tfrac12 \log|P|
    - \tfrac d2 \log 2\pi.$$

    Attributes:
        mean: the mean $m$.
        factor: the lower Cholesky factor $C$ of the precision, $P = C C^\top$.
    """

    mean: Float[Array, " d"]
    factor: Float[Array, "d d"]

    def __init__(
        self,
        mean: ArrayLike | tuple = (-1.0, 1.0),
        precision: ArrayLike | tuple = ((3.0, -0.5), (-0.5, 1.0)),
    ):
        """Factorises the precision, on the host: the same figures on every device."""
        self.mean = as_float(mean)
        self.factor = as_float(np.linalg.cholesky(np.asarray(precision, dtype=float)))

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The normalised log density of one point."""
        white = jnp.matmul(x - self.mean, self.factor, precision="highest")
        log_det = jnp.sum(jnp.log(jnp.diagonal(self.factor)))
        constant = 0.5 * math.log(2 * math.pi) * x.size
        return -0.5 * jnp.sum(white**2) + log_det - constant

    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]:
        r"""Exact draws, $x = m + C^{-\top} z$."""
        z = jax.random.normal(key, (n, self.mean.size), self.mean.dtype)
        solve = jax.scipy.linalg.solve_triangular
        scaled = solve(self.factor, z.T, trans="T", lower=True).T
        return self.mean[None, :] + scaled


class GaussianMixture(eqx.Module):
    r"""Equally weighted Gaussians of covariance $s^2 I$ around $k$ means.

    $$\log q(x) = \log \frac1k \sum_j N(x; m_j, s^2 I).$$

    Attributes:
        means: the centres $m_j$.
        scale: the standard deviation $s$ that all of them share.
    """

    means: Float[Array, "k d"] = eqx.field(converter=as_float)
    scale: Float[Array, ""] = eqx.field(converter=as_float)

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The normalised log density of one point."""
        k, d = self.means.shape
        white = (x[None, :] - self.means) / self.scale
        exponents = -0.5 * jnp.sum(white**2, axis=1)
        log_volume = d * (jnp.log(self.scale) + 0.5 * math.log(2 * math.pi))
        return jax.nn.logsumexp(exponents) - log_volume - math.log(k)

    @property
    def modes(self) -> Float[Array, "k d"]:
        """The centres of the components, which are the modes where they lie apart."""
        return self.means

    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]:
        """Exact draws: a component, then a Gaussian around its centre."""
        which, around = jax.random.split(key)
        k, d = self.means.shape
        component = jax.random.randint(which, (n,), 0, k)
        z = jax.random.normal(around, (n, d), self.means.dtype)
        return self.means[component] + self.scale * z


class Rosenbrock(eqx.Module):
    r"""A bent Gaussian: $(-x, -y - x^2 - 1)$ follows `base`.

    The map has Jacobian 1, so the log density is that of `base` at the mapped point.

    Attributes:
        base: by default $N((0, 1), \Sigma)$, $\Sigma = ((1, .5), (.5, 1))$.
    """

    base: Gaussian

    def __init__(
        self,
        mean: ArrayLike | tuple = (0.0, 1.0),
        covariance: ArrayLike | tuple = ((1.0, 0.5), (0.5, 1.0)),
    ):
        """Takes the mean and the covariance of `base`."""
        self.base = Gaussian(mean, np.linalg.inv(np.asarray(covariance)))

    def __call__(self, x: Float[Array, "2"]) -> Float[Array, ""]:
        """The normalised log density of one point."""
        return self.base(jnp.stack([-x[0], -x[1] - x[0] ** 2 - 1]))

    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n 2"]:
        """Exact draws: those of `base`, mapped back."""
        u, v = self.base.sample(key, n).T
        return jnp.stack([-u, -v - u**2 - 1], axis=1)


class Donut(eqx.Module):
    r"""A ring, $\log q(x) = -(|x| - R)^2 / w$ (no factor one half), not normalised.

    Attributes:
        radius: $R$.
        width: $w$, twice the variance of the Gaussian cross-section.
    """

    radius: Float[Array, ""] = eqx.field(converter=as_float, default=2.5)
    width: Float[Array, ""] = eqx.field(converter=as_float, default=0.5)

    def __call__(self, x: Float[Array, "2"]) -> Float[Array, ""]:
        """The log density of one point, up to a constant."""
        # The gradient of sqrt is infinite at 0, and 0 * inf is not a number: keep the
        # origin out of sqrt altogether. The gradient there is then 0.
        square = jnp.sum(x**2)
        away = square > 0
        r = jnp.where(away, jnp.sqrt(jnp.where(away, square, 1)), 0)
        return -((r - self.radius) ** 2) / self.width

    def quantile(
        self, tail: Float[Array, " n"], upper: Bool[Array, " n"]
    ) -> Float[Array, " n"]:
        r"""Inverts the distribution function of $r = |x|$, whose density is $r\,q(r)$.

        The table is summed from both ends, since a probability close to 1 has no room
        for the far tail in 32 bits; it is good to 1e-5 in r wherever `tail` is.

        Args:
            tail: the probability, up to one half, of the tail that r cuts off.
            upper: whether that is the upper tail.
        """
        sd = jnp.sqrt(self.width / 2)
        low = jnp.maximum(self.radius - 9 * sd, 0)
        grid = jnp.linspace(low, self.radius + 9 * sd, 8192)
        density = grid * jnp.exp(-((grid - self.radius) ** 2) / self.width)
        mass = density[1:] + density[:-1]
        below = jnp.pad(jnp.cumsum(mass), (1, 0))
        above = jnp.pad(jnp.cumsum(mass[::-1]), (1, 0))
        from_below = jnp.interp(tail, below / below[-1], grid)
        from_above = jnp.interp(tail, above / above[-1], grid[::-1])
        return jnp.where(upper, from_above, from_below)

    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n 2"]:
        """Exact draws: r by the inverse of its distribution, a uniform angle."""
        of_side, of_tail, of_angle = jax.random.split(key, 3)
        dtype = self.radius.dtype
        # Never 0, which would be the end of the table, nine standard deviations out.
        least = float(jnp.finfo(dtype).eps) / 4
        tail = jax.random.uniform(of_tail, (n,), dtype, minval=least, maxval=0.5)
        r = self.quantile(tail, jax.random.bernoulli(of_side, shape=(n,)))
        angle = jax.random.uniform(of_angle, (n,), dtype, maxval=2 * math.pi)
        return r[:, None] * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)


class Funnel(eqx.Module):
    r"""The planar funnel, $y \sim N(m, s^2)$ and $x | y \sim N(c, e^y)$.

    $$\log q(x, y) = -\frac{(y - m)^2}{2 s^2} - \frac y2 - \frac{(x - c)^2}{2 e^y}
    - \log 2\pi s.$$

    Attributes:
        y_mean: $m$.
        y_scale: $s$.
        x_mean: $c$.
    """

    y_mean: Float[Array, ""] = eqx.field(converter=as_float, default=4.0)
    y_scale: Float[Array, ""] = eqx.field(converter=as_float, default=3.0)
    x_mean: Float[Array, ""] = eqx.field(converter=as_float, default=1.0)

    def __call__(self, x: Float[Array, "2"]) -> Float[Array, ""]:
        """The normalised log density of one point (x, y)."""
        x, y = x
        prior = -0.5 * ((y - self.y_mean) / self.y_scale) ** 2 - jnp.log(self.y_scale)
        given = -0.5 * y - 0.5 * (x - self.x_mean) ** 2 * jnp.exp(-y)
        return prior + given - math.log(2 * math.pi)

    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n 2"]:
        """Exact draws: y, then x given y."""
        z, w = jax.random.normal(key, (2, n), self.y_mean.dtype)
        y = self.y_mean + self.y_scale * z
        return jnp.stack([self.x_mean + jnp.exp(y / 2) * w, y], axis=1)


class FunnelCoinSVGD(eqx.Module):
    r"""The funnel's score as Coin-SVGD's code has it: wrong in y, on purpose.

    It exists only to replay the funnel column of the paper's first table: of its eight
    Langevin and SVGD figures, all but SVGD's at 500 steps agree with this score and not
    with the true one. That code takes the derivative of $\log N(y; m, s^2)$ with
    respect to $s$ for the one with respect to $y$, so that the prior's part of the y
    component, $-(y - m)/s^2$, becomes $((y - m)^2 - s^2)/s^3$; the likelihood's part,
    $((x - c)^2 e^{-y} - 1)/2$, and the x component, $-(x - c) e^{-y}$, are right.
    The result is the gradient of a function that grows like $y^3$, which no constant
    normalises: a score without a density and without exact draws.

    That this is the reading (only the prior's part replaced) was read in that code and
    seen in a replay of 500 particles, 8 seeds: SVGD's KSD after 50, 100, 200 and 500
    steps is .641, .203, .052, .031 (paper: .612, .189, .050, .052), Langevin's .394,
    .227, .150, .113 (paper: .387, .231, .144, .116); with the true score they are
    .709, .290, .126, .060 and .444, .281, .205, .149.

    Attributes:
        funnel: the funnel, with $m$, $s$ and $c$.
    """

    funnel: Funnel = eqx.field(default_factory=Funnel)

    def __call__(self, x: Float[Array, "2"]) -> Float[Array, "2"]:
        """The wrong score at one point (x, y)."""
        x, y = x
        y_mean, y_scale = self.funnel.y_mean, self.funnel.y_scale
        centred = x - self.funnel.x_mean
        wrong = ((y - y_mean) ** 2 - y_scale**2) / y_scale**3
        likelihood = 0.5 * (centred**2 * jnp.exp(-y) - 1)
        return jnp.stack([-centred * jnp.exp(-y), wrong + likelihood])


class Squiggle(eqx.Module):
    r"""A wave: $(x, y + \sin \omega x)$ follows `base`.

    The map has Jacobian 1, so the log density is that of `base` at the mapped point.

    Attributes:
        base: by default $N((1, 1), \Sigma)$, $\Sigma = ((2, .25), (.25, .5))$.
        frequency: $\omega$.
    """

    base: Gaussian
    frequency: Float[Array, ""]

    def __init__(
        self,
        mean: ArrayLike | tuple = (1.0, 1.0),
        covariance: ArrayLike | tuple = ((2.0, 0.25), (0.25, 0.5)),
        frequency: ArrayLike = 2.0,
    ):
        """Takes the mean and the covariance of `base`, and the frequency."""
        self.base = Gaussian(mean, np.linalg.inv(np.asarray(covariance)))
        self.frequency = as_float(frequency)

    def __call__(self, x: Float[Array, "2"]) -> Float[Array, ""]:
        """The normalised log density of one point."""
        return self.base(jnp.stack([x[0], x[1] + jnp.sin(self.frequency * x[0])]))

    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n 2"]:
        """Exact draws: those of `base`, mapped back."""
        u, v = self.base.sample(key, n).T
        return jnp.stack([u, v - jnp.sin(self.frequency * u)], axis=1)


NAMES = ("x", "y")


def gaussian() -> Target:
    """Mean (-1, 1), precision ((3, -.5), (-.5, 1))."""
    density = Gaussian()
    return Target(density, dim=2, sample=density.sample, names=NAMES)


def mog2() -> Target:
    """Two Gaussians of covariance I/2 around (-2, 2) and (2, -2)."""
    density = GaussianMixture(((-2.0, 2.0), (2.0, -2.0)), math.sqrt(0.5))
    return Target(
        density, dim=2, sample=density.sample, modes=density.modes, names=NAMES
    )


def rosenbrock() -> Target:
    """The bent Gaussian of `Rosenbrock`."""
    density = Rosenbrock()
    return Target(density, dim=2, sample=density.sample, names=NAMES)


def donut() -> Target:
    """The ring of `Donut`."""
    density = Donut()
    return Target(density, dim=2, sample=density.sample, names=NAMES)


def funnel() -> Target:
    """The funnel of `Funnel`, with its true score."""
    density = Funnel()
    return Target(density, dim=2, sample=density.sample, names=NAMES)


def funnel_coinsvgd() -> ScoreTarget:
    """The wrong score of `FunnelCoinSVGD`."""
    return ScoreTarget(FunnelCoinSVGD(), 2, names=NAMES)


def squiggle() -> Target:
    """The wave of `Squiggle`."""
    density = Squiggle()
    return Target(density, dim=2, sample=density.sample, names=NAMES)
