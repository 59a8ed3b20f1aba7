"""Which copy of a symmetric density is learnt: the one around its highest maximum."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from pushforward.mcmc.ascent import (
    ASCENT_EVALUATIONS,
    ascend,
    log_uniform_starts,
    maximum_at,
    maximum_cost,
)
from pushforward.targets.base import AbstractTarget
from pushforward.targets.one_copy import Copy, OneCopy, divided

# Ascents to the highest maximum, and steps where only a score is known.
_ASCENTS, _FEWEST, _STEPS = 64, 4, 1000
# The noise of those steps falls to this share of what it is at first.
_COOL = 0.05


def divides(target: AbstractTarget) -> bool:
    """Whether one copy is learnt: of a score with noise all are."""
    return target.symmetry is not None and not target.has_noise_levels()


def how_learnt(target: AbstractTarget) -> str | None:
    """What a network learns of a target with a symmetry, as a sentence."""
    action = target.symmetry
    if action is None:
        return None
    moved = "and a random element moves each draw"
    if not divides(target):
        return f"The network learns all copies under {action.describe()}, {moved}."
    alone, together = divided(action)
    copies = math.prod(each.finite_size for each in (*alone, *together))
    learnt = f"one copy of {copies:,}" if copies > 1 else "all copies"
    if action.canonical_dim < action.structure.size:
        learnt += ", without the rotation"
    density = "averages over the group" if action.can_average else "not known"
    return (
        f"The network learns {learnt} under {action.describe()}, {moved}; log "
        f"densities are {density}."
    )


def affordable(max_evaluations: int | None) -> int:
    """How many ascents a tenth of a budget pays for."""
    if max_evaluations is None:
        return _ASCENTS
    return max(_FEWEST, min(_ASCENTS, int(0.1 * max_evaluations) // ASCENT_EVALUATIONS))


def divide(
    key: PRNGKeyArray, target: AbstractTarget, ascents: int = _ASCENTS
) -> tuple[OneCopy, int]:
    """One copy of a target with a symmetry, and what it cost to find; pure.

    Args:
        key: random key.
        target: a target with a symmetry.
        ascents: how many ascents look for its highest maximum.
    """
    assert target.symmetry is not None
    action = target.symmetry
    if target.why_no_density() is not None:
        centre, evaluations = _settle(key, target), _STEPS
        # The curvature by the score, symmetric.
        slope = jax.jacfwd(target.score)(centre)
        values, vectors = jnp.linalg.eigh(-0.5 * (slope + slope.T))
        largest = jnp.max(jnp.abs(values))
        sizes = jnp.maximum(jnp.abs(values), 1e-4 * largest)
        axes = vectors / jnp.sqrt(sizes)[None]
        evaluations += 2 * target.dim
    else:
        zero, one = jnp.zeros(target.dim), jnp.ones(target.dim)
        starts, sizes = log_uniform_starts(key, ascents, zero, one, 0.1, 100.0)
        points, heights = ascend(target.log_density, starts, sizes)
        best = points[jnp.argmax(jnp.where(jnp.isfinite(heights), heights, -jnp.inf))]
        found = maximum_at(target.log_density, best)
        centre, axes = found.position, found.axes
        evaluations = ascents * ASCENT_EVALUATIONS + maximum_cost(target.dim)
    if action.rotations is not None:
        # Along an orbit the density is flat, and its width there is that of the orbit.
        axes = _shortened(axes, jnp.sqrt(jnp.sum(centre**2)))
    return OneCopy(target, Copy.around(action, centre, axes)), evaluations


def _settle(key: PRNGKeyArray, target: AbstractTarget):
    """A likely point, by Langevin dynamics whose noise dies out."""

    def step(x, i):
        score = target.score(x)
        size = jnp.minimum(0.05 * target.dim / jnp.sum(score**2), 1.0)
        cooling = jnp.maximum(1 - i / _STEPS, _COOL).astype(x.dtype)
        noise = jax.random.normal(jax.random.fold_in(key, i), x.shape, x.dtype)
        return x + size * score + cooling * jnp.sqrt(2 * size) * noise, None

    start = jax.random.normal(jax.random.fold_in(key, _STEPS), (target.dim,))
    return jax.lax.scan(step, start, jnp.arange(_STEPS))[0]


def _shortened(axes, radius):
    """Axes no longer than a tenth of the size of the point, or than the shortest.

    A point at the centre of all rotations has no orbit, and a size of 0.
    """
    lengths = jnp.sqrt(jnp.sum(axes**2, axis=0))
    longest = jnp.maximum(np.float32(0.1) * radius, jnp.min(lengths))
    return axes * jnp.minimum(1.0, longest / lengths)[None].astype(axes.dtype)
