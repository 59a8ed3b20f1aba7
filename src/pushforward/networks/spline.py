"""Monotone rational-quadratic splines: a bend of single coordinates, with its inverse.

Between knots the map is a quotient of two quadratics whose slopes at the knots are
given, and beyond them it is the identity (Durkan et al., 2019). With `t` the place
between two knots, `s` the slope of the line through them, and `d0`, `d1` the slopes at
them,

    y = y0 + h (s t^2 + d0 t (1 - t)) / (s + (d0 + d1 - 2 s) t (1 - t)).

A quadratic equation has the inverse. So one coordinate may have several modes.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward._precision import NETWORK_DTYPE
from pushforward.errors import UsageError
from pushforward.networks.base import AbstractStoredNetwork

# Of the mean width of a bin and of the slope of the identity: no bin and no slope is
# less, so that the inverse is as exact as the map.
_LEAST = 1e-3


class Knots(eqx.Module):
    """The knots of one spline: where they are, and the slopes there."""

    x: Float[Array, " k"]
    y: Float[Array, " k"]
    slope: Float[Array, " k"]

    @staticmethod
    def of(
        widths: Float[Array, " b"],
        heights: Float[Array, " b"],
        slopes: Float[Array, " c"],
        bound: float,
    ) -> "Knots":
        """Knots from free numbers, of which zeros give the identity.

        Args:
            widths: a number for each bin, the logarithm of its share of the interval.
            heights: the same for its image.
            slopes: a number for each inner knot.
            bound: the spline bends what lies between `-bound` and `bound`.
        """
        # Widths and heights at once, for one softmax.
        logits = jnp.stack([widths, heights])
        count = logits.shape[1]
        shares = _LEAST + (1 - _LEAST) * count * jax.nn.softmax(logits, axis=1)
        ends = 2 * jnp.cumsum(shares / count, axis=1)[:, :-1] - 1
        # The ends exactly, whatever the rounding.
        one = jnp.ones((2, 1), ends.dtype)
        x, y = bound * jnp.concatenate([-one, ends, one], axis=1)
        # softplus(shift) is what is missing to the slope of the identity.
        shift = jnp.log(jnp.expm1(jnp.asarray(1 - _LEAST, slopes.dtype)))
        inner = _LEAST + jax.nn.softplus(slopes + shift)
        return Knots(x, y, jnp.concatenate([one[0], inner, one[0]]))

    def _bin(self, at: Float[Array, ""], ends: Float[Array, " k"]):
        """The bin that `at` lies in, by its corners, slopes and steepness."""
        # A sum over few bins: gradients of a lookup would be scattered.
        inner = ends[1:-1]
        here = jnp.concatenate([jnp.ones(1, bool), at >= inner]) & jnp.concatenate(
            [at < inner, jnp.ones(1, bool)]
        )

        def pick(values):
            return jnp.sum(jnp.where(here, values, 0.0))

        x0, y0 = pick(self.x[:-1]), pick(self.y[:-1])
        width, height = pick(jnp.diff(self.x)), pick(jnp.diff(self.y))
        slopes = pick(self.slope[:-1]), pick(self.slope[1:])
        return x0, y0, width, height, *slopes, height / width

    def bend(self, x: Float[Array, ""]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The image of `x`, and the logarithm of the slope there."""
        inside = (x > self.x[0]) & (x < self.x[-1])
        x0, y0, width, height, d0, d1, s = self._bin(x, self.x)
        t = jnp.where(inside, (x - x0) / width, 0.5)
        denominator = s + (d0 + d1 - 2 * s) * t * (1 - t)
        y = y0 + height * (s * t**2 + d0 * t * (1 - t)) / denominator
        log_slope = _log_slope(t, d0, d1, s, denominator)
        return jnp.where(inside, y, x), jnp.where(inside, log_slope, 0.0)

    def unbend(self, y: Float[Array, ""]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The point whose image is `y`, and the logarithm of the slope there."""
        inside = (y > self.y[0]) & (y < self.y[-1])
        x0, y0, width, height, d0, d1, s = self._bin(y, self.y)
        rise = jnp.where(inside, y - y0, 0.5 * height)
        bent = rise * (d0 + d1 - 2 * s)
        a = height * (s - d0) + bent
        b = height * d0 - bent
        c = -s * rise
        # The root that loses no digits to cancellation; b is not negative.
        root = jnp.sqrt(jnp.maximum(b**2 - 4 * a * c, 1e-12))
        t = jnp.clip(2 * c / (-b - root), 0.0, 1.0)
        denominator = s + (d0 + d1 - 2 * s) * t * (1 - t)
        log_slope = _log_slope(t, d0, d1, s, denominator)
        x = x0 + width * t
        return jnp.where(inside, x, y), jnp.where(inside, log_slope, 0.0)


def _log_slope(t, d0, d1, s, denominator) -> Float[Array, ""]:
    inner = d1 * t**2 + 2 * s * t * (1 - t) + d0 * (1 - t) ** 2
    return 2 * jnp.log(s) + jnp.log(inner) - 2 * jnp.log(denominator)


class SplineMap(AbstractStoredNetwork):
    """A spline of `bins` bins for each coordinate, by itself.

    Training starts at the identity.
    """

    widths: Float[Array, "d b"]
    heights: Float[Array, "d b"]
    slopes: Float[Array, "d c"]
    in_size: int = eqx.field(static=True)
    out_size: int = eqx.field(static=True)
    bins: int = eqx.field(static=True)
    bound: float = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        bins: int = 32,
        bound: float = 8.0,
        *,
        key: PRNGKeyArray | None = None,
    ):
        """The identity on `in_size` coordinates."""
        if in_size < 1 or bins < 2 or not bound > 0:
            raise UsageError(
                "A spline needs at least one coordinate, two bins and a positive "
                f"bound, not in_size={in_size}, bins={bins}, bound={bound}."
            )
        self.widths = jnp.zeros((in_size, bins), NETWORK_DTYPE)
        self.heights = jnp.zeros((in_size, bins), NETWORK_DTYPE)
        self.slopes = jnp.zeros((in_size, bins - 1), NETWORK_DTYPE)
        self.in_size = self.out_size = in_size
        self.bins, self.bound = bins, bound

    def arrays(self) -> dict[str, Any]:
        """The free numbers of the knots."""
        return {"widths": self.widths, "heights": self.heights, "slopes": self.slopes}

    def _knots(self) -> Knots:
        """The knots of every coordinate, stacked."""
        make = jax.vmap(lambda w, h, s: Knots.of(w, h, s, self.bound))
        return make(self.widths, self.heights, self.slopes)

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """The map at one point."""
        return self.with_log_det(x)[0]

    def with_log_det(
        self, x: Float[Array, " d"]
    ) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """The map at one point, and `log |det|` of its Jacobian there."""
        y, log_slopes = jax.vmap(Knots.bend)(self._knots(), x)
        return y, jnp.sum(log_slopes)

    def inverse_with_log_det(
        self, y: Float[Array, " d"]
    ) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """The point that the map takes to `y`, and `log |det|` of the map there."""
        x, log_slopes = jax.vmap(Knots.unbend)(self._knots(), y)
        return x, jnp.sum(log_slopes)

    def push(
        self, x: Float[Array, " d"], log_p: Float[Array, ""], score: Float[Array, " d"]
    ) -> tuple[Float[Array, " d"], Float[Array, ""], Float[Array, " d"]]:
        """The map at one point, with the log density and the score that land there.

        The score is `(score - (log slope)') / slope` in each coordinate. In derivatives
        only the point moves; log density and score are constants.
        """
        knots, at = jax.lax.stop_gradient((self._knots(), x))

        def log_slope(knots, x):
            return knots.bend(x)[1]

        log_slopes, bends = jax.vmap(jax.value_and_grad(log_slope, argnums=1))(
            knots, at
        )
        landed = (score - bends) * jnp.exp(-log_slopes)
        return self(x), log_p - jnp.sum(log_slopes), landed
