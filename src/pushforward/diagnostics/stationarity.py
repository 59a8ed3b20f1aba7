"""Whether draws stay where they are under a chain that leaves the target unchanged.

Draws `x` that follow the target and a reversible kernel make `(x, x')` exchangeable,
with `x'` where the kernel leads. So the change of any function has a symmetric law. The
kernel must not depend on the draws themselves: its step size and its covariance come
from other points.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray
from scipy import stats

from pushforward.diagnostics.evaluation import BLOCK, log_densities, padded
from pushforward.diagnostics.permutations import num_permutations
from pushforward.diagnostics.reference import (
    MIN_ACCEPTANCE,
    PARTICLES,
    REJUVENATIONS,
    Reference,
    generator,
    percent,
)
from pushforward.diagnostics.two_sample import MeanChange, RobustScaler, SlicedW2
from pushforward.mcmc.mala import MALAResult, mala
from pushforward.mcmc.moments import mean_and_covariance
from pushforward.mcmc.rejuvenate import NUM_EVALUATIONS, NUM_MOVES, rejuvenate
from pushforward.targets.base import AbstractTarget

MALA_STEPS = 20
# Points and steps from which MALA's step size is learnt.
_TUNING_POINTS, _TUNING_STEPS = 512, 40

# The draws are moved as often as the particles of a reference made by `check`.
HMC_MOVES = REJUVENATIONS * NUM_MOVES

# Nor can a chain show that draws stand still if it leaves more of them unmoved, or
# where nothing is defined.
MAX_UNMOVED, MAX_LOST = 0.5, 0.01

# Where shares of draws are compared, as quantiles of the reference's log density; 0 is
# below all of it.
_LEVELS = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


@dataclasses.dataclass(frozen=True)
class Movement:
    """How draws moved under a chain, and how well that chain worked.

    Attributes:
        change: The mean change of the log density.
        error: Its standard error.
        p_value: How often exact draws would move as much.
        what: What moves most clearly.
        acceptance: The mean acceptance probability.
        unmoved: The share of draws that never moved.
        lost: The share of draws that ended where the density is not finite.
    """

    change: float
    error: float
    p_value: float
    what: str
    acceptance: float
    unmoved: float
    lost: float

    @property
    def chain(self) -> str:
        """How well the chain worked, in words."""
        words = f"{percent(self.acceptance)} accepted"
        if self.unmoved > MAX_UNMOVED:
            words += f", {percent(self.unmoved)} of the draws never moved"
        if self.lost > 0:
            words += f", {percent(self.lost)} of the chains lost"
        return words

    @property
    def is_informative(self) -> bool:
        """Whether the chain moved enough of the draws to say anything."""
        return (
            self.acceptance >= MIN_ACCEPTANCE
            and self.unmoved <= MAX_UNMOVED
            and self.lost <= MAX_LOST
        )


@dataclasses.dataclass(frozen=True)
class MALAKernel:
    """A step size and a covariance, learnt from other points than the draws."""

    step_size: float
    covariance: Float[np.ndarray, "d d"]

    def move(
        self,
        key: PRNGKeyArray,
        target: AbstractTarget,
        draws: Float[np.ndarray, "n d"],
    ) -> MALAResult:
        """20 steps from each of the draws, and from some of them twice.

        These come last: with whole blocks, fewer programs are compiled.
        """
        rows = np.arange(padded(len(draws))) % len(draws)
        return mala(
            key,
            target,
            jnp.asarray(draws[rows], float),
            MALA_STEPS,
            step_size=jnp.asarray(self.step_size, float),
            covariance=jnp.asarray(self.covariance, float),
        )


def tune_mala(
    key: PRNGKeyArray, target: AbstractTarget, points: Float[np.ndarray, "m d"]
) -> MALAKernel:
    """A MALA kernel that suits these points.

    Args:
        key: Random key.
        target: A target with a log density.
        points: Points that are not among those to be tested.
    """
    rows = np.arange(_TUNING_POINTS) % len(points)
    start = jnp.asarray(points[rows], float)
    _, covariance = mean_and_covariance(jnp.asarray(points, float))
    run = mala(key, target, start, _TUNING_STEPS, covariance=covariance)
    return MALAKernel(float(run.step_size), np.asarray(covariance))


def tuning_evaluations() -> int:
    """What `tune_mala` costs."""
    return _TUNING_POINTS * (_TUNING_STEPS + 1)


def mala_movement(
    key: PRNGKeyArray,
    target: AbstractTarget,
    draws: Float[np.ndarray, "n d"],
    before: Float[np.ndarray, " n"],
    kernel: MALAKernel,
) -> Movement:
    """Whether the mean log density stays the same over 20 steps of MALA.

    Args:
        key: Random key.
        target: A target with a log density.
        draws: Draws, in unconstrained coordinates.
        before: Their log densities, all finite.
        kernel: The kernel; it must not depend on the draws.
    """
    n = len(draws)
    run = kernel.move(key, target, draws)
    moved = np.asarray(run.positions, np.float64)[:n]
    after = log_densities(target, moved)
    lost = ~(np.isfinite(after) & np.isfinite(moved).all(axis=1))
    # A draw that never moved comes back rounded; it has not changed.
    unmoved = np.asarray(run.accepted)[:n] == 0
    change = MeanChange.of(before, np.where(lost | unmoved, before, after))
    return Movement(
        change=change.mean,
        error=change.error,
        p_value=change.p_value,
        what="the mean log density",
        acceptance=float(np.mean(np.asarray(run.accepted)[:n])),
        unmoved=float(np.mean(unmoved)),
        lost=float(np.mean(lost)),
    )


def mala_evaluations(n: int) -> int:
    """What `mala_movement` costs for `n` draws."""
    return padded(n) * (MALA_STEPS + 2)


def hmc_movement(
    key: PRNGKeyArray,
    target: AbstractTarget,
    draws: Float[np.ndarray, "n d"],
    reference: Reference,
    level: float,
) -> Movement:
    """Whether draws stay where they are under the HMC moves of a reference.

    Three things are tested, each at a third of the level: that the means of the log
    density and of the coordinates stay (Bonferroni); that as many draws cross a level
    of the log density upwards as downwards (a sign test at eight levels, Bonferroni),
    which sees a few outliers; and that the moves do not bring the draws nearer to the
    reference (sliced W2, by swapping `x_i` and `x'_i` at random). The reference only
    says where to look, and gives the moves their covariance: the p-value holds even if
    it is wrong.

    Args:
        key: Random key.
        target: A target with a density.
        draws: Draws where the density is finite, in unconstrained coordinates.
        reference: What the draws differ from.
        level: The level of the test.
    """
    host_key, key = jax.random.split(key)
    before = log_densities(target, draws)
    moved, acceptance = _rejuvenated(key, target, draws, reference)
    after = np.stack([log_densities(target, part) for part in moved])
    lost = ~(np.isfinite(after) & np.isfinite(moved).all(axis=2))
    unmoved = np.all(moved == np.asarray(draws, np.asarray(jnp.zeros(())).dtype), 2)
    after = np.where(lost, before, after)
    moved = np.where(lost[:, :, None], draws, moved)

    values = log_densities(target, reference.draws)
    whole = np.column_stack([reference.draws, values])
    scaler = RobustScaler.of(whole)
    start = scaler(np.column_stack([draws, before]))
    ends = [scaler(np.column_stack(pair)) for pair in zip(moved, after, strict=True)]
    names = [*(f"'{name}'" for name in target.names), "the log density"]
    # More than one end of a draw makes their mean less noisy, and no less zero.
    changes = [
        MeanChange.of(a, b).p_value
        for a, b in zip(start.T, np.mean(ends, axis=0).T, strict=True)
    ]
    worst = int(np.argmin(changes))
    crossings = _crossings(before, after[0], np.quantile(values, _LEVELS))
    distance = SlicedW2(generator(host_key), start.shape[1])
    nearer = distance.improvement_test(
        start, ends[0], scaler(whole), permutations=num_permutations(level / 3)
    )
    found = [
        (len(changes) * changes[worst], f"the mean of {names[worst]}"),
        (len(_LEVELS) * min(crossings), "the share of draws of low or high density"),
        (nearer.p_value, "the distance to the reference (sliced W2)"),
    ]
    p_value, what = min(found)
    change = MeanChange.of(before, np.mean(after, axis=0))
    return Movement(
        change=change.mean,
        error=change.error,
        p_value=min(1.0, len(found) * p_value),
        what=what,
        acceptance=acceptance,
        unmoved=float(np.mean(unmoved)),
        lost=float(np.mean(lost)),
    )


def hmc_evaluations(n: int) -> int:
    """What `hmc_movement` costs for `n` draws, with the reference's log densities."""
    rows = -(-_copies(n) * n // PARTICLES) * PARTICLES
    return rows * REJUVENATIONS * NUM_EVALUATIONS + padded(rows) + 2 * PARTICLES + BLOCK


def _copies(n):
    return min(4, max(1, PARTICLES // n))


def _rejuvenated(key, target, draws, reference):
    """Where the moves lead, once or more often for each draw, and the acceptance.

    Blocks of as many rows as the reference has particles: nothing is compiled for the
    number of draws.
    """
    n, dim = draws.shape
    copies = _copies(n)
    _, covariance = mean_and_covariance(jnp.asarray(reference.draws, float))
    rows = np.arange(-(-copies * n // PARTICLES) * PARTICLES) % n
    blocks, rates = [], []
    for i, block in enumerate(np.split(draws[rows], len(rows) // PARTICLES)):
        positions = jnp.asarray(block, float)
        for move_key in jax.random.split(jax.random.fold_in(key, i), REJUVENATIONS):
            run = rejuvenate(move_key, target, positions, covariance=covariance)
            positions = run.positions
            rates.append(float(np.asarray(run.acceptance)))
        blocks.append(np.asarray(positions, np.float64))
    moved = np.concatenate(blocks)[: copies * n].reshape(copies, n, dim)
    return moved, float(np.mean(rates))


def _crossings(before, after, levels):
    for level in levels:
        up = int(np.sum((before < level) & (after >= level)))
        down = int(np.sum((before >= level) & (after < level)))
        yield stats.binomtest(up, up + down).pvalue if up + down else 1.0
