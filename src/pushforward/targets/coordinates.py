"""A target seen in other coordinates, in which it is roughly standard.

`x_i = m_i + s_i sinh(t_i v_i) / t_i`, `v = c + L u`: an affine map, with a bend in
those coordinates whose tails are much heavier than a Gaussian's (`t_i > 0`).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pushforward.targets.base import AbstractTarget
from pushforward.targets.structure import Structure


class Whitening(eqx.Module):
    """A bijection from roughly standard `u` to the target's coordinates `x`."""

    centre: Float[Array, " d"]
    scale: Float[Array, " d"]
    tails: Float[Array, " d"]
    shift: Float[Array, " d"]
    factor: Float[Array, "d d"]

    @staticmethod
    def identity(dim: int) -> "Whitening":
        """No whitening at all."""
        zero, one = jnp.zeros(dim), jnp.ones(dim)
        return Whitening(zero, one, zero, zero, jnp.eye(dim))

    @staticmethod
    def affine(mean: Float[Array, " d"], factor: Float[Array, "d d"]) -> "Whitening":
        """`x = mean + factor u`."""
        zero = jnp.zeros_like(mean)
        return Whitening(mean, jnp.ones_like(mean), zero, zero, factor)

    def _bend(self, v: Float[Array, " d"]) -> Float[Array, " d"]:
        bent = self.tails > 0
        t = jnp.where(bent, self.tails, 1.0)
        # sinh of 0 where it is not used: its overflow would make gradients 0 * inf.
        return jnp.where(bent, jnp.sinh(t * jnp.where(bent, v, 0.0)) / t, v)

    def _log_slope(self, v: Float[Array, " d"]) -> Float[Array, " d"]:
        # log cosh(t v), without overflow.
        a = jnp.abs(self.tails * v)
        return a + jnp.log1p(jnp.exp(-2 * a)) - jnp.log(2.0)

    def to_target(self, u: Float[Array, " d"]) -> Float[Array, " d"]:
        """The target's coordinates of one whitened point."""
        v = self.shift + self.factor @ u
        return self.centre + self.scale * self._bend(v)

    def from_target(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """The whitened coordinates of one point of the target's."""
        y = (x - self.centre) / self.scale
        t = jnp.where(self.tails > 0, self.tails, 1.0)
        v = jnp.where(self.tails > 0, jnp.arcsinh(t * y) / t, y)
        return jax.scipy.linalg.solve_triangular(
            self.factor, v - self.shift, lower=True
        )

    def log_det(self, u: Float[Array, " d"]) -> Float[Array, ""]:
        """The log-determinant of the Jacobian of `to_target` at `u`."""
        v = self.shift + self.factor @ u
        constant = jnp.log(self.scale) + jnp.log(jnp.abs(jnp.diag(self.factor)))
        return jnp.sum(constant + self._log_slope(v))

    def pull_back(
        self, score: Float[Array, " d"], u: Float[Array, " d"]
    ) -> Float[Array, " d"]:
        """The score in whitened coordinates, from the target's score at `to_target(u)`.

        With `v = c + L u`: `L' (ds/dv score + grad log slope)`.
        """
        v = self.shift + self.factor @ u
        slope = self.scale * jnp.cosh(self.tails * v)
        return self.factor.T @ (slope * score + self.tails * jnp.tanh(self.tails * v))


class Whitened(AbstractTarget):
    """A target seen in whitened coordinates."""

    target: AbstractTarget
    whitening: Whitening

    def __init__(self, target: AbstractTarget, whitening: Whitening):
        self.target, self.whitening = target, whitening

    @property
    def structure(self) -> Structure:
        """A bare vector: whitened coordinates have no names."""
        return Structure.vector(self.target.dim)

    @property
    def exact(self):
        """Whitened targets are for training; exact draws live in the original."""
        return None

    @property
    def has_density(self) -> bool:
        """As the target itself."""
        return self.target.has_density

    @property
    def is_stochastic(self) -> bool:
        """As the target itself."""
        return self.target.is_stochastic

    @property
    def sigma_range(self) -> tuple[float, float] | None:
        """As the target itself, whose coordinates are kept where it has levels."""
        return self.target.sigma_range

    def _log_density(self, x):
        value = self.target.log_density(self.whitening.to_target(x))
        return value + self.whitening.log_det(x)

    def _score(self, x, key, sigma):
        # Noise of level sigma here is noise of level sigma * L there (scalar L only).
        scale = self.whitening.factor[0, 0]
        outer = None if sigma is None else jnp.asarray(sigma, scale.dtype) * scale
        score = self.target.score(self.whitening.to_target(x), key=key, sigma=outer)
        return self.whitening.pull_back(score, x)
