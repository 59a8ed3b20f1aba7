"""Means, spreads and correlations of the draws beside those of the reference."""

from pushforward.diagnostics.results import TestResult
from pushforward.diagnostics.tests.base import Need, StatisticalTest
from pushforward.diagnostics.two_sample import compare_scores


def _run(key, evidence, level):
    """Of normal scores, so that heavy tails do no harm."""
    reference, names = evidence.reference, evidence.target.names
    found = compare_scores(evidence.sample.draws, reference.draws, reference.ess)
    i, j = found.coordinates
    what = f"the {found.what} of '{names[i]}'"
    if i != j:
        what = f"the correlation of '{names[i]}' and '{names[j]}'"
    return TestResult.of_p_value(
        MOMENTS.name,
        found.p_value,
        level,
        failed=f"{what} is {found.own:+.3f} in the draws and {found.other:+.3f} in the "
        "reference (in normal scores of both together)",
        passed=f"{what} (in normal scores)",
        statistic=found.own,
        reference=found.other,
    )


MOMENTS = StatisticalTest("moments", frozenset({Need.REFERENCE}), _run)
