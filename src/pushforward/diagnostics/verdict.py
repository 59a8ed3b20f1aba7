"""The verdict: do draws follow their target, and which tests say otherwise?"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from pushforward import _html
from pushforward._validate import whole_number
from pushforward.diagnostics import stationarity
from pushforward.diagnostics.arguments import MIN_DRAWS, take_draws
from pushforward.diagnostics.budget import Budget
from pushforward.diagnostics.copies import in_one_copy, one_copy
from pushforward.diagnostics.evaluation import MAX_OUTSIDE, Sample
from pushforward.diagnostics.reference import (
    DOUBT,
    Reference,
    generator,
    make_reference,
    reference_of_one_copy,
    unseen_modes,
)
from pushforward.diagnostics.results import Outcome, TestResult
from pushforward.diagnostics.tests import TESTS, Evidence, Need, StatisticalTest
from pushforward.diagnostics.tests.mode_weights import MODE_WEIGHTS
from pushforward.errors import UsageError
from pushforward.mcmc.copies import divides
from pushforward.sampler import MOST, Sampler
from pushforward.targets.arguments import as_target, one_key
from pushforward.targets.base import AbstractTarget

# The chance that all tests together reject draws that are exact.
FALSE_ALARMS = 0.01

# Draws that differ from a reference made here fail only if they move: a test of its
# own. With half of the false alarms, and the tests that need no reference with theirs
# (at most half of all), exact draws keep to the promise even if the reference is wrong;
# but for a suspicion about the weights of modes, which has a level of its own.
_HMC_LEVEL = FALSE_ALARMS / 2

# The share of draws of density zero above which they have failed (see `_outside`).
_FAILING_OUTSIDE = 0.1


@dataclasses.dataclass(frozen=True, repr=False)
class Verdict:
    """Whether draws follow their target, with the evidence.

    Attributes:
        outcome: Passed, failed or inconclusive.
        summary: The verdict in one sentence.
        findings: The result of each test.
        reference: What the draws were compared with.
        n: How many draws were tested.
        given: How many there were.
        evaluations: How many evaluations of the target were spent.
    """

    outcome: Outcome
    summary: str
    findings: tuple[TestResult, ...]
    reference: str
    n: int
    given: int
    evaluations: int

    def __bool__(self) -> bool:
        raise UsageError(
            "A Verdict is neither true nor false, because it may be inconclusive; "
            "compare its outcome: verdict.outcome == 'passed'."
        )

    def __repr__(self) -> str:
        counts = [
            f"{sum(f.outcome is outcome for f in self.findings)} {outcome.value}"
            for outcome in Outcome
        ]
        return (
            f"Verdict: {self.outcome.value}\n  {self.summary}\n"
            f"  {len(self.findings)} tests of {self.n:,} draws: {', '.join(counts)}"
        )

    def __str__(self) -> str:
        part = "" if self.n == self.given else f" of {self.given:,}"
        tested = (
            f"{self.n:,}{part} draws against {self.reference}; exact draws would fail "
            f"in {FALSE_ALARMS:.0%} of cases."
        )
        if self.n < MIN_DRAWS:
            few = f"{self.n:,} finite draws are too few to compare."
            tested = f"only whether draws are finite; {few}"
        word = self.outcome.value
        headline = word.upper() if self.outcome is Outcome.FAILED else word
        lines = [f"{headline}: {self.summary}", f"Tested: {tested}"]
        return "\n".join([*lines, *(f"  {finding}" for finding in self.findings)])

    def _repr_html_(self) -> str:
        """What a notebook shows: the sentence, and a row for each test."""
        rows = [
            [
                f.outcome.value,
                f.name,
                *(
                    "" if value is None else f"{value:.3g}"
                    for value in (f.statistic, f.reference, f.p_value)
                ),
                f.sentence,
            ]
            for f in self.findings
        ]
        columns = ("outcome", "test", "draws", "reference", "p", "what it found")
        tested = f"{self.n:,} draws against {self.reference}."
        return (
            _html.heading(self.outcome.value, self.summary)
            + _html.heading("tested", tested)
            + _html.table(rows, columns)
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain names and numbers, as JSON holds them."""
        whole = dataclasses.asdict(self)
        whole["outcome"] = self.outcome.value
        whole["false_alarms"] = FALSE_ALARMS
        whole["findings"] = [
            {name: _plain(value) for name, value in finding.items()}
            for finding in whole["findings"]
        ]
        return whole


def _plain(value):
    if isinstance(value, Outcome):
        return value.value
    # JSON has no infinity and no NaN.
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check(
    key: PRNGKeyArray,
    target: AbstractTarget,
    draws: Any,
    reference: Any = None,
    *,
    n: int = 2000,
    max_evaluations: int | float | None = None,
) -> Verdict:
    """Tests whether draws follow their target.

    The draws are compared with reference draws: those given; else exact draws, where
    the target has them; else the particles of two explorations made here, which are
    trusted only if the two agree and further moves leave them where they are. The tests
    are

    - the kernel Stein discrepancy (U-statistic, wild bootstrap), which needs only
      scores and cannot see how much weight a mode has. It is not made where the density
      ends abruptly, as exact draws have a discrepancy there too;
    - stationarity: whether 20 steps of MALA change the mean log density. Draws that
      follow the target stay where they are. MALA is tuned on other points than the
      draws; where it hardly moves them, the test is inconclusive;
    - the log density: its mean (Welch), and whether draws lie beyond all of the
      reference (a rank test);
    - mode weights (Fisher's exact test, mode by mode), a lacking mode named;
    - sliced W2 and MMD (permutation tests);
    - each coordinate, and the log density, alone (Kolmogorov-Smirnov);
    - moments: means, spreads and correlations, of normal scores (Welch);
    - extremes: whether as many draws lie far out as should, by the log density, the
      distance from the centre and each coordinate (a permutation test), so that tails
      that are cut off, or too heavy, are seen;
    - the same beside weighted draws, where the draws come from a `Sampler` whose own
      density is known: this needs no reference;
    - repeats: draws that are copies of others, or nearly, where the reference has no
      such pairs. Up to 0.5 % are tolerated.

    A point whose log density is not a finite number has density zero. Draws there are
    left out of the tests: if they are more than 1 % of all, the verdict is at best
    inconclusive; more than 10 % fail. A draw whose density is finite and whose gradient
    is not is left out of the discrepancy only.

    Each of the K tests made has the level 0.01 / K (Bonferroni), so that all together
    reject exact draws in at most 1 % of cases. The draws are taken as independent:
    thin a Markov chain first. Reference draws need not be: their effective sample size
    is estimated, coordinate by coordinate, from their order.

    A reference made here may be wrong without a sign: both runs may have too few
    particles in the neck of a funnel. So where draws differ from such a reference, but
    not in mode weights and not by a test that needs no reference, they are moved by the
    HMC moves that the reference was moved by. If these move the draws (level 0.005),
    the draws fail. If they move neither, either may be wrong, and the verdict is
    inconclusive. Exact draws then fail in at most 1 % of cases (2 % with several
    modes), even if the reference is wrong, except in the weights of modes.

    Where the target has a symmetry, the draws and the reference are moved into one copy
    first: whether draws have all copies in equal shares is not tested.

    Args:
        key: Random key.
        target: What the draws should follow.
        draws: Draws in the user's own tree, or a `Sampler`.
        reference: Reference draws in the same tree, in the order in which they were
            drawn, so that their correlation can be seen. Their leading axis is the
            draws; or there are two, chains and draws. Or a `diagnostics.Reference`,
            made once (`diagnostics.make_reference`) for many checks.
        n: How many draws are tested; of more a random part is taken, always of this
            size, so that the verdict does not depend on how many were given.
        max_evaluations: How many evaluations of the target may be spent; without a
            bound, a reference made here takes millions. Where a test or a reference
            cannot be afforded, the verdict is inconclusive or failed.

    Returns:
        The verdict. Its outcome is failed where a test rejects (one that needs a
        reference only if the reference is trusted), passed where none does, and
        inconclusive where no reference can be trusted, where a test was inconclusive,
        or where draws and a reference made here differ and neither moves.

    Raises:
        UsageError: There are too few draws, or they do not fit the target.
    """
    return judge(key, target, draws, reference, n, max_evaluations)[0]


def judge(
    key: PRNGKeyArray,
    target: AbstractTarget,
    draws: Any,
    reference: Any,
    n: int,
    max_evaluations: int | float | None,
) -> tuple[Verdict, Evidence | None]:
    """The verdict of `check`, and what it rests on, where there were enough draws.

    Args:
        key: As for `check`.
        target: As for `check`.
        draws: As for `check`.
        reference: As for `check`.
        n: As for `check`.
        max_evaluations: As for `check`.
    """
    key, target = one_key(key), as_target(target)
    n = whole_number("n", n, least=MIN_DRAWS, most=MOST)
    budget = Budget(max_evaluations)
    draw_key, reference_key, test_key, move_key = jax.random.split(key, 4)
    tested, given, broken = take_draws(draw_key, target, draws, n)
    findings = [] if broken is None else [broken]
    symmetric = divides(target)
    if symmetric:
        one, spent = one_copy(target)
        budget.spend(spent)
        reference = reference_of_one_copy(one, reference)
        target, tested = one, in_one_copy(draw_key, one, tested)
    made, doubts, shortfalls = "there are too few finite draws to compare", [], []
    sample, evidence = None, None
    if len(tested) >= MIN_DRAWS:
        cost = Sample.evaluations(target, len(tested))
        made = budget.lacks(cost, "evaluating the draws") or ""
        if not made:
            budget.spend(cost)
            host_key, test_key = jax.random.split(test_key)
            rng = generator(host_key)
            sample, outside = Sample.of(rng, target, tested)
            if outside:
                findings.append(_outside(sample, outside, len(tested)))
            known = isinstance(draws, Sampler) and draws.has_density
            own = draws if known and not symmetric else None
            alone = Evidence(
                target,
                sample,
                bounded=budget.most is not None,
                sampler=None if own is None else own.unconstrained(),
            )
            evidence, made, doubts = _evidence(
                reference_key, rng, alone, reference, n, budget
            )
            if len(sample.draws) >= MIN_DRAWS:
                more, shortfalls = _run_tests(test_key, evidence, budget)
                shortfalls += [
                    f.sentence for f in findings if f.outcome is Outcome.INCONCLUSIVE
                ]
                findings += more
    if isinstance(made, Reference):
        doubts = [*doubts, *_failed_by_reference(findings)]
        if made.made_here and sample is not None and len(sample.draws) >= MIN_DRAWS:
            assert sample.log_densities is not None
            doubts += unseen_modes(sample.draws, sample.log_densities, made)
    untrusted = _without_trust(findings)
    if doubts:
        findings = untrusted
    elif isinstance(made, Reference) and _rests_on_reference(made, findings):
        assert sample is not None
        moved = _hmc_result(move_key, target, sample.draws, made, budget)
        if moved.outcome is not Outcome.FAILED:
            doubts = [_either_may_be_wrong(findings, moved)]
            findings = untrusted
        findings = [*findings, moved]
    outcome, summary = _judge(findings, made, doubts, shortfalls, len(tested))
    against = made.description if isinstance(made, Reference) else "no reference"
    verdict = Verdict(
        outcome,
        summary,
        tuple(findings),
        against,
        len(tested),
        given,
        budget.spent,
    )
    return verdict, evidence


def _outside(sample: Sample, count: int, total: int) -> TestResult:
    """The result for draws at which the density is zero.

    Exact draws have none, but for those whose density is lost to 32-bit arithmetic, by
    an overflow, say. These are few: up to 1 % does no harm, and above 10 % the draws
    have failed. In between the draws, or the density, may be at fault.
    """
    share = count / total
    outcome = Outcome.PASSED
    if share > MAX_OUTSIDE:
        outcome = Outcome.FAILED if share > _FAILING_OUTSIDE else Outcome.INCONCLUSIVE
    what = "score" if sample.log_densities is None else "log density"
    infinite = f" (+inf at {sample.infinite})" if sample.infinite else ""
    return TestResult(
        "density",
        outcome,
        f"{count:,} of {total:,} draws lie where the {what} is not finite{infinite}",
        statistic=share,
        reference=0.0,
    )


def _evidence(key, rng, alone, given, n, budget):
    """What the tests are given, the reference or why there is none, and its doubts."""
    target = alone.target
    # What the tests of the draws alone need is kept back.
    kept = sum(t.evaluations(alone) for t in TESTS if t.applies(alone))
    kept += Sample.evaluations(target, n) + stationarity.mala_evaluations(n)
    budget.reserved = kept
    made = make_reference(key, target, given, n, budget)
    budget.reserved = 0
    if isinstance(made, str):
        return alone, made, []
    first, second = made.split(len(alone.sample.draws))
    cost = Sample.evaluations(target, len(second))
    lacking = budget.lacks(cost, "evaluating the reference")
    if lacking is not None:
        return alone, lacking, []
    budget.spend(cost)
    far, lost = Sample.of(rng, target, second)
    doubts = [*made.doubts]
    if lost > MAX_OUTSIDE * len(second):
        doubts.append(f"{lost} of its draws lie where the log density is not finite")
    if len(far.draws) < 2:
        return alone, made, doubts
    beside = dataclasses.replace(alone, reference=made, near=first, far=far)
    return beside, made, doubts


def _run_tests(
    key: PRNGKeyArray,
    evidence: Evidence,
    budget: Budget,
    tests: Sequence[StatisticalTest] = TESTS,
) -> tuple[list[TestResult], list[str]]:
    """The results of all tests that apply, and why some of them could not tell."""
    results: dict[str, TestResult] = {}
    shortfalls: list[str] = []
    applicable = [test for test in tests if test.applies(evidence)]
    to_run = []
    for test in applicable:
        skipped = test.skip(evidence)
        if skipped is not None:
            results[test.name] = skipped
            continue
        cost = test.evaluations(evidence)
        lacking = budget.lacks(cost, f"the test of {test.name}")
        if lacking is not None:
            results[test.name] = TestResult(
                test.name, Outcome.INCONCLUSIVE, f"not made: {lacking}"
            )
            shortfalls.append(lacking)
            continue
        budget.spend(cost)
        to_run.append(test)
    level = FALSE_ALARMS / max(1, len(to_run))
    for i, test in enumerate(to_run):
        result = test.run(jax.random.fold_in(key, i), evidence, level)
        if result.outcome is Outcome.INCONCLUSIVE:
            shortfalls.append(result.sentence)
        results[test.name] = result
    return [results[test.name] for test in applicable], shortfalls


def _failed_by_reference(findings):
    """Why the reference cannot be trusted: it fails tests that need none."""
    for finding in findings:
        p_value = finding.reference_p_value
        if p_value is not None and not p_value > DOUBT:
            yield f"it fails the test of {finding.name} itself (p = {p_value:.4f})"


def _needs_reference(finding):
    test = next((t for t in TESTS if t.name == finding.name), None)
    return test is not None and Need.REFERENCE in test.needs


def _without_trust(findings):
    """The findings where the reference is not trusted."""
    return [
        dataclasses.replace(finding, outcome=Outcome.INCONCLUSIVE)
        if _needs_reference(finding)
        else finding
        for finding in findings
    ]


def _rests_on_reference(made: Reference, findings: list[TestResult]) -> bool:
    """Whether all that speaks against the draws is a reference made here."""
    if not made.made_here:
        return False
    failed = [f for f in findings if f.outcome is Outcome.FAILED]
    # Moves do not carry draws from mode to mode, but tempering did: there the reference
    # knows better. Where another test rejects, a suspicion about the weights is enough.
    weights = [f.p_value for f in findings if f.name == MODE_WEIGHTS.name]
    suspected = any(p is not None and p <= FALSE_ALARMS for p in weights)
    return bool(failed) and not suspected and all(map(_needs_reference, failed))


def _hmc_result(key, target, draws, made, budget) -> TestResult:
    """Whether the draws move under the HMC moves that the reference went through."""
    name, moves = "stationarity under HMC", stationarity.HMC_MOVES
    cost = stationarity.hmc_evaluations(len(draws))
    lacking = budget.lacks(cost, f"the test of {name}")
    if lacking is not None:
        return TestResult(name, Outcome.INCONCLUSIVE, f"not made: {lacking}")
    budget.spend(cost)
    moved = stationarity.hmc_movement(key, target, draws, made, _HMC_LEVEL)
    change = f"mean log density {moved.change:+.3f} ± {moved.error:.3f}, {moved.chain}"
    result = TestResult.of_p_value(
        name,
        moved.p_value,
        _HMC_LEVEL,
        failed=f"{moves} HMC moves change {moved.what}: the draws do not follow the "
        f"target yet ({change})",
        passed=f"{moves} HMC moves leave the draws where they are ({change})",
        statistic=moved.change,
    )
    if result.outcome is Outcome.PASSED and not moved.is_informative:
        return dataclasses.replace(
            result,
            outcome=Outcome.INCONCLUSIVE,
            sentence=f"{moves} HMC moves hardly move the draws ({change}), so they "
            "cannot show whether the draws stand still",
        )
    return result


def _either_may_be_wrong(findings, moved) -> str:
    failed = (f for f in findings if f.outcome is Outcome.FAILED)
    first = min(failed, key=lambda f: f.p_value)
    differ = f"the draws differ from it ({first.name}: {first.sentence})"
    if moved.outcome is Outcome.INCONCLUSIVE:
        return f"{differ}, and {moved.sentence}; give a reference="
    return (
        f"{differ}, but further HMC moves change neither, so either may be wrong; "
        "give a reference=, or write the density in other coordinates (a hierarchical "
        "model non-centred)"
    )


def _judge(
    findings: list[TestResult],
    made: Reference | str,
    doubts: list[str],
    shortfalls: list[str],
    n: int,
) -> tuple[Outcome, str]:
    failed = [f for f in findings if f.outcome is Outcome.FAILED]
    if failed:
        # Draws that are not finite have no p-value and come first; then lacking modes.
        first = min(
            failed,
            key=lambda f: (
                f.p_value is not None,
                f.name != MODE_WEIGHTS.name,
                f.p_value,
            ),
        )
        return Outcome.FAILED, f"{first.sentence}."
    if isinstance(made, str):
        return Outcome.INCONCLUSIVE, f"{made}."
    if doubts:
        which = made.description if made.made_here else f"{made.description},"
        why = "; ".join(doubts)
        return (
            Outcome.INCONCLUSIVE,
            f"{which} cannot be trusted as a reference: {why}.",
        )
    if shortfalls:
        return Outcome.INCONCLUSIVE, f"{'; '.join(shortfalls)}."
    names = [f.name for f in findings if f.p_value is not None]
    against = "the reference" if made.made_here else made.description
    tests = f"{', '.join(names[:-1])} or {names[-1]}"
    return (
        Outcome.PASSED,
        f"{n:,} draws are indistinguishable from {against} by {tests}.",
    )
