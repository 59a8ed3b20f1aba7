"""The verdict: can these draws be told from the target, and by what?"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from pushforward.diagnostics.reference import Reference, make_reference
from pushforward.diagnostics.trials import Finding, Trials
from pushforward.errors import UsageError
from pushforward.sampler import Sampler
from pushforward.targets.base import AbstractTarget

# The chance that all tests together reject draws that are exact.
FALSE_ALARMS = 0.01

# With fewer draws no test has a chance to see anything.
_LEAST_DRAWS = 100

_MARKS = {True: "✓", False: "✗", None: "?"}


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
        count = f"{self.n:,}" if self.n == self.given else f"{self.n:,} of {self.given:,}"
        lines = [
            f"{_headline(self.passed)}: {self.summary}",
            f"Tested {count} draws against {self.reference}; all tests together raise a "
            f"false alarm in {FALSE_ALARMS:.0%} of cases.",
        ]
        width = max((len(f.name) for f in self.findings), default=0)
        for finding in self.findings:
            figures = _figures(finding)
            gap = "  " if figures else ""
            mark = _MARKS[finding.ok]
            lines.append(
                f"  {mark} {finding.name:<{width}}  {figures}{gap}{finding.sentence}"
            )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain names and numbers, as JSON holds them."""
        return {
            "passed": self.passed,
            "summary": self.summary,
            "reference": self.reference,
            "n": self.n,
            "given": self.given,
            "false_alarms": FALSE_ALARMS,
            "findings": [
                {
                    field.name: _plain(getattr(finding, field.name))
                    for field in dataclasses.fields(finding)
                }
                for finding in self.findings
            ],
        }


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
        is no reference to be trusted.

    Raises:
        UsageError: There are too few draws, or they do not fit the target.
    """
    if n < _LEAST_DRAWS:
        raise UsageError(f"n must be at least {_LEAST_DRAWS}, and it is {n}.")
    draw_key, reference_key, test_key = jax.random.split(key, 3)
    draws, given = _take(draw_key, target, draws_or_sampler, n)
    finite = np.isfinite(draws).all(axis=1)
    made = make_reference(reference_key, target, reference, n)
    trials = Trials(test_key, target, made if isinstance(made, Reference) else None)
    trials.finite(draws, given)
    if np.sum(finite) >= _LEAST_DRAWS:
        trials.run(draws[finite])
    return _judge(trials, made, len(draws), given)


def _judge(trials: Trials, made: Reference | str, n: int, given: int) -> Verdict:
    findings = trials.findings(FALSE_ALARMS)
    failed = [f for f in findings if f.ok is False]
    against = made.sentence if isinstance(made, Reference) else "no reference"
    if failed:
        # What a user can act on first: draws that are no numbers, then lacking modes.
        first = min(failed, key=lambda f: (f.rank, f.p_value or 0.0))
        passed, summary = False, first.sentence
    elif isinstance(made, str):
        passed, summary = None, f"{made}."
    elif doubts := (*made.complaints, *trials.doubts):
        short = "draws you gave are" if not made.made_here else "reference is"
        passed = None
        summary = f"the {short} not to be trusted: {'; '.join(doubts)}."
    else:
        names = [f.name for f in findings if f.p_value is not None]
        listed = f"{', '.join(names[:-1])} or {names[-1]}"
        passed = True
        summary = (
            f"{n:,} draws cannot be told from {_object(made)} by {listed}."
        )
    return Verdict(passed, summary, findings, against, n, given)


def _object(reference):
    return reference.sentence if not reference.made_here else "the reference"


def _take(key, target, draws_or_sampler, n):
    """At most `n` draws in unconstrained coordinates, and how many there were."""
    if isinstance(draws_or_sampler, Sampler):
        if draws_or_sampler.dim != target.dim:
            raise UsageError(
                f"The sampler draws {draws_or_sampler.dim} coordinates, and the target "
                f"has {target.dim}."
            )
        draws = draws_or_sampler.sample_flat(key, n)
        return np.asarray(draws, np.float64), n
    leaves, treedef = jax.tree.flatten(draws_or_sampler)
    lengths = {np.shape(leaf)[:1] for leaf in leaves}
    if len(lengths) == 1 and () not in lengths:
        ((given,),) = lengths
        if given < _LEAST_DRAWS:
            raise UsageError(
                f"There are {given} draws; a check needs at least {_LEAST_DRAWS}."
            )
        # A part of the rows, before anything is compiled for their number; the rows
        # with a number that is none come first, so that they cannot be missed.
        rng = np.random.default_rng(np.asarray(jax.random.bits(key, (4,))))
        broken = np.zeros(given, bool)
        for leaf in leaves:
            rows = np.asarray(leaf).reshape(given, -1)
            broken |= ~np.isfinite(rows.astype(np.float64, copy=False)).all(axis=1)
        ...
    raise NotImplementedError
