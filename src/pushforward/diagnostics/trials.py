"""The tests behind the verdict, each with the reference's figure beside the draws'."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray
from scipy import stats

from pushforward.diagnostics import energies
from pushforward.diagnostics.ksd import ksd
from pushforward.diagnostics.mmd import mmd
from pushforward.diagnostics.modes import compare_modes, find_modes
from pushforward.diagnostics.reference import (
    DOUBT,
    Reference,
    generator,
    percent,
    point,
)
from pushforward.diagnostics.two_sample import SlicedW2, kolmogorov_smirnov
from pushforward.targets.base import AbstractTarget

STEPS = 20
_BOOTSTRAPS = 2000
# Enough for a p-value below the level of one of eight tests.
_PERMUTATIONS = 799

# Full passes over more data than this, 20 for each draw, take too long.
_MAX_DATA = 10_000


@dataclasses.dataclass(frozen=True)
class Trial:
    """One test, before it is known how many others there are.

    Attributes:
        name: What it looks at.
        statistic: Its figure for the draws.
        reference: The same figure for as many reference draws.
        p_value: How often exact draws would have a figure as extreme; None where
            nothing was tested.
        found: What to say where it rejects.
        usual: What to say where it does not.
        needs_reference: Whether it is worth as much as the reference.
        ok: The outcome, where it does not rest on a p-value.
    """

    name: str
    statistic: float | None
    reference: float | None
    p_value: float | None
    found: str
    usual: str
    needs_reference: bool = True
    ok: bool | None = None


@dataclasses.dataclass(frozen=True)
class Sample:
    """Draws with what the target says about each.

    Attributes:
        draws: In unconstrained coordinates.
        energies: Log densities; None where the target has no density.
        noisy: The points at which the scores were taken: the draws, or draws with the
            least noise of a noise-conditional target, whose score is of those.
        scores: The score at each of them.
    """

    draws: Float[np.ndarray, "n d"]
    energies: Float[np.ndarray, " n"] | None
    noisy: Float[np.ndarray, "n d"]
    scores: Float[np.ndarray, "n d"]

    @staticmethod
    def of(
        rng: np.random.Generator,
        target: AbstractTarget,
        draws: Float[np.ndarray, "n d"],
    ) -> tuple["Sample", int]:
        """The draws where all is finite, and the number of the others."""
        noisy = draws
        if target.sigma_range is not None:
            noise = rng.standard_normal(draws.shape)
            noisy = draws + target.sigma_range[0] * noise
        scores = energies.scores(target, noisy)
        finite = np.isfinite(scores).all(axis=1)
        values = None
        if target.has_density:
            values = energies.log_densities(target, draws)
            finite &= np.isfinite(values)
            values = values[finite]
        sample = Sample(draws[finite], values, noisy[finite], scores[finite])
        return sample, int(np.sum(~finite))


def run_trials(
    key: PRNGKeyArray,
    target: AbstractTarget,
    draws: Float[np.ndarray, "n d"],
    reference: Reference | None,
    least: int,
) -> tuple[list[Trial], list[str]]:
    """All tests that can be made, and what speaks against the reference.

    Args:
        key: Random key.
        target: The target.
        draws: Finite draws, in unconstrained coordinates.
        reference: What to compare with, or None.
        least: With fewer draws than this there is no point in testing.
    """
    host_key, ksd_key, mala_key, mmd_key = jax.random.split(key, 4)
    rng = generator(host_key)
    sample, lost = Sample.of(rng, target, draws)
    trials = []
    if lost:
        sentence = (
            f"{lost} of {len(draws)} draws lie where the log density or its gradient "
            "is not finite"
        )
        trials.append(
            Trial("density", lost / len(draws), 0.0, None, sentence, "", False, False)
        )
    if len(sample.draws) < least:
        return trials, []
    near = far = None
    doubts = []
    if reference is not None:
        first, second = reference.split(len(sample.draws))
        near = first
        far, lost = Sample.of(rng, target, second)
        if lost:
            doubts.append(f"{lost} of its draws have no finite density or gradient")
    for trial, doubt in (
        _stein(ksd_key, sample, far),
        _drift(mala_key, target, sample, far),
    ):
        trials += trial
        doubts += doubt
    if reference is None or near is None or far is None:
        return trials, doubts
    values = reference.energies
    if values is not None:
        trials.append(_mean_energy(sample.energies, values, reference))
    trials.append(_mode_weights(sample.draws, reference))
    trials.append(_sliced(rng, sample.draws, near, far.draws, reference))
    trials.append(_mmd(mmd_key, sample.draws, near, far.draws, reference))
    trials.append(_marginals(target, sample, values, far, reference))
    if reference.made_here:
        doubts += _unseen(sample.draws, sample.energies, values, reference)
    return trials, doubts


def _stein(key, sample, far):
    """The kernel Stein discrepancy in units of the target's own length scale.

    That is one over the median |score| of each coordinate (times .67, so that it is one
    for a standard Gaussian): the width of a mode and not the distance between modes.
    """
    judge = sample if far is None else far
    size = np.median(np.abs(judge.scores), axis=0) / 0.6745
    scale = 1 / np.where(size > 0, size, 1.0)
    centre = np.median(judge.noisy, axis=0)

    def discrepancy(key, part):
        points = jnp.asarray((part.noisy - centre) / scale, float)
        slopes = jnp.asarray(part.scores * scale, float)
        result = ksd(points, slopes, key=key, bootstraps=_BOOTSTRAPS)
        return float(result.u), float(np.asarray(result.p_value))

    keys = jax.random.split(key)
    u, p_value = discrepancy(keys[0], sample)
    beside, doubts = None, []
    if far is not None:
        beside, chance = discrepancy(keys[1], far)
        if chance <= DOUBT:
            doubts.append(
                f"it fails the kernel Stein discrepancy itself (p = {chance:.4f})"
            )
    trial = Trial(
        "Stein discrepancy",
        u,
        beside,
        p_value,
        "the draws do not fit the score of the target (KSD, U-statistic)",
        "U-statistic; 0 on average for exact draws",
        needs_reference=False,
    )
    return [trial], doubts


def _drift(key, target, sample, far):
    """Whether the mean log density changes under MALA."""
    if not target.has_density:
        return [], []
    if energies.terms(target) > _MAX_DATA:
        why = f"not tested: MALA on {energies.terms(target):,} observations is too slow"
        return [Trial("MALA drift", None, None, None, why, why, False)], []
    keys = jax.random.split(key)

    def change(key, part):
        moved = energies.after_mala(key, target, part.draws, STEPS)
        after = energies.log_densities(target, moved)
        # A move to where nothing is defined cannot happen; a chain that starts at the
        # edge of floating point may still end there, and counts as not moved.
        return energies.drift(
            part.energies, np.where(np.isfinite(after), after, part.energies)
        )

    own = change(keys[0], sample)
    beside, doubts = None, []
    if far is not None:
        other = change(keys[1], far)
        beside = other.mean
        if other.p_value <= DOUBT:
            doubts.append(
                f"its log density moves under MALA ({other.mean:+.3f} ± "
                f"{other.error:.3f})"
            )
    trial = Trial(
        "MALA drift",
        own.mean,
        beside,
        own.p_value,
        f"{STEPS} MALA steps change the mean log density by {own.mean:+.3f} ± "
        f"{own.error:.3f}: the draws are not there yet",
        f"change of the mean log density over {STEPS} MALA steps",
        needs_reference=False,
    )
    return [trial], doubts


def _mean_energy(own, values, reference):
    """Welch's test of the mean, and a rank test of the lowest log densities.

    If the k lowest of all log densities are those of draws, exact draws had a chance of
    `(n / (n + m))^k` to get there.
    """
    n, m = len(own), reference.effective
    error = np.sqrt(np.var(own, ddof=1) / n + np.var(values, ddof=1) / m)
    gap = np.mean(own) - np.mean(values)
    by_mean = 2 * stats.norm.sf(abs(gap) / error) if error > 0 else 1.0
    below = int(np.sum(own < np.min(values)))
    by_rank = (n / (n + m)) ** below
    if by_rank < by_mean:
        found = (
            f"{below} of {n} draws lie where the density is lower than at any of the "
            "reference draws"
        )
    else:
        side = "less" if gap < 0 else "more"
        found = (
            f"the draws lie where the density is {side} than it should be: their mean "
            f"log density is off by {gap:+.3f} ± {error:.3f}"
        )
    return Trial(
        "energy",
        float(np.mean(own)),
        float(np.mean(values)),
        float(min(1.0, 2 * min(by_mean, by_rank))),
        found,
        "mean log density",
    )


def _mode_weights(draws, reference):
    modes = reference.modes
    counts = modes.counts(draws)
    if len(counts) == 1:
        return Trial(
            "mode weights", 0.0, 0.0, None, "", "the reference has one mode", ok=True
        )
    expected = modes.counts(reference.draws)
    # As many reference draws as they are worth.
    share = reference.effective / len(reference.draws)
    compared = compare_modes(np.round(expected * share).astype(int), counts)
    gaps = np.abs(compared.draw_weights - compared.reference_weights)
    part = len(draws)
    beside = None
    if len(reference.draws) >= 2 * part:
        one, other = (
            modes.counts(half) / len(half)
            for half in (reference.draws[:part], reference.draws[part:])
        )
        beside = float(np.max(np.abs(one - other)))
    # Modes that the draws lack before those that they have too much of. Of two, one
    # says it all.
    lacking = compared.draw_weights < compared.reference_weights
    order = np.lexsort([-gaps, compared.p_values, ~lacking])
    wrong = [k for k in order if compared.p_values[k] <= DOUBT] or [order[0]]
    wrong = wrong[:1] if len(counts) == 2 else wrong
    named = [
        f"the mode near {point(modes.centres[k])} holds "
        f"{percent(float(compared.reference_weights[k]))} of the reference and "
        f"{percent(float(compared.draw_weights[k]))} of the draws"
        for k in wrong[:3]
    ]
    found = "; ".join(named)
    if len(wrong) > 3:
        found += f"; and {len(wrong) - 3} more modes differ"
    return Trial(
        "mode weights",
        float(np.max(gaps)),
        beside,
        float(np.min(compared.p_values)),
        found,
        f"largest difference of a weight, of {len(counts)} modes",
    )


def _sliced(rng, draws, near, far, reference):
    distance = SlicedW2(rng, draws.shape[1])
    own, other, beside = (reference.frame(part) for part in (draws, near, far))
    result = distance.test(own, other, permutations=_PERMUTATIONS)
    floor = distance.typical(beside, other)
    ratio = result.statistic / floor if floor > 0 else np.inf
    return Trial(
        "sliced W2",
        result.statistic,
        floor,
        result.p_value,
        f"the draws are {ratio:.2f} times as far from the reference as it is from "
        "itself",
        f"{ratio:.2f} times the distance of the reference from itself",
    )


def _mmd(key, draws, near, far, reference):
    own, other, beside = (
        jnp.asarray(reference.frame(part), float) for part in (draws, near, far)
    )
    result = mmd(own, other, key=key, permutations=_PERMUTATIONS)
    floor = mmd(beside, other, bandwidth=result.bandwidth)
    return Trial(
        "MMD",
        float(result.value),
        float(floor.value),
        float(np.asarray(result.p_value)),
        "the draws and the reference do not have one law (MMD, squared)",
        "squared; 0 on average for exact draws",
    )


def _marginals(target, sample, values, far, reference):
    """Every coordinate alone, and the log density as one more."""
    names = [f"'{name}'" for name in target.names]
    own, whole, part = sample.draws, reference.draws, far.draws
    statistics, p_values = kolmogorov_smirnov(own, whole, reference.effective)
    floors, _ = kolmogorov_smirnov(part, whole, reference.effective)
    if values is not None:
        columns = (a[:, None] for a in (sample.energies, values, far.energies))
        own, whole, part = columns
        extra = kolmogorov_smirnov(own, whole, reference.effective)
        floor, _ = kolmogorov_smirnov(part, whole, reference.effective)
        statistics = np.concatenate([statistics, extra[0]])
        p_values = np.concatenate([p_values, extra[1]])
        floors = np.concatenate([floors, floor])
        names.append("the log density")
    worst = int(np.argmin(p_values))
    return Trial(
        "marginals",
        float(statistics[worst]),
        float(np.max(floors)),
        float(min(1.0, len(names) * p_values[worst])),
        f"{names[worst]} is distributed otherwise in the draws than in the reference "
        "(Kolmogorov-Smirnov)",
        "largest Kolmogorov-Smirnov distance of a coordinate",
    )


def _unseen(draws, own, values, reference):
    """Modes of the draws that the reference lacks although the density is high there.

    Two runs may both miss a mode. Then it is not the draws that are wrong.
    """
    modes = find_modes(draws)
    compared = compare_modes(modes.counts(reference.draws), modes.counts(draws))
    usual = np.quantile(values, 0.01)
    for k, centre in enumerate(modes.centres):
        lacking = 10 * compared.reference_weights[k] < compared.draw_weights[k]
        if not (lacking and compared.p_values[k] <= DOUBT):
            continue
        if np.median(own[modes.labels == k]) >= usual:
            yield (
                f"the draws hold {percent(compared.draw_weights[k])} near "
                f"{point(centre)}, where the density is high and the reference has "
                f"{percent(compared.reference_weights[k])}"
            )
