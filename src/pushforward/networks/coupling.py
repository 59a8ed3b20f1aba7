"""Coupling layers in any number of dimensions: a log-determinant for the asking.

The default sampler is made of them. Their halves differ from layer to layer, so that
every two coordinates can be bent by each other.
"""

import itertools
from collections.abc import Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward._precision import NETWORK_DTYPE
from pushforward.errors import UsageError
from pushforward.networks.base import (
    AbstractDensityNetwork,
    AbstractStoredNetwork,
    normal_log_density,
)
from pushforward.networks.mlp import ACTIVATIONS, refuse_unknown
from pushforward.networks.spline import Knots

Halves = Literal["mixed", "alternating"]


class CouplingMap(AbstractDensityNetwork, AbstractStoredNetwork):
    """`layers` coupling layers, each with halves of its own.

    A layer keeps the coordinates that its mask `m` has and maps the others to

        y = f(x; k(m x)) exp(t(m x)) + b(m x),

    with `(t, b, k)` a multi-layer perceptron that starts near 0 and |t| softly bounded
    by `log_bound`: training starts at the identity. `f` is a monotone spline with
    `bins` bins and the knots `k` between `-bound` and `bound`, so that a coordinate may
    have several modes; without bins it is left out. The Jacobian is triangular, with
    `log |det| = sum (t + log f')` over the coordinates that are changed, and the
    inverse follows as `m y = m x`. Masks come in pairs, a half and the other half:
    "mixed", different ones until every two coordinates have been parted, or
    "alternating", the first coordinates and the last.
    """

    # Weight and bias of each layer of the perceptrons, the coupling layers stacked: one
    # is compiled, however many there are.
    weights: tuple[Float[Array, "..."], ...]
    in_size: int = eqx.field(static=True)
    out_size: int = eqx.field(static=True)
    layers: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    depth: int = eqx.field(static=True)
    activation: str = eqx.field(static=True)
    log_bound: float = eqx.field(static=True)
    halves: Halves = eqx.field(static=True)
    bins: int = eqx.field(static=True)
    bound: float = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        layers: int,
        width: int,
        depth: int,
        activation: str = "silu",
        log_bound: float = 2.0,
        halves: Halves = "mixed",
        bins: int = 0,
        bound: float = 5.0,
        *,
        key: PRNGKeyArray,
    ):
        """A map of `in_size` coordinates, at least two."""
        refuse_line(in_size)
        refuse_unknown(activation)
        if halves not in ("mixed", "alternating"):
            raise UsageError(
                f"halves must be 'mixed' or 'alternating', not {halves!r}."
            )
        self.in_size = self.out_size = in_size
        self.layers, self.width, self.depth = layers, width, depth
        self.activation, self.log_bound, self.halves = activation, log_bound, halves
        self.bins, self.bound = bins, bound
        # A scale, a shift, and widths, heights and inner slopes of the bins.
        each = 2 + (3 * bins - 1 if bins else 0)
        sizes = [in_size, *[width] * depth, each * in_size]
        self.weights = stacked_weights(key, sizes, layers)

    def arrays(self) -> dict[str, Any]:
        """Weight and bias of each layer of the perceptrons."""
        return {f"weights.{i}": a for i, a in enumerate(self.weights)}

    @property
    def has_density(self) -> bool:
        """Coupling layers are invertible, whatever their weights."""
        return True

    @property
    def masks(self) -> Float[np.ndarray, "layers d"]:
        """Which coordinates each layer keeps: the same for every seed."""
        if self.halves == "alternating":
            return _alternating_masks(self.in_size, self.layers)
        return _masks(self.in_size, self.layers)

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """The map at one point."""
        return self.with_log_det(x)[0]

    def with_log_det(
        self, x: Float[Array, " d"]
    ) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """The map at one point, and `log |det|` of its Jacobian there."""

        def layer(carry, this):
            x, log_det = carry
            y, log_slopes = self._forward(x, *this)
            return (y, log_det + jnp.sum(log_slopes)), None

        start = x, jnp.zeros((), x.dtype)
        return jax.lax.scan(layer, start, self._layers(x.dtype))[0]

    def inverse_with_log_det(
        self, y: Float[Array, " d"]
    ) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """The point that the map takes to `y`, and `log |det|` of the map there."""

        def layer(carry, this):
            y, log_det = carry
            mask, weights = this
            t, b, knots = self._bend(y, mask, weights)
            log_slopes, x = t, (y - b) * jnp.exp(-t)
            if knots is not None:
                x, bends = jax.vmap(Knots.unbend)(knots, x)
                x = jnp.where(mask > 0, y, x)
                log_slopes = t + (1 - mask) * bends
            return (x, log_det + jnp.sum(log_slopes)), None

        start = y, jnp.zeros((), y.dtype)
        return jax.lax.scan(layer, start, self._layers(y.dtype), reverse=True)[0]

    def with_log_density(
        self, z: Float[Array, " d"]
    ) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """The map at one latent point, and the log density of its draws there."""
        x, log_det = self.with_log_det(z)
        return x, normal_log_density(z) - log_det

    def log_density(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The log density at `x` of draws whose latent points are standard normal."""
        z, log_det = self.inverse_with_log_det(x)
        return normal_log_density(z) - log_det

    def push(
        self, x: Float[Array, " d"], log_p: Float[Array, ""], score: Float[Array, " d"]
    ) -> tuple[Float[Array, " d"], Float[Array, ""], Float[Array, " d"]]:
        """The map at one point, with the log density and the score that land there.

        A layer that keeps `a` and changes `c`, with slopes `h = dy_c/dx_c`, takes a
        score `(u, v)` to

            v' = (v - d log h / dx_c) / h,    u' = u - grad_a (v' . y_c + sum log h),

        which is `J^-T ((u, v) - grad log |det J|)` for its triangular Jacobian J. In
        derivatives only the point moves; log density and score are constants.
        """

        def layer(carry, this):
            x, log_p, score = carry
            y, _ = self._forward(x, *this)
            still, (mask, weights) = jax.lax.stop_gradient((x, this))
            # The same pass once more, for the compiler to merge.
            (_, log_slopes), pull = jax.vjp(
                lambda x: self._forward(x, mask, weights), still
            )
            changed = 1 - mask
            if self.bins:
                score = score - changed * self._bends(still, mask, weights)
            score = score * jnp.exp(-log_slopes)
            (slope,) = pull((changed * score, changed))
            score = score - mask * slope
            return (y, log_p - jnp.sum(log_slopes), score), None

        start = x, log_p, score
        return jax.lax.scan(layer, start, self._layers(x.dtype))[0]

    def push_latents(
        self, z: Float[Array, "n d"]
    ) -> tuple[
        Float[Array, "n d"], Float[Array, " n"], Float[Array, "n d"], Float[Array, " n"]
    ]:
        def one(z):
            at = jax.lax.stop_gradient(z)
            return *self.push(z, normal_log_density(at), -at), jnp.zeros((), z.dtype)

        return jax.vmap(one)(z)

    def _layers(self, dtype):
        return jnp.asarray(self.masks, dtype), self.weights

    def _forward(self, x, mask, weights):
        """One layer: the image, and the logarithms of the slopes, 0 where it keeps."""
        t, b, knots = self._bend(x, mask, weights)
        if knots is None:
            return x * jnp.exp(t) + b, t
        bent, bends = jax.vmap(Knots.bend)(knots, x)
        bent = jnp.where(mask > 0, x, bent)
        return bent * jnp.exp(t) + b, t + (1 - mask) * bends

    def _bends(self, x, mask, weights):
        """How the logarithm of each slope changes with its own coordinate."""
        knots = self._bend(x, mask, weights)[2]
        return jax.vmap(jax.grad(lambda x, k: k.bend(x)[1]))(x, knots)

    def _bend(self, x, mask, weights):
        """Scales, shifts and knots of one layer, 0 where it keeps the coordinates."""
        activation = ACTIVATIONS[self.activation]
        *hidden, weight, bias = weights
        h = mask * x
        for w, b in zip(hidden[::2], hidden[1::2], strict=True):
            h = activation(w @ h + b)
        dim, bins = self.in_size, self.bins
        t, b, *free = jnp.split(weight @ h + bias, (dim, 2 * dim))
        t = self.log_bound * jnp.tanh(t / self.log_bound)
        t, b = (1 - mask) * t, (1 - mask) * b
        if not bins:
            return t, b, None
        widths, heights, slopes = jnp.split(
            free[0].reshape(dim, -1), (bins, 2 * bins), axis=1
        )
        make = jax.vmap(lambda w, h, s: Knots.of(w, h, s, self.bound))
        return t, b, make(widths, heights, slopes)


def _masks(dim: int, layers: int) -> Float[np.ndarray, "layers d"]:
    """Halves such that `log2(dim)` of them part every two coordinates.

    Two that are never parted cannot be bent by each other. So in a random order the
    first half is that of the lower places, the second that of every other quarter, then
    of every other eighth, ..., and after the last a new order begins.
    """
    generator = np.random.default_rng(0)
    rounds = max((dim - 1).bit_length(), 1)
    masks = np.zeros((layers, dim), np.float32)
    for i in range(0, layers, 2):
        digit = i // 2 % rounds
        if digit == 0:
            places = generator.permutation(dim)
        masks[i] = (places * 2 ** (digit + 1) // dim) % 2 == 0
        masks[i + 1 : i + 2] = 1 - masks[i]
    return masks


def _alternating_masks(dim: int, layers: int) -> Float[np.ndarray, "layers d"]:
    """The first coordinates and the last in turn, the first being kept last but one."""
    masks = np.zeros((layers, dim), np.float32)
    for i in range(layers):
        kept = slice(dim // 2) if (layers - i) % 2 == 0 else slice(dim - dim // 2, dim)
        masks[i, kept] = 1
    return masks


def refuse_line(in_size: int) -> None:
    """Refuses a single coordinate."""
    if in_size < 2:
        raise UsageError(
            "A coupling layer changes one half of the coordinates given the other, "
            f"and there is only {in_size}."
        )


def stacked_weights(
    key: PRNGKeyArray, sizes: Sequence[int], layers: int
) -> tuple[Float[Array, "..."], ...]:
    """Weights and biases of as many perceptrons as there are coupling layers.

    They are uniform within `1 / sqrt(inputs)`, the last ones near 0.
    """
    shapes, bounds = [], []
    for inputs, outputs in itertools.pairwise(sizes):
        last = len(shapes) == 2 * (len(sizes) - 2)
        shapes += [(layers, outputs, inputs), (layers, outputs)]
        bounds += [(0.01 if last else 1.0) * inputs**-0.5] * 2
    # One draw for all: every call of the generator takes half a second to compile.
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    flat = jax.random.uniform(key, (int(ends[-1]),), NETWORK_DTYPE, -1.0, 1.0)
    parts = jnp.split(flat, ends[:-1].tolist())
    return tuple(
        bound * part.reshape(shape)
        for part, shape, bound in zip(parts, shapes, bounds, strict=True)
    )
