"""The tests of a verdict. A new one is a file here, and one line in `TESTS`."""

from pushforward.diagnostics.tests.base import Evidence, Need, StatisticalTest
from pushforward.diagnostics.tests.extremes import EXTREMES
from pushforward.diagnostics.tests.log_density import LOG_DENSITY
from pushforward.diagnostics.tests.marginals import MARGINALS
from pushforward.diagnostics.tests.mmd import MMD
from pushforward.diagnostics.tests.mode_weights import MODE_WEIGHTS
from pushforward.diagnostics.tests.moments import MOMENTS
from pushforward.diagnostics.tests.repeats import REPEATS
from pushforward.diagnostics.tests.sliced_w2 import SLICED_W2
from pushforward.diagnostics.tests.stationarity import STATIONARITY
from pushforward.diagnostics.tests.stein import STEIN_DISCREPANCY
from pushforward.diagnostics.tests.weighted_extremes import WEIGHTED_EXTREMES

TESTS: tuple[StatisticalTest, ...] = (
    STEIN_DISCREPANCY,
    STATIONARITY,
    LOG_DENSITY,
    MODE_WEIGHTS,
    SLICED_W2,
    MMD,
    MARGINALS,
    MOMENTS,
    EXTREMES,
    WEIGHTED_EXTREMES,
    REPEATS,
)

__all__ = ["TESTS", "Evidence", "Need", "StatisticalTest"]
