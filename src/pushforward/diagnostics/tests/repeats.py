"""Whether draws are copies of each other, where the target's own are not."""

from pushforward.diagnostics.permutations import num_permutations
from pushforward.diagnostics.reference import generator, percent
from pushforward.diagnostics.repeats import repetition
from pushforward.diagnostics.results import TestResult
from pushforward.diagnostics.tests.base import StatisticalTest
from pushforward.diagnostics.two_sample import RobustScaler


def _run(key, evidence, level):
    """Draws closer than a density allows, unless the reference has them too.

    The reference can only acquit the draws: it need not be a good one.
    """
    draws, reference = evidence.sample.draws, evidence.reference
    scaler = RobustScaler.of(draws) if reference is None else reference.scaler
    found = repetition(
        generator(key),
        scaler,
        draws,
        evidence.near,
        level=level,
        permutations=num_permutations(level),
    )
    return TestResult.of_p_value(
        REPEATS.name,
        found.p_value,
        level,
        failed=f"{percent(found.share)} of the draws are copies of others, or nearly: "
        f"in the median {found.closeness:,.0f} times as close to one as to the next",
        passed="share of the draws that are much closer to one other than to the next",
        statistic=found.share,
        reference=found.other_share,
    )


REPEATS = StatisticalTest("repeats", frozenset(), _run)
