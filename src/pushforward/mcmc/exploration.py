"""Exploration: from a log density to particles, modes and the normaliser.

1. *Climb.* Many ascents, from starts whose distances differ by orders of magnitude,
   find maxima and with them the scale of the target; two more rounds start where the
   first one ended. The widths around each maximum give a Gaussian.
2. *Temper.* Tempered SMC starts twice from a mixture of these Gaussians and one that
   spans all of them, and twice from a plain wide Gaussian: a narrow maximum may hold
   little of the mass, as the neck of a funnel does.
3. *Pool.* Each run estimates the normaliser, too low where it misses mass. The two
   runs that found the most are pooled, with those of the others that found as much.
4. *Double.* The number of particles doubles until the two agree.
"""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward.errors import UsageError
from pushforward.mcmc.ascent import (
    ASCENT_STEPS,
    Maximum,
    ascend,
    log_uniform_starts,
    maximum_at,
    maximum_cost,
)
from pushforward.mcmc.mixture import GaussianMixture
from pushforward.mcmc.moments import mean_and_covariance
from pushforward.mcmc.smc import Particles, temper
from pushforward.targets.base import AbstractTarget

MAX_EVALUATIONS = 8_000_000
FIRST_PARTICLES, MAX_PARTICLES = 1024, 16_384
MAX_MODES = 64
# Above this dimension one maximum is climbed to: Hessians of more would cost too much.
_MAX_DIM_MANY_MODES = 128
_ASCENTS, _ASCENTS_WIDE = 1024, 64
_ROUNDS = 3
_MAX_TEMPERATURES = 150
# The share of the starting mixture that spans all maxima.
_WIDE_SHARE = 0.5
# Two runs agree where their log normalisers differ by less than this.
_AGREEMENT = 0.2
# Two maxima are one mode where log q dips by less than this on the way between them.
_DIP = 2.0
_POINTS_BETWEEN = 17


@dataclasses.dataclass(frozen=True, repr=False)
class Exploration:
    """What exploration found.

    Attributes:
        particles: Particles in unconstrained coordinates, equally weighted.
        draws: The same in the user's own tree.
        mode_centres: A maximum for each mode, in unconstrained coordinates, the
            heaviest first.
        mode_weights: The share of the particles in each mode.
        num_maxima: How many distinct maxima were found; more than there are modes
            where some are joined, or where there are too many to tell apart.
        log_normaliser: The log of the integral of the un-normalised density.
        log_normaliser_se: Its standard error, from the difference between the pooled
            runs. Two runs say little about it, and nothing of mass that both miss.
        agreed: Whether the log normalisers of independent runs agreed within the
            budget. Shares of modes are not compared.
        evaluations: The number of target evaluations.
        acceptance: The mean acceptance probability of the last moves.
    """

    particles: Float[Array, "n d"]
    draws: Any
    mode_centres: Float[np.ndarray, "k d"]
    mode_weights: Float[np.ndarray, " k"]
    num_maxima: int
    log_normaliser: float
    log_normaliser_se: float
    agreed: bool
    evaluations: int
    acceptance: float

    def __repr__(self) -> str:
        count = len(self.mode_weights)
        many = self.num_maxima > MAX_MODES
        modes = f"{count} mode{'s' * (count != 1)}"
        weights = ", ".join(f"{w:.3f}" for w in self.mode_weights[:5])
        listed = f" with weights {weights}{', ...' * (count > 5)}" if count > 1 else ""
        found = f"more than {MAX_MODES} maxima" if many else f"{modes}{listed}"
        trust = (
            "log normalisers of independent runs agree"
            if self.agreed
            else "log normalisers of independent runs disagree"
        )
        return (
            f"Exploration: {len(self.particles):,} particles, {found},\n"
            f"log normaliser {self.log_normaliser:.3f} ± {self.log_normaliser_se:.3f}, "
            f"{self.evaluations:,} evaluations; {trust}."
        )


def explore(
    key: PRNGKeyArray,
    target: AbstractTarget,
    *,
    max_evaluations: int | None = None,
) -> Exploration:
    """Particles, modes and the normaliser of a target that nothing is known about.

    Args:
        key: Random key.
        target: A target with a log density.
        max_evaluations: The budget of target evaluations, 8 million unless given. The
            first particles are always made.

    Returns:
        An `Exploration`; its `agreed` says whether to trust it. A mode that no ascent
        and no run reaches is missing without a sign.
    """
    target.require_density("explore")
    budget = MAX_EVALUATIONS if max_evaluations is None else max_evaluations
    if budget < 1:
        raise UsageError(f"max_evaluations must be at least 1; it is {budget}.")
    climb_key, key = jax.random.split(key)
    found = _climb(climb_key, target)
    spent, n, runs = found.evaluations, FIRST_PARTICLES, []
    while True:
        begun = spent
        runs = _temper_all(jax.random.fold_in(key, n), target, found, n)
        spent += sum(int(run.evaluations) for run in runs)
        log_z, error, agreed = _agreement(runs)
        # The next round costs about twice as much as this one.
        more = spent + 2 * (spent - begun)
        if agreed or 2 * n > MAX_PARTICLES or more > budget:
            break
        n *= 2
    pool_key, key = jax.random.split(key)
    particles = _pool(pool_key, runs, 2 * n)
    centres, weights = _modes(target, found, particles)
    if found.complete:
        spent += _POINTS_BETWEEN * len(found.maxima.height) ** 2
    return Exploration(
        particles=particles,
        draws=jax.vmap(target.structure.unflatten)(particles),
        mode_centres=centres,
        mode_weights=weights,
        num_maxima=found.num_maxima,
        log_normaliser=log_z,
        log_normaliser_se=error,
        agreed=agreed,
        evaluations=spent,
        acceptance=min(float(run.acceptance) for run in runs),
    )


@dataclasses.dataclass(frozen=True)
class _Climb:
    maxima: Maximum
    base: GaussianMixture
    num_maxima: int
    # Whether `maxima` are all that were found.
    complete: bool
    evaluations: int


@eqx.filter_jit
def _ascend_around(key, target, n, centre, scale, low, high):
    starts, sizes = log_uniform_starts(key, n, centre, scale, low, high)
    return ascend(target.log_density, starts, sizes)


@eqx.filter_jit
def _maxima_at(target, points):
    return jax.lax.map(lambda x: maximum_at(target.log_density, x), points)


def _climb(key: PRNGKeyArray, target: AbstractTarget) -> _Climb:
    """Maxima of the target, and a mixture that covers them and what lies between."""
    dim = target.dim
    many = dim <= _MAX_DIM_MANY_MODES
    n = _ASCENTS if many else _ASCENTS_WIDE
    limit = max(4, min(MAX_MODES, 2**18 // dim**2)) if many else 1
    centre, scale = np.zeros(dim), np.ones(dim)
    points, heights = np.zeros((0, dim)), np.zeros(0)
    kept = np.zeros(0, int)
    widths = np.ones(dim)
    evaluations = 0
    for i in range(_ROUNDS if many else 1):
        # First from everywhere, then from the region that holds the maxima.
        low, high = (0.1, 100.0 if many else 1.0) if i == 0 else (1.0, 5.0)
        best, highest = _ascend_around(
            jax.random.fold_in(key, i),
            target,
            n,
            jnp.asarray(centre, float),
            jnp.asarray(scale, float),
            low,
            high,
        )
        evaluations += n * ASCENT_STEPS + maximum_cost(dim)
        points = np.concatenate([points, np.asarray(best, np.float64)])
        heights = np.concatenate([heights, np.asarray(highest, np.float64)])
        usable = np.isfinite(heights)
        points, heights = points[usable], heights[usable]
        if not len(points):
            continue
        top = _maxima_at(target, jnp.asarray(points[[np.argmax(heights)]], float))
        axes = np.asarray(top.axes[0], np.float64)
        widths = np.sqrt(np.sum(axes**2, axis=1))
        kept = _distinct(points, heights, widths, 8 * MAX_MODES, 10.0 + 5 * dim)
        centre = points[kept].mean(axis=0)
        scale = np.sqrt(points[kept].var(axis=0) + widths**2)
    if not len(kept):
        raise UsageError(
            "The log density is finite at none of the points that exploration tried; "
            "check it at points where it should be finite."
        )
    maxima = _maxima_at(target, jnp.asarray(points[kept[:limit]], float))
    evaluations += min(len(kept), limit) * maximum_cost(dim)
    # Newton's steps may lead two ascents to one maximum.
    positions, masses = (
        np.asarray(a, np.float64) for a in (maxima.position, maxima.log_mass)
    )
    unique = _distinct(positions, masses, 0.5 * widths, limit, math.inf)
    maxima = jax.tree.map(lambda a: a[unique], maxima)
    complete = len(kept) <= limit
    base = _base(points[kept], maxima, known=complete)
    count = len(unique) if complete else len(kept)
    return _Climb(maxima, base, count, complete, evaluations)


def _distinct(points, heights, widths, most, drop):
    """Indices of points further apart than `widths` in some coordinate, best first."""
    order = np.argsort(-heights, kind="stable")
    order = order[np.isfinite(heights[order])]
    kept: list[int] = []
    for i in order:
        if heights[i] < heights[order[0]] - drop or len(kept) == most:
            break
        apart = np.max(np.abs(points[kept] - points[i]) / widths, axis=1, initial=0)
        if not kept or np.min(apart) > 1:
            kept.append(i)
    return np.array(kept, int)


def _base(points, maxima: Maximum, *, known: bool) -> GaussianMixture:
    """Gaussians at the maxima, and one that spans them all, which is the last."""
    axes = np.asarray(maxima.axes, np.float64)
    masses = np.asarray(maxima.log_mass, np.float64)
    shares = np.exp(masses - np.max(masses))
    shares /= shares.sum()
    within = np.einsum("k,kij,klj->il", shares, axes, axes)
    between = np.cov(points, rowvar=False, ddof=0).reshape(within.shape)
    wide = (2.0 if len(points) > 1 else 1.3) * (within + between)
    wide += 1e-8 * np.diag(np.diagonal(wide))
    centre = points.mean(axis=0) if len(points) > 1 else maxima.position[0]
    # Where there are more maxima than could be listed, the few would be preferred.
    factors = [_lower(1.1 * a) for a in axes] if known else []
    floor = np.log(1e-2 / len(masses))
    logs = np.logaddexp(np.log(shares), floor) if known else np.zeros(0)
    if known:
        logs = logs - np.logaddexp.reduce(logs) + np.log(1 - _WIDE_SHARE)
    means = [*np.asarray(maxima.position)] if known else []
    return GaussianMixture.of(
        jnp.asarray([*logs, np.log(_WIDE_SHARE)], float),
        jnp.asarray(np.stack([*means, centre]), float),
        jnp.asarray(np.stack([*factors, np.linalg.cholesky(wide)]), float),
    )


def _lower(axes):
    """The lower-triangular factor of `axes axes'`."""
    upper = np.asarray(np.linalg.qr(axes.T, mode="r"))
    signs = np.where(np.diagonal(upper) < 0, -1.0, 1.0)
    return (upper * signs[:, None]).T


def _temper_all(
    key: PRNGKeyArray, target: AbstractTarget, found: _Climb, n: int
) -> list[Particles]:
    """Two runs from the maxima, and two from a plain wide Gaussian, one by one."""
    dim = target.dim
    runs = [
        _temper(jax.random.fold_in(key, i), target, found.base, n) for i in range(2)
    ]
    if n < 5 * dim:
        # A Gaussian is not improved by so few particles.
        return runs
    mean, factor = jnp.zeros(dim), 3.0 * jnp.eye(dim)
    for i in range(2, 5):
        base = GaussianMixture.of(jnp.zeros(1), mean[None], factor[None])
        run = _temper(jax.random.fold_in(key, i), target, base, n)
        mean, covariance = mean_and_covariance(run.positions)
        factor = 1.5 * jnp.linalg.cholesky(covariance)
        if i > 2:
            runs.append(run)
        else:
            first = run
    # What the first of the three cost is part of the price.
    total = runs[-1].evaluations + first.evaluations
    runs[-1] = eqx.tree_at(lambda r: r.evaluations, runs[-1], total)
    return runs


@eqx.filter_jit
def _temper(key, target, base: GaussianMixture, n: int) -> Particles:
    """A run in coordinates in which the widest Gaussian of the base is standard."""
    start_key, key = jax.random.split(key)
    mean, factor, inverse = base.means[-1], base.factors[-1], base.inverses[-1]
    log_det = jnp.sum(jnp.log(jnp.abs(jnp.diagonal(factor))))
    start = (base.sample(start_key, n) - mean[None]) @ inverse.T
    run = temper(
        key,
        lambda u: target.log_density(mean + factor @ u) + log_det,
        lambda u: base.log_density(mean + factor @ u) + log_det,
        start,
        max_temperatures=_MAX_TEMPERATURES,
        full_metric=n >= 5 * target.dim,
    )
    positions = mean[None] + run.positions @ factor.T
    return eqx.tree_at(lambda r: r.positions, run, positions)


def _normaliser(run: Particles) -> float:
    """The log normaliser of a run; minus infinity where it did not finish."""
    found = float(run.log_normaliser)
    return found if bool(run.finished) and math.isfinite(found) else -math.inf


def _counted(runs: list[Particles]) -> list[Particles]:
    """The runs that are pooled: two from the base that found the most mass.

    The other two join them where they found as much. A run that found less has missed
    something, and would give what it did find too large a share.
    """
    pairs = [runs[i : i + 2] for i in range(0, len(runs), 2)]
    pairs.sort(key=lambda pair: -sum(map(_normaliser, pair)))
    lowest = min(map(_normaliser, pairs[0]))
    return [
        run
        for i, pair in enumerate(pairs)
        for run in pair
        if i == 0 or _normaliser(run) >= lowest - _AGREEMENT / 2
    ]


def _agreement(runs: list[Particles]) -> tuple[float, float, bool]:
    """The pooled log normaliser, its standard error, and whether the runs agree."""
    logs = np.array([_normaliser(run) for run in _counted(runs)])
    if not np.isfinite(logs).all():
        best = float(logs.max())
        return (best if math.isfinite(best) else math.nan), math.inf, False
    pooled = float(np.logaddexp.reduce(logs) - math.log(len(logs)))
    error = float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    return pooled, error, bool(np.ptp(logs[:2]) < _AGREEMENT)


def _pool(key: PRNGKeyArray, runs: list[Particles], n: int) -> Float[Array, "n d"]:
    """`n` particles of the runs that count, in proportion to their normalisers."""
    counted = _counted(runs)
    logs = np.array([_normaliser(run) for run in counted])
    logs = np.where(np.isfinite(logs), logs, -1e30)
    shares = np.exp(logs - logs.max())
    edges = np.rint(np.cumsum(shares / shares.sum()) * n).astype(int)
    counts = np.diff(edges, prepend=0)
    parts = []
    for i, (run, count) in enumerate(zip(counted, counts, strict=True)):
        size = run.positions.shape[0]
        order = jax.random.permutation(jax.random.fold_in(key, i), size)
        # A run that stands for more than its particles repeats them evenly.
        parts.append(run.positions[order[np.arange(count) % size]])
    return jnp.concatenate(parts)


def _modes(target: AbstractTarget, found: _Climb, particles):
    """The modes among the maxima, and the share of the particles in each."""
    if not found.complete:
        # Too many to list: none is told apart.
        best = np.asarray(found.maxima.position[:1], np.float64)
        return best, np.ones(1)
    roots = _joined(target, found.maxima.position)
    nearest = np.asarray(_nearest(found.maxima, particles))
    labels = roots[nearest]
    tops, counts = np.unique(labels, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    heights = np.asarray(found.maxima.height)
    highest = [
        max(np.flatnonzero(roots == root), key=heights.__getitem__)
        for root in tops[order]
    ]
    centres = np.asarray(found.maxima.position, np.float64)[highest]
    return centres, counts[order] / len(particles)


@eqx.filter_jit
def _nearest(maxima: Maximum, particles):
    """The maximum whose Gaussian is the densest at each particle."""
    inverses = jnp.linalg.inv(maxima.axes)
    log_dets = jnp.linalg.slogdet(maxima.axes)[1]

    def one(x):
        offsets = jnp.einsum("kij,kj->ki", inverses, x[None] - maxima.position)
        return jnp.argmin(0.5 * jnp.sum(offsets**2, axis=1) + log_dets)

    return jax.lax.map(one, particles, batch_size=1024)


def _joined(target: AbstractTarget, positions):
    """For each maximum the first of those that a way without a dip joins it to."""
    heights = np.asarray(_heights_between(target, positions))
    before = np.maximum.accumulate(heights, axis=0)
    after = np.maximum.accumulate(heights[::-1], axis=0)[::-1]
    dips = np.max(np.minimum(before, after) - heights, axis=0)
    linked = np.nan_to_num(dips, nan=np.inf) < _DIP
    roots = np.arange(len(positions))
    for i, j in zip(*np.nonzero(linked), strict=True):
        old, new = max(roots[i], roots[j]), min(roots[i], roots[j])
        roots[roots == old] = new
    return roots


@eqx.filter_jit
def _heights_between(target: AbstractTarget, positions):
    along = jnp.linspace(0.0, 1.0, _POINTS_BETWEEN, dtype=positions.dtype)

    def between(a, b):
        return jax.vmap(lambda t: target.log_density(a + t * (b - a)))(along)

    rows = jax.lax.map(
        lambda a: jax.vmap(lambda b: between(a, b), out_axes=1)(positions), positions
    )
    return jnp.moveaxis(rows, 0, 1)
