"""The verdict: can these draws be told from the target, and by what?"""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from pushforward.diagnostics.reference import Reference, generator, make_reference
from pushforward.diagnostics.standoff import MOVES, movement
from pushforward.diagnostics.trials import Trial, run_trials
from pushforward.errors import UsageError
from pushforward.sampler import Sampler
from pushforward.targets.arguments import as_key, as_target
from pushforward.targets.base import AbstractTarget

# The chance that all tests together reject draws that are exact.
FALSE_ALARMS = 0.01

# Draws that differ from a reference made here fail only if they move: a test of its
# own. With half of the false alarms, and the tests that need no reference with theirs
# (two of five or more), exact draws keep to the promise even if the reference is wrong;
# but for a suspicion about the weights of modes, which has a level of its own.
_MOVING = FALSE_ALARMS / 2

# With fewer draws no test has a chance to see anything.
_LEAST_DRAWS = 100

_MARKS = {True: "✓", False: "✗", None: "?"}
_HEADLINES = {True: "passed", False: "FAILED", None: "cannot tell"}


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one test found.

    Attributes:
        name: What it looked at.
        sentence: What it found, in words.
        statistic: Its figure for the draws.
        reference: The same figure for as many reference draws.
        p_value: How often exact draws would have a figure as extreme.
        threshold: It rejects where the p-value is not above this.
        ok: False where it rejects, None where that proves nothing.
    """

    name: str
    sentence: str
    statistic: float | None
    reference: float | None
    p_value: float | None
    threshold: float | None
    ok: bool | None

    def __str__(self) -> str:
        figures = []
        if self.statistic is not None:
            figures.append(f"{self.statistic:.3g}")
        if self.reference is not None:
            figures.append(f"(reference {self.reference:.3g})")
        if self.p_value is not None:
            small = self.p_value < 1e-6
            figures.append("p < 1e-6" if small else f"p = {self.p_value:.2g}")
        words = [*figures, self.sentence]
        return f"{_MARKS[self.ok]} {self.name}: {', '.join(words)}".replace(", (", " (")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether draws can be told from their target, with the evidence.

    Attributes:
        passed: True, False, or None where it cannot be told.
        summary: The verdict in one sentence.
        findings: One for each test.
        reference: What the draws were compared with.
        n: How many draws were tested.
        given: How many there were.
    """

    passed: bool | None
    summary: str
    findings: tuple[Finding, ...]
    reference: str
    n: int
    given: int

    def __str__(self) -> str:
        part = "" if self.n == self.given else f" of {self.given:,}"
        tested = (
            f"{self.n:,}{part} draws against {self.reference}; exact draws would fail "
            f"in {FALSE_ALARMS:.0%} of cases."
        )
        if self.n < _LEAST_DRAWS:
            few = f"{self.n:,} finite draws are too few to compare."
            tested = f"only whether draws are finite; {few}"
        lines = [f"{_HEADLINES[self.passed]}: {self.summary}", f"Tested: {tested}"]
        return "\n".join([*lines, *(f"  {finding}" for finding in self.findings)])

    def to_dict(self) -> dict[str, Any]:
        """Plain names and numbers, as JSON holds them."""
        whole = dataclasses.asdict(self)
        whole["false_alarms"] = FALSE_ALARMS
        whole["findings"] = [
            {name: _plain(value) for name, value in finding.items()}
            for finding in whole["findings"]
        ]
        return whole


def _plain(value):
    # JSON has no number that is none.
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check(
    key: PRNGKeyArray,
    target: AbstractTarget,
    draws_or_sampler: Any,
    reference: Any = None,
    *,
    n: int = 2000,
) -> Verdict:
    """Tries to tell draws from their target, and says what came of it.

    The draws are compared with reference draws: those given; else exact draws, where
    the target has them; else the particles of two tempered-SMC runs made here, which
    are trusted only if the runs agree and further moves leave them where they are. The
    tests are

    - the kernel Stein discrepancy (U-statistic, wild bootstrap), which needs only
      scores and cannot see how much weight a mode has;
    - mode weights (Fisher's exact test, mode by mode), a lacking mode named;
    - sliced W2 and MMD (permutation tests);
    - each coordinate, and the log density, alone (Kolmogorov-Smirnov);
    - energies: the mean log density (Welch), and whether draws lie beyond all of the
      reference (a rank test);
    - whether 20 steps of MALA change the mean log density: draws that follow the target
      stay where they are.

    Each of the K tests made has the level 0.01 / K (Bonferroni), so that all together
    reject exact draws in at most 1 % of cases. The draws are taken as independent:
    thin a Markov chain first.

    A reference made here may be wrong and not know it: two runs may both have too few
    particles in the neck of a funnel. So where draws differ from one, and neither in
    the weights of modes nor by a test that needs no reference, they are moved by HMC as
    the reference was. If that moves them (level 0.005), they fail; if it moves neither,
    either may be wrong, and the verdict is that it cannot be told. Exact draws then
    fail in at most 1 % of cases, with several modes 2 %, even if the reference is wrong
    in anything but the weights of modes.

    Args:
        key: Random key.
        target: What the draws should follow.
        draws_or_sampler: Draws in the user's own tree, or a `Sampler`.
        reference: Independent reference draws in the same tree.
        n: How many draws are tested; of more a random part is taken, always of this
            size, so that the verdict does not depend on how many were given.

    Returns:
        The verdict. `passed` is False where a test rejects (one that needs a reference
        only if the reference is trusted), True where none does, and None where there
        is no reference to be trusted, or where draws and a reference made here differ
        and neither moves.

    Raises:
        UsageError: There are too few draws, or they do not fit the target.
    """
    key, target = as_key(key), as_target(target)
    if not isinstance(n, int | np.integer) or n < _LEAST_DRAWS:
        raise UsageError(
            f"n must be a whole number of at least {_LEAST_DRAWS}, and it is {n!r}."
        )
    draw_key, reference_key, test_key = jax.random.split(key, 3)
    move_key = jax.random.fold_in(key, 3)
    draws, given, broken = _take(draw_key, target, draws_or_sampler, n)
    trials = [] if broken is None else [broken]
    made, doubts = "there are too few finite draws to compare", []
    if len(draws) >= _LEAST_DRAWS:
        made = make_reference(reference_key, target, reference, n)
        source = made if isinstance(made, Reference) else None
        more, doubts = run_trials(test_key, target, draws, source, _LEAST_DRAWS)
        trials += more
    if isinstance(made, Reference):
        doubts = [*made.complaints, *doubts]
    findings = _findings(trials, trusted=not doubts)
    if isinstance(made, Reference) and _standoff(made, trials, findings):
        moved = _moved(move_key, target, draws, made)
        if not moved.ok:
            findings = (*findings, moved)
        else:
            doubts = [_either_may_be_wrong(findings)]
            findings = (*_findings(trials, trusted=False), moved)
    passed, summary = _judge(findings, made, doubts, len(draws))
    against = made.sentence if isinstance(made, Reference) else "no reference"
    return Verdict(passed, summary, findings, against, len(draws), given)


def _findings(trials: list[Trial], *, trusted: bool) -> tuple[Finding, ...]:
    tests = sum(trial.p_value is not None for trial in trials)
    threshold = FALSE_ALARMS / max(1, tests)
    findings = []
    for trial in trials:
        ok = trial.ok
        if trial.p_value is not None:
            # A p-value that is no number rejects.
            ok = bool(trial.p_value > threshold)
        sentence = trial.found if ok is False else trial.usual
        if trial.needs_reference and not trusted:
            ok = None
        findings.append(
            Finding(
                name=trial.name,
                sentence=sentence,
                statistic=trial.statistic,
                reference=trial.reference,
                p_value=None if trial.p_value is None else float(trial.p_value),
                threshold=None if trial.p_value is None else threshold,
                ok=ok,
            )
        )
    return tuple(findings)


def _standoff(
    made: Reference, trials: list[Trial], findings: tuple[Finding, ...]
) -> bool:
    """Whether all that speaks against the draws is a reference made here."""
    if not made.made_here:
        return False
    failed = [
        trial
        for trial, finding in zip(trials, findings, strict=True)
        if finding.ok is False
    ]
    # Moves do not carry draws from mode to mode, but tempering did: there the reference
    # knows better. Where another test rejects, a suspicion about the weights is enough.
    weights = [f.p_value for f in findings if f.name == "mode weights"]
    suspected = any(p is not None and p <= FALSE_ALARMS for p in weights)
    return bool(failed) and not suspected and all(t.needs_reference for t in failed)


def _moved(key, target, draws, made) -> Finding:
    moved = movement(key, target, draws, made)
    ok = moved.p_value > _MOVING
    change = f"{moved.change:+.3f} ± {moved.error:.3f}"
    if ok:
        sentence = f"{MOVES} HMC moves leave the draws where they are"
    else:
        sentence = f"{MOVES} HMC moves change {moved.what}: the draws are not there yet"
    return Finding(
        name="HMC drift",
        sentence=f"{sentence} (mean log density {change})",
        statistic=moved.change,
        reference=None,
        p_value=moved.p_value,
        threshold=_MOVING,
        ok=ok,
    )


def _either_may_be_wrong(findings) -> str:
    first = min((f for f in findings if f.ok is False), key=lambda f: f.p_value)
    return (
        f"the draws differ from it ({first.name}: {first.sentence}), but further HMC "
        "moves change neither, so that either may be wrong; give a reference=, or "
        "write the density in other coordinates (a hierarchical model non-centred)"
    )


def _judge(
    findings: tuple[Finding, ...], made: Reference | str, doubts: list[str], n: int
) -> tuple[bool | None, str]:
    failed = [finding for finding in findings if finding.ok is False]
    if failed:
        # Draws that are no numbers have no p-value and come first; then lacking modes.
        first = min(
            failed,
            key=lambda f: (f.p_value is not None, f.name != "mode weights", f.p_value),
        )
        return False, f"{first.sentence}."
    if isinstance(made, str):
        return None, f"{made}."
    if doubts:
        which = made.sentence if made.made_here else f"{made.sentence},"
        return None, f"{which} cannot be trusted as a reference: {'; '.join(doubts)}."
    names = [finding.name for finding in findings if finding.p_value is not None]
    against = "the reference" if made.made_here else made.sentence
    tests = f"{', '.join(names[:-1])} or {names[-1]}"
    return True, f"{n:,} draws cannot be told from {against} by {tests}."


def _take(
    key: PRNGKeyArray, target: AbstractTarget, draws_or_sampler: Any, n: int
) -> tuple[Float[np.ndarray, "m d"], int, Trial | None]:
    """At most `n` finite draws, how many there were, and a word on the others."""
    if isinstance(draws_or_sampler, Sampler):
        if draws_or_sampler.dim != target.dim:
            raise UsageError(
                f"The sampler draws {draws_or_sampler.dim} coordinates, but the target "
                f"has {target.dim}."
            )
        draws = np.asarray(draws_or_sampler.sample_flat(key, n), np.float64)
        finite = np.isfinite(draws).all(axis=1)
        return draws[finite], n, _broken(target, draws[~finite], n)
    for leaf in jax.tree.leaves(draws_or_sampler):
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float):
            raise UsageError(
                f"A {type(leaf).__name__} is neither a sampler nor draws; give a "
                "Sampler (fit.sampler, or pushforward.load of a file), or draws in the "
                "target's own tree."
            )
    try:
        # Only the shapes are looked at; the structure complains in its own words.
        whole = jax.eval_shape(target.structure.flatten_draws, draws_or_sampler)
    except (TypeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"The draws cannot be read: {error}") from error
    given = whole.shape[0]
    if given < _LEAST_DRAWS:
        raise UsageError(
            f"There are {given} draws, and a check needs at least {_LEAST_DRAWS}."
        )
    leaves, treedef = jax.tree.flatten(draws_or_sampler)
    leaves = [np.asarray(leaf) for leaf in leaves]

    def flatten(rows):
        part = jax.tree.unflatten(treedef, [leaf[rows] for leaf in leaves])
        return np.asarray(target.structure.flatten_draws(part), np.float64)

    # Of many draws a part is taken before anything is compiled for their number, but
    # all are searched for what is not a number.
    finite = np.all(
        [np.isfinite(leaf).reshape(given, -1).all(axis=1) for leaf in leaves], axis=0
    )
    rows = np.arange(given)
    if given > n:
        rows = generator(key).choice(given, n, replace=False)
    draws = flatten(rows)
    tested = np.isfinite(draws).all(axis=1)
    if finite.all():
        # What is left are draws outside the constraints, seen among those taken.
        return draws[tested], given, _broken(target, draws[~tested], len(draws))
    broken = flatten(np.flatnonzero(~finite))
    return draws[tested], given, _broken(target, broken, given)


def _broken(target, draws, total):
    """The trial of draws that are not finite, where there are any."""
    if not len(draws):
        return None
    name = target.names[int(np.argmax(~np.isfinite(draws).all(axis=0)))]
    sentence = f"{len(draws):,} of {total:,} draws are not finite (coordinate '{name}')"
    share = len(draws) / total
    return Trial("finite", share, 0.0, None, sentence, "", False, ok=False)
