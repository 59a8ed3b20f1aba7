"""Resampling tests: how many replicates a level needs, and when fewer are enough."""

import math
from collections.abc import Iterable

import numpy as np


def num_permutations(level: float) -> int:
    """How many replicates a test of this level needs.

    With `B` replicates the smallest p-value is `1 / (1 + B)`. Here it is half of the
    level, so that one replicate may exceed the statistic of draws that are rejected.
    """
    return math.ceil(2 / level) - 1


def sequential_p_value(exceeds: Iterable[bool | np.bool_], enough: int = 20) -> float:
    """A p-value from replicates that are drawn one by one.

    After Besag and Clifford (1991): with `h = enough` replicates at least as large as
    the observed statistic, the last of them the l-th, `p = h / l` and no more are
    drawn; if that never happens, `p = (1 + exceeding) / (1 + replicates)`. Either way
    `P(p <= a) <= a` under the null hypothesis.

    Args:
        exceeds: For each replicate whether it is at least as large as the statistic.
        enough: How many of those are enough.
    """
    exceeding = drawn = 0
    for drawn, larger in enumerate(exceeds, start=1):
        exceeding += bool(larger)
        if exceeding == enough:
            return enough / drawn
    return (1 + exceeding) / (1 + drawn)
