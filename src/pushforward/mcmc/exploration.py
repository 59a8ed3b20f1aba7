"""Exploration: from a log density to particles, modes and the normaliser.

1. *Climb.* Many ascents, from starts whose distances differ by orders of magnitude,
   find maxima and with them the scale of the target; two more rounds start where the
   first one ended. The widths around each maximum give a Gaussian.
2. *Temper.* Tempered SMC starts twice from a mixture of these Gaussians and one that
   spans all of them, and twice from a plain wide Gaussian: a narrow maximum may hold
   little of the mass, as the neck of a funnel does.
3. *Pool.* Each run estimates the normaliser, too low where it misses mass. The two
   runs that found the most are pooled, with those of the others that found as much.
4. *Grow.* The number of particles is multiplied by four until the two agree.
"""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pushforward import _programs
from pushforward._validate import whole_number
from pushforward.errors import UsageError
from pushforward.mcmc.ascent import (
    ASCENT_EVALUATIONS,
    Maximum,
    ascend,
    is_resolved,
    log_uniform_starts,
    maximum_at,
    maximum_cost,
)
from pushforward.mcmc.copies import affordable, divide, divides
from pushforward.mcmc.mixture import GaussianMixture
from pushforward.mcmc.smc import EVALUATIONS_PER_TEMPERATURE, Particles, temper
from pushforward.targets.arguments import as_target, one_key
from pushforward.targets.base import AbstractTarget

MAX_EVALUATIONS = 8_000_000
FIRST_PARTICLES, MAX_PARTICLES = 1024, 16_384
MAX_MODES = 64
# Above this dimension one maximum is climbed to: Hessians of more would cost too much.
_MAX_DIM_MANY_MODES = 128
_ASCENTS, _ASCENTS_WIDE = 1024, 64
_ROUNDS = 3
# Each number of particles is a program to compile: they grow by more than a doubling.
_GROWTH = 4
# Numbers of maxima are rounded up to one of these, so that few programs serve all.
_SIZES = (4, MAX_MODES)
_MAX_TEMPERATURES = 150
# Two from the maxima and three from wide Gaussians, the first for the scale only.
_RUNS = 5
# With a bound on the evaluations: the share of the climb; how many temperatures a run
# is expected to take, and the least that it is given; with how many particles at least
# it is started from wide Gaussians; the least particles, and ascents.
_CLIMB_SHARE, _USUAL_TEMPERATURES, _LEAST_TEMPERATURES = 0.25, 15, 4
_LEAST_WIDE, _LEAST, _LEAST_ASCENTS = 128, 64, 16
# The share of the starting mixture that spans all maxima.
_WIDE_SHARE = 0.5
# A run counts where more than this share of its particles is resolved.
_RESOLVED = 0.99
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
        mode_axes: For each mode a matrix whose columns are the axes of the Gaussian of
            its widths, each one standard deviation long.
        labels: The mode of each particle.
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
    mode_axes: Float[np.ndarray, "k d d"]
    labels: Int[np.ndarray, " n"]
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
        max_evaluations: How often the target may be evaluated. Where that is little,
            there are fewer ascents and particles, and runs end where it is spent; the
            least that there can be takes some 30,000 evaluations in the plane, and more
            in many dimensions. None is no bound: after the first 1,024 particles there
            are more only as long as 8 million evaluations pay for them.

    Returns:
        An `Exploration`; its `agreed` says whether to trust it. A mode that no ascent
        and no run reaches is missing without a sign. Of a target with a symmetry one
        copy is explored: its modes are listed, and the particles are those of all.
    """
    key, target = one_key(key), as_target(target)
    target.require_density("explore")
    bound, budget = math.inf, MAX_EVALUATIONS
    if max_evaluations is not None:
        budget = whole_number("max_evaluations", max_evaluations)
        bound = float(budget)
    if divides(target):
        return _explore_one_copy(key, target, max_evaluations)
    climb_key, key = jax.random.split(key)
    found = _climb(climb_key, target, _CLIMB_SHARE * bound)
    spent, runs = found.evaluations, []
    n, enough = _first_particles(bound - spent)
    while True:
        begun = spent
        at = jax.random.fold_in(key, n)
        # A Gaussian is not improved by few particles.
        wide = enough and n >= 5 * target.dim
        runs = _temper_all(at, target, found, n, bound - spent, wide=wide)
        spent += sum(int(run.evaluations) for run in runs)
        log_z, error, agreed = _agreement(runs)
        # The next round costs about as much more as it has more particles.
        more = spent + _GROWTH * (spent - begun)
        if agreed or _GROWTH * n > MAX_PARTICLES or more > budget:
            break
        n *= _GROWTH
    particles = jnp.asarray(_pool(_generator(key), runs, 2 * n), float)
    tops, labels = _modes(target, found, particles)
    weights = np.bincount(labels, minlength=len(tops)) / len(labels)
    return Exploration(
        particles=particles,
        draws=_unflatten(target, particles),
        mode_centres=np.asarray(found.maxima.position)[tops],
        mode_weights=weights,
        mode_axes=np.asarray(found.maxima.axes)[tops],
        labels=labels,
        num_maxima=found.num_maxima,
        log_normaliser=log_z,
        log_normaliser_se=error,
        agreed=agreed,
        evaluations=spent,
        acceptance=min(float(run.acceptance) for run in runs),
    )


def _explore_one_copy(
    key: PRNGKeyArray, target: AbstractTarget, budget: int | None
) -> Exploration:
    """One copy is explored, and its particles are moved by random elements."""
    copy_key, move_key, key = jax.random.split(key, 3)
    one, spent = _divide(copy_key, target, affordable(budget))
    left = None if budget is None else max(budget - int(spent), 1)
    found = explore(key, one, max_evaluations=left)
    particles = _spread_out(move_key, one, found.particles)
    centres, axes = _in_full(
        one, jnp.asarray(found.mode_centres), jnp.asarray(found.mode_axes)
    )
    return dataclasses.replace(
        found,
        particles=particles,
        draws=_unflatten(target, particles),
        mode_centres=np.asarray(centres),
        mode_axes=np.asarray(axes),
        evaluations=found.evaluations + int(spent),
    )


_divide = _programs.compiled(divide)


@_programs.compiled
def _spread_out(key, one, points):
    return one.spread_out(key, points)


@_programs.compiled
def _in_full(one, centres, axes):
    """Points of the copy, and axes there, in the coordinates of the target."""

    def turn(centre, axes):
        def push(v):
            return jax.jvp(one.action.section, (centre,), (v,))[1]

        return jax.vmap(push, in_axes=1, out_axes=1)(axes)

    return jax.vmap(one.action.section)(centres), jax.vmap(turn)(centres, axes)


@dataclasses.dataclass(frozen=True)
class _Climb:
    maxima: Maximum
    base: GaussianMixture
    num_maxima: int
    # Whether `maxima` are all that were found; then they are compared with each other,
    # which is among the evaluations.
    complete: bool
    evaluations: int


def _generator(key: PRNGKeyArray) -> np.random.Generator:
    """A NumPy generator, for what is done on the host."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def _size(n: int) -> int:
    """`n` rounded up to one of a few numbers."""
    return next((size for size in _SIZES if size >= n), n)


@_programs.compiled
def _unflatten(target: AbstractTarget, particles):
    return jax.vmap(target.structure.unflatten)(particles)


@_programs.compiled
def _ascend_around(key, i, target, n, centre, scale, low, high):
    key = jax.random.fold_in(key, i)
    starts, sizes = log_uniform_starts(key, n, centre, scale, low, high)
    return ascend(target.log_density, starts, sizes)


@_programs.compiled
def _maximum_at_each(target, points):
    return jax.lax.map(lambda x: maximum_at(target.log_density, x), points)


def _maxima_at(target: AbstractTarget, points) -> Maximum:
    """The maxima near some points, as NumPy arrays."""
    n = len(points)
    rows = np.minimum(np.arange(_size(n)), n - 1)
    found = _maximum_at_each(target, jnp.asarray(points[rows], float))
    return jax.tree.map(lambda a: np.asarray(a, np.float64)[:n], found)


def _first_particles(left: float) -> tuple[int, bool]:
    """How many particles come first, and whether runs from wide Gaussians are paid for.

    As many as the evaluations that are left pay for, at a usual number of temperatures.
    """
    each = _USUAL_TEMPERATURES * EVALUATIONS_PER_TEMPERATURE
    n = _power_of_two(left / (_RUNS * each), FIRST_PARTICLES)
    if n >= _LEAST_WIDE:
        return n, True
    return max(_power_of_two(left / (2 * each), FIRST_PARTICLES), _LEAST), False


def _power_of_two(n: float, most: int) -> int:
    """The largest power of two that is above neither `n` nor `most`; at least 1."""
    return 2 ** int(math.log2(max(1.0, min(n, most))))


def _climb(key: PRNGKeyArray, target: AbstractTarget, bound: float) -> _Climb:
    """Maxima of the target, and a mixture that covers them and what lies between.

    With few evaluations there are fewer ascents, and fewer maxima are told apart.
    """
    dim = target.dim
    many = dim <= _MAX_DIM_MANY_MODES
    rounds = _ROUNDS if many else 1
    n = _ASCENTS if many else _ASCENTS_WIDE
    n = max(_LEAST_ASCENTS, _power_of_two(bound / (rounds * ASCENT_EVALUATIONS), n))
    limit = max(4, min(MAX_MODES, 2**18 // dim**2)) if many else 1
    if _size(limit) * maximum_cost(dim) + _cost_between(limit) > bound:
        limit = min(limit, _SIZES[0])
    centre, scale = np.zeros(dim), np.ones(dim)
    points, heights = np.zeros((0, dim)), np.zeros(0)
    kept = np.zeros(0, int)
    widths = np.ones(dim)
    evaluations = 0
    for i in range(rounds):
        # First from everywhere, then from the region that holds the maxima.
        low, high = (0.1, 100.0 if many else 1.0) if i == 0 else (1.0, 5.0)
        settings = (jnp.asarray(a, float) for a in (centre, scale, low, high))
        best, highest = _ascend_around(key, np.int32(i), target, n, *settings)
        evaluations += n * ASCENT_EVALUATIONS + maximum_cost(dim)
        points = np.concatenate([points, np.asarray(best, np.float64)])
        heights = np.concatenate([heights, np.asarray(highest, np.float64)])
        usable = np.isfinite(heights)
        points, heights = points[usable], heights[usable]
        if not len(points):
            continue
        top = _maxima_at(target, points[[np.argmax(heights)]])
        widths = np.sqrt(np.sum(top.axes[0] ** 2, axis=1))
        kept = _distinct(points, heights, widths, 8 * MAX_MODES, 10.0 + 5 * dim)
        centre = points[kept].mean(axis=0)
        scale = np.sqrt(points[kept].var(axis=0) + widths**2)
    if not len(kept):
        raise UsageError(
            "The log density is finite at none of the points that exploration tried; "
            "check it at points where it should be finite."
        )
    maxima = _maxima_at(target, points[kept[:limit]])
    evaluations += _size(min(len(kept), limit)) * maximum_cost(dim)
    # Newton's steps may lead two ascents to one maximum.
    unique = _distinct(maxima.position, maxima.log_mass, 0.5 * widths, limit, math.inf)
    maxima = jax.tree.map(lambda a: a[unique], maxima)
    complete = len(kept) <= limit
    if complete:
        evaluations += _cost_between(len(unique))
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
    axes, masses = maxima.axes, maxima.log_mass
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
    means = [*maxima.position] if known else []
    return _mixture(
        [*logs, np.log(_WIDE_SHARE)],
        [*means, centre],
        [*factors, np.linalg.cholesky(wide)],
        size=1 + _size(len(factors)),
    )


def _mixture(logs, means, factors, *, size: int) -> GaussianMixture:
    """A mixture, with Gaussians of no weight before the others to make up its size."""
    more = size - len(logs)
    return _make_mixture(
        jnp.asarray([-np.inf] * more + [*logs], float),
        jnp.asarray(np.stack([means[-1]] * more + [*means]), float),
        jnp.asarray(np.stack([factors[-1]] * more + [*factors]), float),
    )


_make_mixture = _programs.compiled(GaussianMixture.of)


def _lower(axes):
    """The lower-triangular factor of `axes axes'`."""
    upper = np.asarray(np.linalg.qr(axes.T, mode="r"))
    signs = np.where(np.diagonal(upper) < 0, -1.0, 1.0)
    return (upper * signs[:, None]).T


def _temper_all(
    key: PRNGKeyArray,
    target: AbstractTarget,
    found: _Climb,
    n: int,
    left: float,
    *,
    wide: bool,
) -> list[Particles]:
    """Two runs from the maxima, and two from a plain wide Gaussian, one by one.

    Each has its share of the evaluations that are left.
    """
    dim = target.dim
    each = n * EVALUATIONS_PER_TEMPERATURE

    def one(i: int, base: GaussianMixture) -> Particles:
        nonlocal left
        share = left / ((_RUNS if wide else 2) - i) / each
        most = int(max(_LEAST_TEMPERATURES, min(share, _MAX_TEMPERATURES)))
        run = _temper(key, np.int32(i), target, base, n, np.int32(most))
        left -= int(run.evaluations)
        return run

    runs = [one(i, found.base) for i in range(2)]
    if not wide:
        return runs
    mean, factor = np.zeros(dim), 3.0 * np.eye(dim)
    size = len(found.base.log_weights)
    for i in range(2, _RUNS):
        base = _mixture([0.0], [mean], [factor], size=size)
        run = one(i, base)
        mean, factor = _spread(np.asarray(run.positions, np.float64))
        if i > 2:
            runs.append(run)
        else:
            first = run
    # What the first of the three cost is part of the price.
    total = np.asarray(runs[-1].evaluations) + np.asarray(first.evaluations)
    runs[-1] = eqx.tree_at(lambda r: r.evaluations, runs[-1], total)
    return runs


def _spread(positions):
    """The mean of points, and a factor of 1.5^2 times their covariance."""
    covariance = np.cov(positions, rowvar=False, ddof=0).reshape(positions.shape[1], -1)
    ridge = np.diag(1e-6 * np.diagonal(covariance) + np.finfo(np.float32).tiny)
    return positions.mean(axis=0), 1.5 * np.linalg.cholesky(covariance + ridge)


@_programs.compiled
def _temper(key, i, target, base: GaussianMixture, n: int, most) -> Particles:
    """A run in coordinates in which the widest Gaussian of the base is standard."""
    start_key, key = jax.random.split(jax.random.fold_in(key, i))
    mean, factor, inverse = base.means[-1], base.factors[-1], base.inverses[-1]
    log_det = jnp.sum(jnp.log(jnp.abs(jnp.diagonal(factor))))
    start = (base.sample(start_key, n) - mean[None]) @ inverse.T
    run = temper(
        key,
        lambda u: target.log_density(mean + factor @ u) + log_det,
        lambda u: base.log_density(mean + factor @ u) + log_det,
        start,
        max_temperatures=most,
        full_metric=n >= 5 * target.dim,
    )
    positions = mean[None] + run.positions @ factor.T

    def resolved(x):
        return is_resolved(target.log_density, x, target.log_density(x))

    # Where rounding makes the mass, a run has ended nowhere.
    finished = run.finished & (jnp.mean(jax.vmap(resolved)(positions)) > _RESOLVED)
    return eqx.tree_at(
        lambda r: (r.positions, r.finished, r.evaluations),
        run,
        (positions, finished, run.evaluations + 2 * n),
    )


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


def _pool(
    rng: np.random.Generator, runs: list[Particles], n: int
) -> Float[np.ndarray, "n d"]:
    """`n` particles of the runs that count, in proportion to their normalisers."""
    counted = _counted(runs)
    logs = np.array([_normaliser(run) for run in counted])
    logs = np.where(np.isfinite(logs), logs, -1e30)
    shares = np.exp(logs - logs.max())
    edges = np.rint(np.cumsum(shares / shares.sum()) * n).astype(int)
    counts = np.diff(edges, prepend=0)
    parts = []
    for run, count in zip(counted, counts, strict=True):
        positions = np.asarray(run.positions)
        order = rng.permutation(len(positions))
        # A run that stands for more than its particles repeats them evenly.
        parts.append(positions[order[np.arange(count) % len(positions)]])
    return np.concatenate(parts)


def _modes(target: AbstractTarget, found: _Climb, particles):
    """A maximum for each mode, the heaviest first, and the mode of each particle."""
    if not found.complete:
        # Too many to list: none is told apart.
        return np.zeros(1, int), np.zeros(len(particles), np.int32)
    roots = _joined(target, found.maxima.position)
    nearest = _nearest(found.maxima, particles)
    tops, labels, counts = np.unique(
        roots[nearest], return_inverse=True, return_counts=True
    )
    order = np.argsort(-counts, kind="stable")
    highest = [
        max(np.flatnonzero(roots == root), key=found.maxima.height.__getitem__)
        for root in tops[order]
    ]
    return np.array(highest), np.argsort(order)[labels].astype(np.int32)


def _nearest(maxima: Maximum, particles) -> Int[np.ndarray, " n"]:
    """The maximum whose Gaussian is the densest at each particle."""
    heights = []
    for position, axes in zip(maxima.position, maxima.axes, strict=True):
        offsets = np.linalg.solve(axes, (np.asarray(particles) - position).T)
        log_det = np.linalg.slogdet(axes)[1]
        heights.append(0.5 * np.sum(offsets**2, axis=0) + log_det)
    return np.argmin(heights, axis=0)


def _cost_between(n: int) -> int:
    """What it takes to look between all pairs of so many maxima."""
    return _POINTS_BETWEEN * _size(n) ** 2


def _joined(target: AbstractTarget, positions):
    """For each maximum the first of those that a way without a dip joins it to."""
    n = len(positions)
    rows = np.minimum(np.arange(_size(n)), n - 1)
    heights = _heights_between(target, jnp.asarray(positions[rows], float))
    heights = np.asarray(heights)[:, :n, :n]
    before = np.maximum.accumulate(heights, axis=0)
    after = np.maximum.accumulate(heights[::-1], axis=0)[::-1]
    with np.errstate(invalid="ignore"):
        # Where the density is zero all along, a dip is not a number.
        dips = np.max(np.minimum(before, after) - heights, axis=0)
    linked = np.nan_to_num(dips, nan=np.inf) < _DIP
    roots = np.arange(len(positions))
    for i, j in zip(*np.nonzero(linked), strict=True):
        old, new = max(roots[i], roots[j]), min(roots[i], roots[j])
        roots[roots == old] = new
    return roots


@_programs.compiled
def _heights_between(target: AbstractTarget, positions):
    along = jnp.linspace(0.0, 1.0, _POINTS_BETWEEN, dtype=positions.dtype)

    def between(a, b):
        return jax.vmap(lambda t: target.log_density(a + t * (b - a)))(along)

    rows = jax.lax.map(
        lambda a: jax.vmap(lambda b: between(a, b), out_axes=1)(positions), positions
    )
    return jnp.moveaxis(rows, 0, 1)
