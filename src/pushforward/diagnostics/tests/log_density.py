"""The log densities of draws beside those of the reference."""

import numpy as np
from scipy import stats

from pushforward.diagnostics.results import TestResult
from pushforward.diagnostics.tests.base import Need, StatisticalTest


def _run(key, evidence, level):
    """Welch's test of the mean, and a rank test of the lowest log densities.

    If the k lowest of all log densities are those of draws, exact draws had a chance of
    `(n / (n + m))^k` to get there.
    """
    own, values = evidence.sample.log_densities, evidence.reference.log_densities
    n, m = len(own), evidence.reference.ess
    error = np.sqrt(np.var(own, ddof=1) / n + np.var(values, ddof=1) / m)
    gap = np.mean(own) - np.mean(values)
    by_mean = 2 * stats.norm.sf(abs(gap) / error) if error > 0 else 1.0
    below = int(np.sum(own < np.min(values)))
    by_rank = (n / (n + m)) ** below
    if by_rank < by_mean:
        failed = (
            f"{below} of {n} draws lie where the density is lower than at any of the "
            "reference draws"
        )
    else:
        side = "less" if gap < 0 else "more"
        failed = (
            f"the draws lie where the density is {side} than it should be: their mean "
            f"log density is off by {gap:+.3f} ± {error:.3f}"
        )
    return TestResult.of_p_value(
        LOG_DENSITY.name,
        float(min(1.0, 2 * min(by_mean, by_rank))),
        level,
        failed=failed,
        passed="mean log density",
        statistic=float(np.mean(own)),
        reference=float(np.mean(values)),
    )


LOG_DENSITY = StatisticalTest(
    "log density", frozenset({Need.REFERENCE, Need.LOG_DENSITY}), _run
)
