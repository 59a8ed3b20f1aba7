"""The sliced Wasserstein distance between draws and reference."""

import numpy as np

from pushforward.diagnostics.permutations import num_permutations
from pushforward.diagnostics.reference import generator
from pushforward.diagnostics.results import TestResult
from pushforward.diagnostics.tests.base import Need, StatisticalTest
from pushforward.diagnostics.two_sample import SlicedW2


def _run(key, evidence, level):
    """A permutation test, in coordinates of equal spread."""
    scaler = evidence.reference.scaler
    distance = SlicedW2(generator(key), evidence.sample.draws.shape[1])
    parts = evidence.sample.draws, evidence.near, evidence.far.draws
    own, other, beside = (scaler(part) for part in parts)
    result = distance.test(own, other, permutations=num_permutations(level))
    baseline = distance.null_mean(beside, other)
    ratio = result.statistic / baseline if baseline > 0 else np.inf
    return TestResult.of_p_value(
        SLICED_W2.name,
        result.p_value,
        level,
        failed=f"the draws are {ratio:.2f} times as far from the reference as it is "
        "from itself",
        passed=f"{ratio:.2f} times the distance of the reference from itself",
        statistic=result.statistic,
        reference=baseline,
    )


SLICED_W2 = StatisticalTest("sliced W2", frozenset({Need.REFERENCE}), _run)
