"""Probing an unknown density: where it is not finite, and whether it falls."""

import itertools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from pushforward.targets.base import AbstractTarget

# Random starting points at each scale; fewer for a target with many observations.
POINTS, FEW_POINTS, SCALES = 32, 4, (0.1, 1.0, 3.0)
MANY_DATA = 50_000
DIRECTIONS = 32
# Of a target with more axes, those with the smallest gradients are probed.
MAX_AXES = 64
DISTANCES = np.array([1e1, 3e1, 1e2, 1e4, 1e6, 1e8])
# Directions that follow the score: the first distance, how many times it grows and by
# what factor, and how many of the directions are followed further.
_START, _STRIDES, _STRIDE, _RUNAWAYS = 3.0, 8, 2.0, 4
# The largest unit of these distances.
_WIDEST = 1e4
# Of a target with more observations, a subsample of this size is probed first.
MAX_DATA = 1000
# Points that are evaluated at once, and the terms of sums over data that these have.
_CHUNK, _MAX_TERMS = 256, 2_000_000


class Evaluations(NamedTuple):
    """A target at many points: the parts of its log density, and its score."""

    parts: Float[np.ndarray, "n parts"]
    score: Float[np.ndarray, "n d"]

    @property
    def values(self) -> Float[np.ndarray, " n"]:
        """The log density."""
        return self.parts.sum(axis=1)


@eqx.filter_jit
def _evaluate(
    target: AbstractTarget, points: Float[Array, "n d"], sigma: Float[Array, ""] | None
):
    def parts(x):
        functions = target.user_functions()
        found = jnp.stack([f.part(x) for f in functions if f.part is not None])
        return jnp.sum(found), found

    def at(x):
        if target.why_no_density() is not None:
            return jnp.zeros(1, x.dtype), target.score(x, sigma=sigma)
        (_, found), gradient = jax.value_and_grad(parts, has_aux=True)(x)
        return found, gradient

    with jax.default_matmul_precision("highest"):
        return jax.vmap(at)(points)


def evaluate(
    target: AbstractTarget, points: Float[np.ndarray, "n d"], sigma: float | None = None
) -> Evaluations:
    """The target at `points`, by a program that is compiled once for any number."""
    chunk = max(1, min(_CHUNK, _MAX_TERMS // target.num_terms))
    level = None if sigma is None else jnp.asarray(sigma, float)
    n = len(points)
    padding = np.repeat(points[:1], -n % chunk, axis=0)
    padded = jnp.asarray(np.concatenate([points, padding]), float)
    found = [
        jax.device_get(_evaluate(target, padded[i : i + chunk], level))
        for i in range(0, len(padded), chunk)
    ]
    parts, score = (np.concatenate(arrays)[:n] for arrays in zip(*found, strict=True))
    return Evaluations(parts, score)


def starting_points(
    rng: np.random.Generator, target: AbstractTarget
) -> Float[np.ndarray, "n d"]:
    """Points around the origin, near and far."""
    slow = target.num_terms > MANY_DATA
    scales = np.repeat(SCALES, FEW_POINTS if slow else POINTS)[:, None]
    return scales * rng.standard_normal((len(scales), target.dim))


class Culprit(NamedTuple):
    """A coordinate whose value alone makes a density break."""

    index: int
    value: float
    negative: bool


def culprit(
    target: AbstractTarget,
    part: int,
    points: Float[np.ndarray, "n d"],
    is_bad: Bool[np.ndarray, " n"],
) -> Culprit | None:
    """Finds the coordinate to blame, by moving one at a time from bad to good points.

    Args:
        target: the target.
        part: which part of its log density breaks.
        points: points of both kinds.
        is_bad: where that part is not finite.
    """
    dim = points.shape[1]
    good = points[~is_bad]
    if not len(good):
        # Many densities are at home among positive numbers.
        candidates = np.concatenate([np.abs(points), np.full((1, dim), 0.5)])
        fine = np.isfinite(evaluate(target, candidates).parts[:, part])
        good = candidates[fine]
    if not len(good) or dim > _CHUNK:
        return None
    pairs = list(
        itertools.islice(zip(itertools.cycle(good), points[is_bad], strict=False), 16)
    )
    mixed = np.stack([np.where(np.eye(dim, dtype=bool), b, g) for g, b in pairs])
    found = evaluate(target, mixed.reshape(-1, dim)).parts[:, part]
    broken = ~np.isfinite(found).reshape(len(pairs), dim)
    worst = int(np.argmax(broken.sum(axis=0)))
    if not broken[:, worst].any():
        return None
    values = np.array([bad[worst] for _, bad in pairs])[broken[:, worst]]
    return Culprit(worst, float(values[0]), bool(np.all(values < 0)))


class Flat(NamedTuple):
    """A direction in which a density does not fall, and what was seen along it.

    Attributes:
        direction: as long as one unit of the distances.
        near: the first distance and the log density there.
        far: the last that shows it.
        falls: whether it falls, though too slowly.
    """

    direction: Float[np.ndarray, " d"]
    near: tuple[float, float]
    far: tuple[float, float]
    falls: bool


def flat_directions(
    target: AbstractTarget,
    rng: np.random.Generator,
    points: Float[np.ndarray, "n d"],
    seen: Evaluations,
) -> list[Flat]:
    """The directions in which the density falls too slowly, however far one goes.

    Looks along the axes, along random directions, along the one the gradients at
    `points` say least about, and along those in which points run away. At a distance t,
    1/t has no integral along a line, and 1/t^d none over all of them: the latter must
    be so in every random direction. A value that is not a number says nothing:
    arithmetic overflows far out.
    """
    dim = points.shape[1]
    finite = np.isfinite(seen.values) & np.isfinite(seen.score).all(axis=1)
    # `points` hold as many at each scale; the first good one of each is a base.
    each = len(points) // len(SCALES)
    starts = each * np.arange(len(SCALES))
    thirds = [np.flatnonzero(finite[i : i + each]) + i for i in starts]
    bases = [points[found[0]] for found in thirds if len(found)]
    if not bases:
        return []
    bases = bases if dim <= 16 else bases[-1:]
    sizes = np.abs(seen.score[finite]).max(axis=0)
    axes = np.eye(dim)[np.argsort(sizes, kind="stable")[:MAX_AXES]]
    random = _random_directions(rng, dim)
    lines = [*axes, *-axes, *_runaway(target, rng, bases[-1])]
    oblique: list[np.ndarray] = []
    silent = _silent_direction(seen.score[finite])
    if silent is not None:
        oblique = [silent, -silent]
    return _flat(target, np.stack(bases), lines, random, oblique)[0]


def flat_from(
    target: AbstractTarget,
    rng: np.random.Generator,
    bases: Float[np.ndarray, "n d"],
    widths: Float[np.ndarray, " d"],
    suspects: list[Float[np.ndarray, " d"]],
    height: float,
) -> tuple[list[Flat], bool]:
    """The same, from where the density has its mass.

    Also says whether enough could be seen along each of the suspects.

    Args:
        target: a target with a log density.
        rng: for the random directions.
        bases: points around the highest one, of which each must show it.
        widths: how wide the density is there, in each coordinate.
        suspects: directions that are looked at in any case.
        height: the log density of the highest point, from which it has to fall.
    """
    dim = bases.shape[1]
    # The units: rounding hides steps much smaller than the point, and overflow what is
    # much further away than mass can be.
    low = 1e-6 * (1 + np.abs(bases).max())
    units = np.clip(widths, low, max(low, _WIDEST))
    axes = (units * np.eye(dim))[np.argsort(-units, kind="stable")[:MAX_AXES]]
    random = units * _random_directions(rng, dim)
    oblique = [s / np.linalg.norm(s / units) for s in suspects]
    return _flat(target, bases, [*axes, *-axes], [*random], oblique, height)


def _random_directions(rng: np.random.Generator, dim: int):
    random = rng.standard_normal((DIRECTIONS, dim))
    return random / np.linalg.norm(random, axis=1, keepdims=True)


def _flat(
    target, bases, lines, random, oblique, height=None
) -> tuple[list[Flat], bool]:
    """The directions that are flat from each base; whether the oblique ones were seen.

    Where none of the lines is flat, all random ones may be, in as many dimensions.
    """
    directions = [*lines, *random, *oblique]
    reach = [len(DISTANCES)] * (len(lines) + len(random))
    # Rounding moves the point off an oblique line when it goes very far.
    reach += [len(DISTANCES) - 1] * len(oblique)
    walks = (
        bases[:, None, None, :]
        + DISTANCES[:, None] * np.stack(directions)[None, :, None, :]
    )
    dim = bases.shape[1]
    values = evaluate(target, walks.reshape(-1, dim)).values.reshape(walks.shape[:3])

    def ends(i: int, power: float):
        found = [_slow(v[i, : reach[i]], power, height) for v in values]
        return [e for e in found if e is not None]

    def slow(i: int, power: float) -> list[Flat]:
        known = ends(i, power)
        return [Flat(directions[i], *known[0])] if known and all(known) else []

    flat = [found for i in range(len(directions)) for found in slow(i, 1.0)]
    first, last = len(lines), len(lines) + len(random)
    if not flat and dim > 1:
        everywhere = [slow(i, float(dim)) for i in range(first, last)]
        flat = everywhere[0] if all(everywhere) else []
    return flat, all(ends(i, 1.0) for i in range(last, len(directions)))


def _slow(
    values: Float[np.ndarray, " t"], power: float, height: float | None
) -> tuple[Any, ...] | None:
    """The ends of a walk that falls no faster than 1 / t^power.

    They read `((t, value), (t, value), falls)`; an empty tuple where it falls faster,
    None where too few values are finite. A `height` is the value at the distance 0.
    """
    if np.any(np.isneginf(values)):
        return ()
    at = [
        (float(t), float(v))
        for t, v in zip(DISTANCES, values, strict=False)
        if np.isfinite(v)
    ]
    if height is not None:
        at = [(0.0, height), *at]
    if len(at) < 2:
        return None
    near, before, last = at[0], at[-2], at[-1]
    # Of large numbers the differences that matter are lost.
    rounding = 8 * np.finfo(values.dtype).eps * max(abs(near[1]), abs(last[1]))
    change = abs(near[1] - last[1])
    if (rounding > 1 and 0 < change < rounding) or (rounding > 30 and change == 0):
        return None
    if last[0] >= 1e6:
        # Between a mode nearby and infinity there may be hills; the ends count.
        if last[1] > near[1] - 1:
            return near, last, False
        start, between = max(near[0], DISTANCES[0]), max(before[0], DISTANCES[0])
        # What levels off after a deep fall, by a clip, say, does no harm.
        deep = near[1] - last[1] > power * np.log(last[0] / start) + 30
        # Rounding, and 1 / t^power itself.
        fall = power * np.log(last[0] / between) + 0.01
        if deep or before[1] - last[1] > fall:
            return ()
        return before, last, bool(before[1] - last[1] > 0.1)
    if np.any(np.isposinf(values)) and last[1] > before[1] + 1:
        return before, last, False
    return None


def _runaway(
    target: AbstractTarget, rng: np.random.Generator, base: Float[np.ndarray, " d"]
) -> list[np.ndarray]:
    """The directions in which a density is highest far out.

    Random directions follow the score at distances that grow, in shrinking steps.
    """
    directions = _random_directions(rng, len(base))
    distance = _START
    for i in range(_STRIDES):
        seen = evaluate(target, base + distance * directions)
        norms = np.linalg.norm(seen.score.astype(np.float64), axis=1, keepdims=True)
        usable = np.isfinite(norms) & (norms > 0)
        ahead = np.where(usable, seen.score / np.where(usable, norms, 1.0), 0.0)
        directions = directions + 2 / (i + 2) * ahead
        directions /= np.linalg.norm(directions, axis=1, keepdims=True) + 1e-30
        distance *= _STRIDE
    values = evaluate(target, base + distance * directions).values
    values = np.where(np.isfinite(values), values, -np.inf)
    best = np.argsort(-values, kind="stable")[:_RUNAWAYS]
    return [*directions[best]]


def _silent_direction(scores: Float[np.ndarray, "n d"]):
    """The oblique direction along which no gradient points, or None."""
    dim = scores.shape[1]
    norms = np.linalg.norm(scores.astype(np.float64), axis=1, keepdims=True)
    unit = scores[norms[:, 0] > 0] / norms[norms[:, 0] > 0]
    if dim < 2 or len(unit) < dim:
        return None
    least = np.linalg.eigh(unit.T @ unit)[1][:, 0]
    is_axis = np.max(np.abs(least)) > 0.999
    return None if is_axis or np.max(np.abs(unit @ least)) > 1e-4 else least
