"""A target seen in other coordinates, in which it is roughly standard.

`x_i = m_i + s_i sinh(t_i v_i) / t_i`, `v = c + L u`: an affine map, with a bend in
those coordinates whose tails are much heavier than a Gaussian's (`t_i > 0`).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward.errors import UsageError
from pushforward.targets.base import (
    AbstractTarget,
    Knowledge,
    UserFunction,
    VarianceReduction,
    view_functions,
)
from pushforward.targets.structure import Structure


class Preconditioner(eqx.Module):
    """A bijection from roughly standard `u` to the target's coordinates `x`."""

    centre: Float[Array, " d"]
    scale: Float[Array, " d"]
    tails: Float[Array, " d"]
    shift: Float[Array, " d"]
    factor: Float[Array, "d d"]

    def arrays(self) -> dict[str, Any]:
        """Every array, by its name in a file."""
        return {
            "centre": self.centre,
            "scale": self.scale,
            "tails": self.tails,
            "shift": self.shift,
            "factor": self.factor,
        }

    @staticmethod
    def identity(dim: int) -> "Preconditioner":
        """The map that changes nothing."""
        zero, one = jnp.zeros(dim), jnp.ones(dim)
        return Preconditioner(zero, one, zero, zero, jnp.eye(dim))

    @staticmethod
    def affine(
        mean: Float[Array, " d"], factor: Float[Array, "d d"]
    ) -> "Preconditioner":
        """`x = mean + factor u`."""
        zero = jnp.zeros_like(mean)
        return Preconditioner(mean, jnp.ones_like(mean), zero, zero, factor)

    def is_scalar(self) -> bool:
        """Whether all coordinates are scaled alike and none is bent.

        True inside a compiled program, where the numbers are not known.
        """
        arrays = (self.scale, self.tails, self.factor)
        if any(isinstance(a, Tracer) for a in arrays):
            return True
        scale, tails, factor = map(np.asarray, arrays)
        scalar = factor[0, 0] * np.eye(len(factor), dtype=factor.dtype)
        alike = np.all(scale == 1) and np.all(tails == 0)
        return bool(alike and np.array_equal(factor, scalar))

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


class Preconditioned(AbstractTarget):
    """A target seen in preconditioned coordinates; for the rest it answers itself."""

    target: AbstractTarget
    preconditioner: Preconditioner

    def __init__(self, target: AbstractTarget, preconditioner: Preconditioner):
        self.target, self.preconditioner = target, preconditioner

    def __check_init__(self):
        # Noise of level sigma here is noise of level sigma * L there: scalar L only.
        if self.target.has_noise_levels() and not self.preconditioner.is_scalar():
            raise UsageError(
                "The score of this target depends on the level of isotropic noise, so "
                "its coordinates can only be scaled all alike; use "
                "Preconditioner.identity."
            )

    @property
    def structure(self) -> Structure:
        """A bare vector: preconditioned coordinates have no names."""
        return Structure.vector(self.target.dim)

    @property
    def sample_fn(self) -> Callable[..., Any] | None:
        """None: it is for training, and exact draws are in the target's coordinates."""
        return None

    @property
    def kind(self) -> type[AbstractTarget]:
        """That of the target."""
        return self.target.kind

    @property
    def knowledge(self) -> Knowledge:
        """That of the target, without a symmetry: coordinates may not have it."""
        return dataclasses.replace(self.target.knowledge, symmetry=None)

    def minibatch(self, key: PRNGKeyArray) -> "Preconditioned":
        return self._around(self.target.minibatch(key))

    def subsample(self, n: int) -> "Preconditioned":
        return self._around(self.target.subsample(n))

    def reduce_variance(self, found: VarianceReduction | None) -> "Preconditioned":
        return self._around(self.target.reduce_variance(found))

    def _around(self, target: AbstractTarget) -> "Preconditioned":
        if target is self.target:
            return self
        return Preconditioned(target, self.preconditioner)

    def user_functions(self) -> tuple[UserFunction, ...]:
        return view_functions(self)

    def _log_density(self, x):
        value = self.target.log_density(self.preconditioner.to_target(x))
        return value + self.preconditioner.log_det(x)

    def _score(self, x, key, sigma):
        scale = self.preconditioner.factor[0, 0]
        outer = None if sigma is None else jnp.asarray(sigma, scale.dtype) * scale
        there = self.preconditioner.to_target(x)
        score = self.target.score(there, key=key, sigma=outer)
        return self.preconditioner.pull_back(score, x)
