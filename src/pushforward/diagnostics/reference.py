"""What draws are compared with: exact draws, the user's own, or two explorations."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.diagnostics import ess_bulk, rhat
from jaxtyping import Float, Int, PRNGKeyArray
from scipy.spatial.distance import cdist

from pushforward.diagnostics.budget import Budget
from pushforward.diagnostics.copies import COPY, in_one_copy, one_copy
from pushforward.diagnostics.evaluation import MAX_OUTSIDE, log_densities, padded
from pushforward.diagnostics.modes import Modes, compare_modes, find_modes
from pushforward.diagnostics.permutations import num_permutations
from pushforward.diagnostics.two_sample import MeanChange, RobustScaler, SlicedW2
from pushforward.errors import UsageError
from pushforward.mcmc.copies import divides
from pushforward.mcmc.exploration import MAX_EVALUATIONS, Exploration, explore
from pushforward.mcmc.rejuvenate import NUM_EVALUATIONS, rejuvenate
from pushforward.targets.base import AbstractTarget
from pushforward.targets.one_copy import OneCopy

# Particles that are taken from each of the two explorations.
PARTICLES = 4096

# Reference draws used for each draw that is judged, where there are as many: what lies
# far out is rare, and a tail that is cut off at 99.5 % takes so many to be seen.
_FACTOR = 10

# What a reference made here may cost where the caller sets no bound: its evaluations
# times the data.
_MAX_TERMS = 1.5e10

# How often the particles are rejuvenated after an exploration, and after how many of
# these their positions are compared with those at the end.
REJUVENATIONS, _SETTLING = 5, 2
_AFTER = 2 * PARTICLES * (REJUVENATIONS * NUM_EVALUATIONS + 2)

# A chain that accepts less cannot show that points stand still.
MIN_ACCEPTANCE = 0.1

# With fewer evaluations an exploration sees too little to compare anything with.
_LEAST_EXPLORATION = 500_000

# Particles are not independent, since resampling copies them. Measured over many runs
# on targets that SMC masters, the variance of their means is one to three times that
# of independent draws. We assume the larger factor, unless two runs show more.
_LEAST_INFLATION = 3.0

# Worth fewer independent draws than this, a reference made here settles nothing.
_MIN_ESS = 500.0

# The same for a given reference, which may be small but has no such doubts; and the
# R-hat above which its chains disagree.
_MIN_GIVEN, _MIN_GIVEN_ESS, _MAX_RHAT = 200, 100.0, 1.05

# A reference that exact draws would be this rarely is not trusted.
DOUBT = 5e-4


@dataclasses.dataclass(frozen=True)
class GivenModes:
    """Known modes; a draw belongs to the nearest."""

    centres: Float[np.ndarray, "k d"]

    def counts(self, draws: Float[np.ndarray, "n d"]) -> Int[np.ndarray, " k"]:
        """The number of draws in each mode."""
        nearest = np.argmin(cdist(draws, self.centres), axis=1)
        return np.bincount(nearest, minlength=len(self.centres))


@dataclasses.dataclass(frozen=True)
class Reference:
    """Draws that stand for the target.

    Attributes:
        draws: The draws, in unconstrained coordinates and random order.
        log_densities: Their log densities; None where the target has no density.
        description: What they are.
        ess: How many independent draws they are worth.
        modes: Their modes, or those that the target names.
        scaler: The coordinates in which distances to them are taken.
        made_here: Whether `check` made them, so that they may be wrong.
        doubts: Why they cannot be trusted, if they cannot.
    """

    draws: Float[np.ndarray, "m d"]
    log_densities: Float[np.ndarray, " m"] | None
    description: str
    ess: float
    modes: Modes | GivenModes
    scaler: RobustScaler
    made_here: bool = False
    doubts: tuple[str, ...] = ()

    def split(
        self, n: int
    ) -> tuple[Float[np.ndarray, "a d"], Float[np.ndarray, "b d"]]:
        """Two disjoint parts: one to compare with, and one to play the draws' role.

        The first is small against the effective size, so that its draws are close to
        independent; the second has `n` draws, or as many as there are.
        """
        first = int(min(n, max(self.ess / 2, 50), len(self.draws) / 2))
        return self.draws[:first], self.draws[first : first + n]

    def shuffled(self, rng: np.random.Generator, target: AbstractTarget) -> "Reference":
        """The same draws in another order, for another comparison.

        Args:
            rng: A generator.
            target: What it will stand for.
        """
        if self.draws.shape[1] != target.dim:
            raise UsageError(
                f"The reference has {self.draws.shape[1]} coordinates, and the target "
                f"has {target.dim}; make one for this target."
            )
        order = rng.permutation(len(self.draws))
        values = self.log_densities
        return dataclasses.replace(
            self,
            draws=self.draws[order],
            log_densities=None if values is None else values[order],
        )


def make_reference(
    key: PRNGKeyArray,
    target: AbstractTarget,
    given: Any,
    n: int,
    budget: Budget | None = None,
) -> Reference | str:
    """The best reference there is, or a sentence that says why there is none.

    Of a target with a symmetry it is one of a single copy.

    Args:
        key: Random key.
        target: The target.
        given: Reference draws in the user's own tree, one made before, or None.
        n: How many draws will be compared with it.
        budget: What it may cost; by default there is no bound.
    """
    budget = Budget(None) if budget is None else budget
    host_key, key = jax.random.split(key)
    rng = generator(host_key)
    if divides(target):
        target, spent = one_copy(target)
        budget.spend(spent)
        given = reference_of_one_copy(target, given)
    if isinstance(given, Reference):
        return given.shuffled(rng, target)
    if given is not None:
        return _given(rng, target, given, _FACTOR * n, budget)
    if target.can_sample:
        draws = np.asarray(target.sample_flat(key, _FACTOR * n), np.float64)
        finite = np.isfinite(draws).all(axis=1)
        if not finite.all():
            return f"{np.sum(~finite)} of {len(draws)} exact draws are not finite"
        return _plain(target, draws, "exact draws", float(len(draws)), [], budget)
    if (reason := target.why_no_density()) is not None:
        return (
            f"{reason}, and a score alone cannot say how much weight a mode has; give "
            "a reference="
        )
    terms = target.num_terms
    if budget.most is None and (_AFTER + 2 * MAX_EVALUATIONS) * terms > _MAX_TERMS:
        return (
            f"with {terms:,} observations a reference made here would take too long; "
            "give a reference=, or say with max_evaluations= what it may cost"
        )
    return _by_exploration(key, rng, target, n, budget)


def _given(rng, target, given, most, budget):
    chains = chains_of(target, given)
    count = chains.shape[0] * chains.shape[1]
    finite = np.isfinite(chains).all(axis=2)
    if not finite.all():
        raise UsageError(
            f"{np.sum(~finite)} of the {count} reference draws are not finite; "
            "remove them, or see where they come from."
        )
    if count < _MIN_GIVEN:
        raise UsageError(
            f"The reference has {count} draws; a comparison needs at least "
            f"{_MIN_GIVEN}."
        )
    ess, split_rhat = _mixing(chains)
    description, doubts = f"the {count:,} draws you gave", []
    if len(chains) > 1 and split_rhat > _MAX_RHAT:
        doubts.append(f"its chains disagree (R-hat {split_rhat:.2f})")
    draws = rng.permutation(chains.reshape(count, -1))[:most]
    # The variance of a mean over a random part: that of the part, and of the whole.
    ess = 1 / (1 / len(draws) + 1 / ess - 1 / count)
    if len(draws) < count:
        description = f"{len(draws):,} of {description}"
    if ess < 0.8 * len(draws):
        description += f", worth {ess:,.0f} independent ones,"
    if ess < _MIN_GIVEN_ESS:
        doubts.append(f"it is worth only {ess:.0f} independent draws")
    return _plain(target, draws, description, ess, doubts, budget)


def chains_of(
    target: AbstractTarget, given: Any
) -> Float[np.ndarray, "chains draws d"]:
    """Reference draws as an array (chains, draws, coordinates)."""
    leaves, treedef = jax.tree.flatten(given)
    structure = target.structure
    per_chain = treedef == structure.treedef and all(
        np.ndim(value) == len(leaf.shape) + 2
        for value, leaf in zip(leaves, structure.leaves, strict=True)
    )
    if not per_chain:
        return np.asarray(structure.flatten_draws(given), np.float64)[None]
    shapes = {np.shape(value)[:2] for value in leaves}
    if len(shapes) > 1:
        raise UsageError(
            "The parameters of the reference differ in their numbers of chains or "
            f"draws: {sorted(shapes)}."
        )
    number = shapes.pop()
    merged = [np.reshape(v, (-1, *np.shape(v)[2:])) for v in leaves]
    flat = structure.flatten_draws(jax.tree.unflatten(treedef, merged))
    return np.asarray(flat, np.float64).reshape(*number, -1)


def _mixing(chains):
    """The least bulk effective sample size of a coordinate, and the largest R-hat."""
    # Ranks do not see units; 32-bit does not see small changes far from the origin.
    centred = chains - np.median(chains, axis=(0, 1))
    scale = np.max(np.abs(centred), axis=(0, 1))
    x = jnp.asarray(centred / np.where(scale > 0, scale, 1.0), float)
    # BlackJAX mixes types, which a program in strict mode refuses.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        ess = np.asarray(ess_bulk(x), np.float64)
        split_rhat = np.asarray(rhat(x), np.float64)
    count = chains.shape[0] * chains.shape[1]
    # A coordinate that never changes has neither.
    ess = np.min(np.where(np.isfinite(ess), ess, count))
    return float(np.clip(ess, 1, count)), float(np.nanmax([*split_rhat, 1.0]))


def reference_of_one_copy(one: OneCopy, given: Any) -> Any:
    """Reference draws that were given, moved into the copy; others as they are."""
    if given is None or isinstance(given, Reference):
        return given
    chains = chains_of(one.target, given)
    flat = chains.reshape(-1, chains.shape[2])
    key = jax.random.fold_in(jax.random.key(COPY), 1)
    moved = in_one_copy(key, one, flat)
    return moved if len(chains) == 1 else moved.reshape(*chains.shape[:2], -1)


def _plain(target, draws, description, ess, doubts, budget):
    values = None
    if target.why_no_density() is None:
        lacking = budget.lacks(padded(len(draws)), f"evaluating {description}")
        if lacking is not None:
            return lacking
        budget.spend(padded(len(draws)))
        values = log_densities(target, draws)
        finite = np.isfinite(values)
        if np.mean(~finite) > MAX_OUTSIDE:
            doubts = [
                *doubts,
                f"{np.sum(~finite)} of its draws lie where the density is not finite",
            ]
        if not finite.any():
            return f"the density is not finite at any of {description}"
        draws, values = draws[finite], values[finite]
    return Reference(
        draws=draws,
        log_densities=values,
        description=description,
        ess=min(ess, float(len(draws))),
        modes=_modes(target, draws, values),
        scaler=RobustScaler.of(draws),
        doubts=tuple(doubts),
    )


def _modes(target, draws, values):
    if target.known_modes is not None:
        return GivenModes(np.asarray(target.known_modes, np.float64))
    modes = find_modes(draws)
    if values is None:
        return modes
    # A better centre than where draws happen to lie close: the most likely of them.
    best = [
        np.argmax(np.where(modes.labels == k, values, -np.inf))
        for k in range(len(modes.centres))
    ]
    return eqx.tree_at(lambda m: m.centres, modes, draws[best])


def _by_exploration(key, rng, target, n, budget):
    """Two independent explorations, judged by each other and by further moves."""
    least = _AFTER + 2 * _LEAST_EXPLORATION
    lacking = budget.lacks(least, "a reference made here")
    if lacking is not None:
        return f"{lacking}; allow more, or give a reference="
    runs, before, after, rates = [], [], [], []
    evaluations = _AFTER
    for i in range(2):
        run_key, *move_keys = jax.random.split(
            jax.random.fold_in(key, i), 1 + REJUVENATIONS
        )
        affordable = None
        if budget.most is not None:
            affordable = int(budget.left - evaluations) // (2 - i)
        try:
            run = explore(run_key, target, max_evaluations=affordable)
        except UsageError as error:
            return str(error).removesuffix(".")
        evaluations += run.evaluations
        # As many particles whatever the exploration, some of them twice. The first
        # moves undo that, and what resampling left to chance, and fill places too small
        # for any particle to have started in; whether those after them still lead
        # anywhere is the question.
        order = rng.permutation(len(run.particles))[
            np.arange(PARTICLES) % len(run.particles)
        ]
        stages = [run.particles[order]]
        for move_key in move_keys:
            moved = rejuvenate(move_key, target, stages[-1])
            stages.append(moved.positions)
            rates.append(float(np.asarray(moved.acceptance)))
        runs.append(run)
        before.append(np.asarray(stages[_SETTLING], np.float64))
        after.append(np.asarray(stages[-1], np.float64))
    budget.spend(evaluations)
    description = (
        f"two explorations, of {PARTICLES} particles each ({evaluations:,} target "
        "evaluations)"
    )
    before, after, lost = _finite_only(target, before, after)
    if lost > PARTICLES:
        return f"{description} found no region where the density is finite"
    if min(len(draws) for draws, _ in after) < PARTICLES // 10:
        return (
            f"of {description} one lost its particles: there the density is not finite"
        )
    doubts = [*_untrusted(runs)]
    if min(rates) < MIN_ACCEPTANCE:
        doubts.append(f"further HMC moves accept only {min(rates):.0%}")
    if lost:
        doubts.append(f"{lost} particles lie where the density is not finite")
    pooled, values = (np.concatenate(part) for part in zip(*after, strict=True))
    modes, scaler = _modes(target, pooled, values), RobustScaler.of(pooled)
    doubts += _moving(target, scaler, before, after)
    inflation, worst = _disagreement(target, modes, after)
    ess = len(pooled) / max(inflation, _LEAST_INFLATION)
    order = rng.permutation(len(pooled))
    reference = Reference(
        draws=pooled[order],
        log_densities=values[order],
        description=description,
        ess=max(ess, _MIN_ESS),
        modes=modes,
        scaler=scaler,
        made_here=True,
    )
    if ess < _MIN_ESS:
        doubts.append(f"the two disagree about {worst}")
    else:
        size = len(reference.split(n)[0])
        parts = [scaler(rng.permutation(draws)[:size]) for draws, _ in after]
        distance = SlicedW2(rng, target.dim).test(
            *parts, permutations=num_permutations(DOUBT)
        )
        if distance.p_value <= DOUBT:
            doubts.append(
                "the two are further apart than chance allows (sliced W2 "
                f"{distance.statistic:.3f}, p = {distance.p_value:.4f})"
            )
    return dataclasses.replace(reference, doubts=tuple(doubts))


def _untrusted(runs: list[Exploration]) -> Iterator[str]:
    """What the explorations say against themselves."""
    if not all(math.isfinite(run.log_normaliser_se) for run in runs):
        yield "a run of an exploration did not finish"
    acceptance = min(run.acceptance for run in runs)
    if acceptance < 0.2:
        yield f"an exploration accepted only {acceptance:.0%} of its last moves"


def _finite_only(target, before, after):
    """Pairs of draws and log densities of both runs, and how many were dropped."""
    kept = []
    lost = 0
    for pair in zip(before, after, strict=True):
        values = [log_densities(target, draws) for draws in pair]
        finite = np.all(
            [
                np.isfinite(v) & np.isfinite(d).all(axis=1)
                for v, d in zip(values, pair, strict=True)
            ],
            axis=0,
        )
        lost += int(np.sum(~finite))
        kept.append([(d[finite], v[finite]) for d, v in zip(pair, values, strict=True)])
    return *([pair[i] for pair in kept] for i in range(2)), lost


def _moving(target, scaler, before, after):
    """Whether further moves still change log densities or coordinates of particles."""
    start, end = (
        np.concatenate([draws for draws, _ in side]) for side in (before, after)
    )
    first, last = (np.concatenate([v for _, v in side]) for side in (before, after))
    names = ("the log density", *(f"'{name}'" for name in target.names))
    columns = zip(
        np.column_stack([first, scaler(start)]).T,
        np.column_stack([last, scaler(end)]).T,
        strict=True,
    )
    changes = [MeanChange.of(a, b) for a, b in columns]
    worst = int(np.argmin([c.p_value for c in changes]))
    if changes[worst].p_value * len(changes) <= DOUBT:
        ratio = abs(changes[worst].mean) / changes[worst].error
        yield (
            f"{names[worst]} of its particles still moves under further HMC moves "
            f"({ratio:.0f} standard errors)"
        )


def _disagreement(target, modes, runs):
    """How much more the two differ than independent draws would.

    For a share `p` of m draws, `(p_1 - p_2)^2 / (2 p (1 - p) / m)` has mean one where
    the draws are independent, and the factor by which their variance is inflated where
    they are not. It is averaged over quantiles of one coordinate, or over the modes.

    Returns:
        The largest of these factors, and what it belongs to.
    """
    levels = [0.1, 0.25, 0.5, 0.75, 0.9]
    tables = [np.column_stack([draws, v]) for draws, v in runs]
    cuts = np.quantile(np.concatenate(tables), levels, axis=0)
    shares = [(table[:, None] < cuts[None]).mean(axis=0) for table in tables]
    factors = _inflation(shares[0], shares[1], len(tables[0])).mean(axis=0)
    names = [*(f"'{name}'" for name in target.names), "the log density"]
    worst = int(np.argmax(factors))
    counts = [modes.counts(draws) for draws, _ in runs]
    shares = [count / count.sum() for count in counts]
    by_mode = _inflation(shares[0], shares[1], len(tables[0]))
    if by_mode.mean() <= factors[worst]:
        return float(factors[worst]), names[worst]
    k = int(np.argmax(by_mode))
    one, other = (share[k] for share in shares)
    return float(by_mode.mean()), (
        f"the mode near {point(modes.centres[k])} ({percent(one)} and {percent(other)})"
    )


def _inflation(one, other, size):
    pooled = (one + other) / 2
    variance = 2 * pooled * (1 - pooled) / size
    known = variance > 0
    return np.where(known, np.square(one - other) / np.where(known, variance, 1), 0.0)


def unseen_modes(
    draws: Float[np.ndarray, "n d"],
    values: Float[np.ndarray, " n"],
    reference: Reference,
) -> Iterator[str]:
    """Modes of the draws that the reference lacks although the density is high there.

    Two runs may both miss a mode. Then it is not the draws that are wrong.

    Args:
        draws: The draws that are tested.
        values: Their log densities.
        reference: A reference made here.
    """
    assert reference.log_densities is not None
    modes = find_modes(draws)
    compared = compare_modes(modes.counts(reference.draws), modes.counts(draws))
    usual = np.quantile(reference.log_densities, 0.01)
    for k, centre in enumerate(modes.centres):
        lacking = 10 * compared.reference_weights[k] < compared.draw_weights[k]
        if not (lacking and compared.p_values[k] <= DOUBT):
            continue
        if np.median(values[modes.labels == k]) >= usual:
            yield (
                f"the draws hold {percent(float(compared.draw_weights[k]))} near "
                f"{point(centre)}, where the density is high and the reference has "
                f"{percent(float(compared.reference_weights[k]))}"
            )


def generator(key: PRNGKeyArray) -> np.random.Generator:
    """A generator for what is done on the host."""
    return np.random.default_rng(np.asarray(jax.random.bits(key, (4,))))


def point(centre: Float[np.ndarray, " d"]) -> str:
    """A point as a reader wants it: "(2, -2)"; long ones are cut short."""
    shown = [f"{value + 0.0:.2g}" for value in np.round(centre[:4], 2)]
    return f"({', '.join(shown)}{', …' if len(centre) > 4 else ''})"


def percent(share: float) -> str:
    """A share in per cent: 0 and 100 only where it is exactly so."""
    if 0 < share < 0.01 or 0.99 < share < 1:
        return f"{100 * share:.2g} %" if share < 0.5 else f"{100 * share:.3g} %"
    return f"{100 * share:.0f} %"
