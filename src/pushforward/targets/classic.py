"""Densities that samplers are usually tried on, in d dimensions, with exact draws."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward.targets.base import Target
from pushforward.targets.planar import GaussianMixture, as_float


class CorrelatedGaussian(eqx.Module):
    r"""A centred Gaussian of unit variances and covariances $\rho^{|i - j|}$.

    It is an autoregression, $x_1 \sim N(0, 1)$ and
    $x_i | x_{i-1} \sim N(\rho x_{i-1}, 1 - \rho^2)$, which is how it is evaluated and
    drawn: in linear time and without a matrix.

    Attributes:
        rho: the correlation of neighbours, inside (-1, 1).
        dim: d.
    """

    rho: Float[Array, ""] = eqx.field(converter=as_float, default=0.9)
    dim: int = eqx.field(static=True, default=10)

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The normalised log density of one point."""
        variance = 1 - self.rho**2
        innovations = x[1:] - self.rho * x[:-1]
        square = x[0] ** 2 + jnp.sum(innovations**2) / variance
        log_volume = 0.5 * (x.size - 1) * jnp.log(variance)
        return -0.5 * square - log_volume - 0.5 * x.size * math.log(2 * math.pi)

    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]:
        """Exact draws, coordinate after coordinate."""
        z = jax.random.normal(key, (self.dim, n), self.rho.dtype)
        scale = jnp.sqrt(1 - self.rho**2)

        def step(previous, noise):
            x = self.rho * previous + scale * noise
            return x, x

        _, rest = jax.lax.scan(step, z[0], z[1:])
        return jnp.concatenate([z[:1], rest]).T


class NealFunnel(eqx.Module):
    r"""Neal's funnel, $v \sim N(0, s^2)$ and $x_i | v \sim N(0, e^v)$.

    The point is $(v, x_1, \dots, x_{d-1})$.

    Attributes:
        scale: $s$.
        dim: d.
    """

    scale: Float[Array, ""] = eqx.field(converter=as_float, default=3.0)
    dim: int = eqx.field(static=True, default=10)

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The normalised log density of one point (v, x)."""
        v, rest = x[0], x[1:]
        prior = -0.5 * (v / self.scale) ** 2 - jnp.log(self.scale)
        given = -0.5 * rest.size * v - 0.5 * jnp.exp(-v) * jnp.sum(rest**2)
        return prior + given - 0.5 * x.size * math.log(2 * math.pi)

    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]:
        """Exact draws: v, then x given v."""
        z = jax.random.normal(key, (n, self.dim), self.scale.dtype)
        v = self.scale * z[:, :1]
        return jnp.concatenate([v, jnp.exp(v / 2) * z[:, 1:]], axis=1)


class Banana(eqx.Module):
    r"""The twisted Gaussian of Haario, Saksman and Tamminen (1999).

    $(x_1, x_2 + b (x_1^2 - s^2), x_3, \dots)$ follows
    $N(0, \mathrm{diag}(s^2, 1, \dots, 1))$; the Jacobian is 1 and the mean 0.

    Attributes:
        scale: $s$.
        bend: $b$.
        dim: d, at least 2.
    """

    scale: Float[Array, ""] = eqx.field(converter=as_float, default=10.0)
    bend: Float[Array, ""] = eqx.field(converter=as_float, default=0.03)
    dim: int = eqx.field(static=True, default=2)

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The normalised log density of one point."""
        twisted = x[1] + self.bend * (x[0] ** 2 - self.scale**2)
        square = (x[0] / self.scale) ** 2 + twisted**2 + jnp.sum(x[2:] ** 2)
        log_volume = jnp.log(self.scale) + 0.5 * x.size * math.log(2 * math.pi)
        return -0.5 * square - log_volume

    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]:
        """Exact draws: Gaussian ones, twisted back."""
        z = jax.random.normal(key, (n, self.dim), self.scale.dtype)
        first = self.scale * z[:, 0]
        second = z[:, 1] - self.bend * (first**2 - self.scale**2)
        return z.at[:, 0].set(first).at[:, 1].set(second)


class StudentT(eqx.Module):
    r"""The multivariate Student t of identity scale and $\nu$ degrees of freedom.

    $$\log q(x) = -\frac{\nu + d}{2} \log\Bigl(1 + \frac{|x|^2}{\nu}\Bigr)
    + \log\Gamma\Bigl(\frac{\nu + d}{2}\Bigr) - \log\Gamma\Bigl(\frac\nu2\Bigr)
    - \frac d2 \log \nu\pi.$$

    Attributes:
        df: $\nu$.
        dim: d.
    """

    df: Float[Array, ""] = eqx.field(converter=as_float, default=5.0)
    dim: int = eqx.field(static=True, default=5)

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The normalised log density of one point."""
        power = 0.5 * (self.df + x.size)
        log_gamma = jax.scipy.special.gammaln
        constant = log_gamma(power) - log_gamma(0.5 * self.df)
        log_volume = 0.5 * x.size * jnp.log(math.pi * self.df)
        return -power * jnp.log1p(jnp.sum(x**2) / self.df) + constant - log_volume

    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]:
        r"""Exact draws, $z / \sqrt{c / \nu}$ with $c \sim \chi^2_\nu$."""
        of_z, of_gamma = jax.random.split(key)
        z = jax.random.normal(of_z, (n, self.dim), self.df.dtype)
        gamma = jax.random.gamma(of_gamma, 0.5 * self.df, (n, 1), self.df.dtype)
        return z * jnp.sqrt(0.5 * self.df / gamma)


def correlated_gaussian(dim: int = 10) -> Target:
    """The autoregression of `CorrelatedGaussian`, neighbours correlated by .9."""
    density = CorrelatedGaussian(dim=dim)
    return Target(density, dim=dim, sample=density.sample)


def neal_funnel(dim: int = 10) -> Target:
    """Neal's funnel; the first coordinate is the log variance of the others."""
    density = NealFunnel(dim=dim)
    names = ("v", *(f"x{i}" for i in range(1, dim)))
    return Target(density, dim=dim, sample=density.sample, names=names)


def banana(dim: int = 2) -> Target:
    """The twisted Gaussian of `Banana`."""
    density = Banana(dim=dim)
    return Target(density, dim=dim, sample=density.sample)


def student_t(dim: int = 5) -> Target:
    """Student's t with 5 degrees of freedom."""
    density = StudentT(dim=dim)
    return Target(density, dim=dim, sample=density.sample)


def ring() -> Target:
    """Eight Gaussians of sd 0.5 on a circle of radius 5."""
    angles = np.arange(8) * (math.pi / 4)
    means = 5 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return _mixture(means, 0.5)


def grid() -> Target:
    """Twenty-five Gaussians of sd 0.3, two apart, on a 5 by 5 grid."""
    ticks = np.arange(-4.0, 5.0, 2.0)
    means = np.stack(np.meshgrid(ticks, ticks, indexing="ij"), axis=-1)
    return _mixture(means.reshape(25, 2), 0.3)


def gmm40() -> Target:
    """Forty Gaussians of sd 1.3133 with means uniform on [-40, 40]^2.

    A few of the forty lie closer together than two sd and share a mode.
    """
    # NumPy's generator, named: JAX's differ between its versions and settings.
    generator = np.random.Generator(np.random.PCG64(0))
    return _mixture(80 * generator.random((40, 2)) - 40, 1.3133)


def _mixture(means: np.ndarray, scale: float) -> Target:
    density = GaussianMixture(means, scale)
    return Target(
        density,
        dim=2,
        sample=density.sample,
        modes=density.modes,
        names=("x", "y"),
    )
