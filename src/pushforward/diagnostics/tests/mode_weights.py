"""The weight of each mode in the draws and in the reference."""

import numpy as np

from pushforward.diagnostics.modes import compare_modes
from pushforward.diagnostics.reference import DOUBT, percent, point
from pushforward.diagnostics.results import Outcome, TestResult
from pushforward.diagnostics.tests.base import Need, StatisticalTest


def _run(key, evidence, level):
    """Fisher's exact test, mode by mode; a mode that the draws lack is named."""
    draws, reference = evidence.sample.draws, evidence.reference
    modes = reference.modes
    counts = modes.counts(draws)
    expected = modes.counts(reference.draws)
    # As many reference draws as they are worth.
    share = reference.ess / len(reference.draws)
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
    failed = "; ".join(named)
    if len(wrong) > 3:
        failed += f"; and {len(wrong) - 3} more modes differ"
    return TestResult.of_p_value(
        MODE_WEIGHTS.name,
        float(np.min(compared.p_values)),
        level,
        failed=failed,
        passed=f"largest difference of a weight, of {len(counts)} modes",
        statistic=float(np.max(gaps)),
        reference=beside,
    )


def _skip(evidence):
    if len(evidence.reference.modes.centres) > 1:
        return None
    return TestResult(
        MODE_WEIGHTS.name,
        Outcome.PASSED,
        "the reference has one mode",
        statistic=0.0,
        reference=0.0,
    )


MODE_WEIGHTS = StatisticalTest("mode weights", frozenset({Need.REFERENCE}), _run, _skip)
