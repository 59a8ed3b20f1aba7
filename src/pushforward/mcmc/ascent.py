"""Climbing a log density from many starts, and the shape of it around each maximum."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

LogDensity = Callable[[Float[Array, " d"]], Float[Array, ""]]

ASCENT_STEPS = 150
# Evaluations of one ascent.
ASCENT_EVALUATIONS = 2 * ASCENT_STEPS
# Factors on a step size while the gradient keeps its sign, and when it turns.
_GROW, _SHRINK = 1.4, 0.5
_NEWTON_STEPS = 12
# A point is resolved where so many units of rounding change the log density by little.
_DIGITS = 4.0
# A width is where the log density has fallen by 2, as at two standard deviations.
_FALL, _FALL_SDS = 2.0, 2.0
_BISECTIONS = 40


def maximum_cost(dim: int) -> int:
    """How many evaluations `maximum_at` takes.

    A Hessian is `dim` products with a vector, each the price of two evaluations; every
    width is bisected on two sides.
    """
    hessians = 2 * dim * (_NEWTON_STEPS + 1)
    return hessians + 3 * _NEWTON_STEPS + 1 + 2 * dim * _BISECTIONS


class Maximum(eqx.Module):
    """A maximum of a log density and the Gaussian of the same widths.

    Attributes:
        position: Where it is.
        height: The log density there.
        axes: A matrix whose columns are the axes, each one standard deviation long.
        log_mass: The log integral of the Gaussian of this height and these axes.
    """

    position: Float[Array, "*k d"]
    height: Float[Array, "*k"]
    axes: Float[Array, "*k d d"]
    log_mass: Float[Array, "*k"]


def is_resolved(
    log_density: LogDensity, x: Float[Array, " d"], value: Float[Array, ""]
) -> Bool[Array, ""]:
    """Whether the last digits of `x` do not decide the log density there, `value`.

    In the neck of a centred hierarchical model the density rises without end. It has
    no mass there, but rounding puts coordinates on top of each other, and then it has.
    """
    # Neighbours in opposite directions, or differences of coordinates would stay.
    signs = jnp.where(jnp.arange(x.shape[0]) % 2 == 0, 1.0, -1.0).astype(x.dtype)
    digits = _DIGITS * jnp.finfo(x.dtype).eps
    beside = log_density(x + digits * signs * jnp.abs(x))
    change = jnp.abs(value - beside)
    # A support may end there. Far out the log density changes by much, but not in
    # proportion to what it is.
    return ~(change > 1 + 0.01 * jnp.abs(value)) | jnp.isneginf(beside)


def ascend(
    log_density: LogDensity,
    starts: Float[Array, "n d"],
    step_sizes: Float[Array, "n d"],
    steps: int = ASCENT_STEPS,
) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
    """The best points that each of n ascents met, and their log densities.

    Each coordinate has a step of its own, which grows while the gradient keeps its sign
    and shrinks when it turns (Rprop; Riedmiller and Braun 1993). The size of the
    gradient plays no part, so one rule finds maxima at scales from 1e-6 to 1e6. A point
    of no density or without a gradient sends the ascent back to its best point, and so
    does one that is not resolved. A step takes two evaluations.
    """

    def one(start, step_size):
        def step(carry, _):
            x, size, before, best, highest = carry
            value, gradient = jax.value_and_grad(log_density)(x)
            usable = jnp.isfinite(value) & jnp.all(jnp.isfinite(gradient))
            usable &= is_resolved(log_density, x, value)
            better = usable & (value > highest)
            best = jnp.where(better, x, best)
            highest = jnp.where(better, value, highest)
            gradient = jnp.where(usable, gradient, 0.0)
            turned = gradient * before < 0
            kept = gradient * before > 0
            size = size * jnp.where(kept, _GROW, jnp.where(turned, _SHRINK, 1.0))
            size = jnp.clip(jnp.where(usable, size, 0.3 * size), 1e-12, 1e12)
            gradient = jnp.where(turned, 0.0, gradient)
            back = jnp.where(jnp.isfinite(highest), best, 0.5 * x)
            x = jnp.where(usable, x + jnp.sign(gradient) * size, back)
            return (x, size, gradient, best, highest), None

        lowest = jnp.asarray(-jnp.inf, start.dtype)
        first = (start, step_size, jnp.zeros_like(start), start, lowest)
        (_, _, _, best, highest), _ = jax.lax.scan(step, first, None, length=steps)
        return best, highest

    return jax.vmap(one)(starts, step_sizes)


def maximum_at(log_density: LogDensity, x: Float[Array, " d"]) -> Maximum:
    """The maximum near `x`, by damped Newton steps, and its widths.

    The widths are not those of the curvature alone, which is zero at a flat top and in
    the direction of a ridge: along each principal axis of the Hessian the log density
    is followed on both sides until it has fallen by 2.
    """

    def principal(x):
        """Scales of the coordinates, and the eigenvalues of -H in units of them."""
        dim = x.shape[0]
        hessian = jax.lax.map(
            lambda v: jax.jvp(jax.grad(log_density), (x,), (v,))[1],
            jnp.eye(dim, dtype=x.dtype),
            batch_size=256,
        )
        curvature = jnp.nan_to_num(-0.5 * (hessian + hessian.T), posinf=0, neginf=0)
        diagonal = jnp.abs(jnp.diagonal(curvature))
        # No scale is beyond 1e12: where the density is flat there is no curvature.
        floor = 1e-7 * jnp.max(diagonal) + 1e-24
        scales = 1 / jnp.sqrt(jnp.maximum(diagonal, floor))
        values, vectors = jnp.linalg.eigh(curvature * jnp.outer(scales, scales))
        return scales, values, vectors

    def newton(carry, _):
        x, value, damping = carry
        scales, values, vectors = principal(x)
        slope = scales * jnp.nan_to_num(jax.grad(log_density)(x), posinf=0, neginf=0)
        step = vectors @ ((vectors.T @ slope) / (jnp.abs(values) + damping))
        there = x + scales * step
        new = log_density(there)
        uphill = (new >= value) & is_resolved(log_density, there, new)
        damping = jnp.where(uphill, 0.1 * damping, jnp.minimum(10 * damping, 1e6))
        return (
            jnp.where(uphill, there, x),
            jnp.where(uphill, new, value),
            damping,
        ), None

    start = (x, log_density(x), jnp.asarray(1e-2, x.dtype))
    (x, height, _), _ = jax.lax.scan(newton, start, None, length=_NEWTON_STEPS)
    scales, values, vectors = principal(x)
    guesses = 1 / jnp.sqrt(jnp.maximum(jnp.abs(values), 1e-6))
    directions = scales[:, None] * vectors

    def distance(direction, guess):
        """How far the log density must be followed to fall by 2."""

        def halve(_, bounds):
            low, high = bounds
            middle = 0.5 * (low + high)
            fallen = ~(height - log_density(x + jnp.exp(middle) * direction) < _FALL)
            return jnp.where(fallen, low, middle), jnp.where(fallen, middle, high)

        # Far down: a bounded support may be as narrow as it likes.
        bounds = jnp.log(guess) - 60.0, jnp.log(guess) + 12.0
        low, high = jax.lax.fori_loop(0, _BISECTIONS, halve, bounds)
        return jnp.exp(0.5 * (low + high))

    def width(column):
        direction, guess = column
        both = distance(direction, guess) + distance(-direction, guess)
        return both / (2 * _FALL_SDS)

    widths = jax.lax.map(width, (directions.T, guesses), batch_size=256)
    log_volume = jnp.sum(jnp.log(widths)) + jnp.sum(jnp.log(scales))
    return Maximum(
        position=x,
        height=height,
        axes=directions * widths[None],
        log_mass=height + 0.5 * x.shape[0] * jnp.log(2 * jnp.pi) + log_volume,
    )


def log_uniform_starts(
    key: PRNGKeyArray,
    n: int,
    centre: Float[Array, " d"],
    scale: Float[Array, " d"],
    low: float | Float[Array, ""],
    high: float | Float[Array, ""],
) -> tuple[Float[Array, "n d"], Float[Array, "n d"]]:
    """Starts around a centre, each at its own distance, and first step sizes."""
    size_key, key = jax.random.split(key)
    sizes = jnp.exp(
        jax.random.uniform(size_key, (n, 1), scale.dtype, jnp.log(low), jnp.log(high))
    )
    widths = sizes * scale[None]
    z = jax.random.normal(key, (n, centre.shape[0]), scale.dtype)
    return centre[None] + widths * z, 0.1 * widths
