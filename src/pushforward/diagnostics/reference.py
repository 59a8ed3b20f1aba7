"""What draws are compared with: exact draws, the user's own, or two short SMC runs."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray
from scipy.spatial.distance import cdist

from pushforward.diagnostics import energies
from pushforward.diagnostics.modes import Modes, find_modes
from pushforward.diagnostics.two_sample import Frame, SlicedW2
from pushforward.errors import UsageError
from pushforward.mcmc.smc import explore
from pushforward.targets.base import AbstractTarget
from pushforward.targets.coordinates import Whitened, Whitening

# Particles of each of the two runs.
PARTICLES = 4096

# Reference draws used for each draw that is judged, where there are as many.
_FACTOR = 4

# Evaluations of one particle in a run and the stirring after it, roughly; times the
# particles and the data this is what a reference made here may cost.
_EVALUATIONS = 1900
_MAX_TERMS = 1.5e10

# How often the particles are stirred after a run, and how often of these before it is
# looked whether more of it moves them.
STIRS, _SETTLING = 5, 2

# Particles are not independent, since resampling copies them. Measured over many runs
# on targets that SMC masters, their means vary one to three times as much as those of
# independent draws: the larger is what is reckoned with, unless two runs show more.
_LEAST_INFLATION = 3.0

# Worth fewer independent draws than this, a reference settles nothing.
_LEAST_EFFECTIVE = 500.0

# Below this chance of being sound a reference is not trusted.
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
        energies: Their log densities; None where the target has no density.
        sentence: What they are.
        effective: How many independent draws they are worth.
        modes: Their modes, or those that the target names.
        frame: The coordinates in which distances to them are taken.
        made_here: Whether this is the work of `check` and may be wrong.
        complaints: Why they are not to be trusted, if they are not.
    """

    draws: Float[np.ndarray, "m d"]
    energies: Float[np.ndarray, " m"] | None
    sentence: str
    effective: float
    modes: Modes | GivenModes
    frame: Frame
    made_here: bool = False
    complaints: tuple[str, ...] = ()

    def split(
        self, n: int
    ) -> tuple[Float[np.ndarray, "a d"], Float[np.ndarray, "b d"]]:
        """Two disjoint parts: one to compare with, and one to play the draws' role.

        The first is small against the effective size, so that its draws are close to
        independent; the second has `n` draws, or as many as there are.
        """
        first = int(min(n, self.effective / 2, len(self.draws) / 2))
        return self.draws[:first], self.draws[first : first + n]


def make_reference(
    key: PRNGKeyArray, target: AbstractTarget, given: Any, n: int
) -> Reference | str:
    """The best reference there is, or a sentence that says why there is none.

    Args:
        key: Random key.
        target: The target.
        given: Reference draws in the user's own tree, or None.
        n: How many draws will be compared with it.
    """
    host_key, key = jax.random.split(key)
    rng = generator(host_key)
    if given is not None:
        return _given(rng, target, given, _FACTOR * n)
    if target.exact is not None:
        draws = np.asarray(target.sample_flat(key, _FACTOR * n), np.float64)
        finite = np.isfinite(draws).all(axis=1)
        if not finite.all():
            return f"{np.sum(~finite)} of {len(draws)} exact draws are not finite"
        return _plain(target, draws, "exact draws")
    if not target.has_density:
        return (
            f"a {type(target).__name__} has a score but no log density, and a score "
            "alone cannot say how much weight a mode has; give a reference="
        )
    if 2 * PARTICLES * _EVALUATIONS * energies.terms(target) > _MAX_TERMS:
        return (
            f"with {energies.terms(target):,} observations a tempered-SMC reference "
            "would take too long; give a reference="
        )
    return _by_smc(key, rng, target, n)


def _given(rng, target, given, most):
    draws = np.asarray(target.structure.flatten_draws(given), np.float64)
    finite = np.isfinite(draws).all(axis=1)
    if not finite.all():
        raise UsageError(
            f"{np.sum(~finite)} of the {len(draws)} reference draws are not finite; "
            "remove them, or see where they come from."
        )
    if len(draws) < 200:
        raise UsageError(
            f"The reference has {len(draws)} draws; a comparison needs at least 200."
        )
    sentence = f"the {len(draws):,} draws you gave"
    if len(draws) > most:
        sentence = f"{most:,} of {sentence}"
    return _plain(target, rng.permutation(draws)[:most], sentence)


def _plain(target, draws, sentence):
    values, complaints = None, []
    if target.has_density:
        values = energies.log_densities(target, draws)
        finite = np.isfinite(values)
        if not finite.all():
            complaints.append(
                f"{np.sum(~finite)} of its draws lie where the density is not finite"
            )
        if not finite.any():
            return f"the density is not finite at any of {sentence}"
        draws, values = draws[finite], values[finite]
    return Reference(
        draws=draws,
        energies=values,
        sentence=sentence,
        effective=float(len(draws)),
        modes=_modes(target, draws, values),
        frame=Frame.of(draws),
        complaints=tuple(complaints),
    )


def _modes(target, draws, values):
    known = getattr(target, "modes", None)
    if known is not None:
        return GivenModes(np.asarray(known, np.float64))
    modes = find_modes(draws)
    if values is None:
        return modes
    # A better centre than where draws happen to lie close: the most likely of them.
    best = [
        np.argmax(np.where(modes.labels == k, values, -np.inf))
        for k in range(len(modes.centres))
    ]
    return eqx.tree_at(lambda m: m.centres, modes, draws[best])


def _by_smc(key, rng, target, n):
    """Two independent runs, judged by each other and by what further moves do.

    One starts ten times as wide as the other, so that they disagree about a mode that
    only one of them can reach.
    """
    runs, before, after = [], [], []
    for i, width in enumerate((1.0, 10.0)):
        run_key, *stir_keys = jax.random.split(jax.random.fold_in(key, i), 1 + STIRS)
        run = _explore(run_key, target, jnp.asarray(width))
        # The first moves undo what resampling left to chance, and fill places too small
        # for any particle to have started in; whether those after them still lead
        # anywhere is the question.
        stages = [run.positions]
        for stir_key in stir_keys:
            stages.append(energies.stir(stir_key, target, stages[-1]))
        runs.append(run)
        before.append(np.asarray(stages[_SETTLING], np.float64))
        after.append(np.asarray(stages[-1], np.float64))
    stirring = 2 * PARTICLES * STIRS * energies.STIR_EVALUATIONS
    evaluations = sum(int(run.evaluations) for run in runs) + stirring
    sentence = (
        f"two tempered-SMC runs of {PARTICLES} particles ({evaluations:,} target "
        "evaluations)"
    )
    before, after, lost = _finite_only(target, before, after)
    if lost > PARTICLES:
        return f"{sentence} found no region where the density is finite"
    if min(len(draws) for draws, _ in after) < PARTICLES // 10:
        return f"of {sentence} one lost its particles: there the density is not finite"
    complaints = [*_unfinished(runs)]
    if lost:
        complaints.append(f"{lost} particles lie where the density is not finite")
    pooled, values = (np.concatenate(part) for part in zip(*after, strict=True))
    modes, frame = _modes(target, pooled, values), Frame.of(pooled)
    complaints += _moving(target, frame, before, after)
    inflation, worst = _disagreement(target, modes, after)
    effective = len(pooled) / max(inflation, _LEAST_INFLATION)
    order = rng.permutation(len(pooled))
    reference = Reference(
        draws=pooled[order],
        energies=values[order],
        sentence=sentence,
        effective=max(effective, _LEAST_EFFECTIVE),
        modes=modes,
        frame=frame,
        made_here=True,
    )
    if effective < _LEAST_EFFECTIVE:
        complaints.append(f"two independent runs disagree about {worst}")
    else:
        size = len(reference.split(n)[0])
        parts = [frame(rng.permutation(draws)[:size]) for draws, _ in after]
        distance = SlicedW2(rng, target.dim).test(*parts, permutations=1999)
        if distance.p_value <= DOUBT:
            complaints.append(
                "two independent runs are further apart than chance allows (sliced W2 "
                f"{distance.statistic:.3f}, p = {distance.p_value:.4f})"
            )
    return dataclasses.replace(reference, complaints=tuple(complaints))


@eqx.filter_jit
def _explore(key, target, width):
    """`explore` in coordinates that are `width` of the target's long."""
    scaling = Whitening.affine(jnp.zeros(target.dim), width * jnp.eye(target.dim))
    run = explore(key, Whitened(target, scaling), particles=PARTICLES)
    positions = jax.vmap(scaling.to_target)(run.positions)
    return eqx.tree_at(lambda r: r.positions, run, positions)


def _unfinished(runs):
    temperature = min(float(run.temperature) for run in runs)
    acceptance = min(float(run.acceptance) for run in runs)
    ancestors = min(int(run.ancestors) for run in runs)
    if temperature < 1:
        yield f"a run ended at the inverse temperature {temperature:.2g} instead of 1"
    if acceptance < 0.2:
        yield f"a run accepted only {acceptance:.0%} of its last moves"
    if ancestors < PARTICLES // 100:
        yield f"all particles of a run descend from {ancestors} of its {PARTICLES}"


def _finite_only(target, before, after):
    """Pairs of draws and log densities of both runs, and how many were dropped."""
    kept = []
    lost = 0
    for pair in zip(before, after, strict=True):
        values = [energies.log_densities(target, draws) for draws in pair]
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


def _moving(target, frame, before, after):
    """Whether further moves still change the particles' energies or coordinates."""
    start, end = (
        np.concatenate([draws for draws, _ in side]) for side in (before, after)
    )
    first, last = (np.concatenate([v for _, v in side]) for side in (before, after))
    names = ("the log density", *(f"'{name}'" for name in target.names))
    columns = zip(
        np.column_stack([first, frame(start)]).T,
        np.column_stack([last, frame(end)]).T,
        strict=True,
    )
    drifts = [energies.drift(a, b) for a, b in columns]
    worst = int(np.argmin([d.p_value for d in drifts]))
    if drifts[worst].p_value * len(drifts) <= DOUBT:
        ratio = abs(drifts[worst].mean) / drifts[worst].error
        yield (
            f"{names[worst]} of its particles still moves under further HMC moves "
            f"({ratio:.0f} standard errors)"
        )


def _disagreement(target, modes, runs):
    """How much more the two runs differ than independent draws would.

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
