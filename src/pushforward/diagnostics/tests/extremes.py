"""The tails of draws beside those of the reference."""

import numpy as np

from pushforward.diagnostics.evaluation import own_log_densities
from pushforward.diagnostics.extremes import Directions, TailComparison
from pushforward.diagnostics.extremes import compare_extremes as compare
from pushforward.diagnostics.permutations import num_permutations
from pushforward.diagnostics.reference import generator, percent
from pushforward.diagnostics.results import TestResult
from pushforward.diagnostics.tests.base import Need, StatisticalTest


def _run(key, evidence, level):
    """Counts of draws far out, and in places where the sampler itself says so."""
    reference, sampler = evidence.reference, evidence.sampler

    def directions(part):
        own = None if sampler is None else own_log_densities(sampler, part.draws)
        return Directions.of(
            reference.scaler,
            evidence.target.names,
            part.draws,
            {
                "the log density": part.log_densities,
                "the log density of the sampler": own,
            },
        )

    size = len(reference.draws)
    compared = compare(
        generator(key),
        directions(evidence.sample),
        directions(reference),
        np.full(size, reference.ess / size),
        permutations=num_permutations(level / 4),
    )
    return tail_result(EXTREMES.name, compared, level, "the reference")


def tail_result(
    name: str, compared: TailComparison, level: float, against: str, remark: str = ""
) -> TestResult:
    """The result of a comparison of tails.

    Args:
        name: The name of the test.
        compared: What was found.
        level: The level.
        against: What the draws were compared with, in words.
        remark: What is said of a test that passes.
    """
    return TestResult.of_p_value(
        name,
        compared.p_value,
        level,
        failed=f"the tails are wrong: where {compared.where}, there are "
        f"{percent(compared.share)} of the draws, and {percent(compared.reference)} of "
        f"{against}",
        passed=f"share of the draws where {compared.where}{remark}",
        statistic=compared.share,
        reference=compared.reference,
    )


EXTREMES = StatisticalTest("extremes", frozenset({Need.REFERENCE}), _run)
