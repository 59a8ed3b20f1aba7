"""The kernel Stein discrepancy of draws, which needs only the score of the target."""

import jax
import jax.numpy as jnp
import numpy as np

from pushforward.diagnostics.evaluation import MAX_OUTSIDE
from pushforward.diagnostics.ksd import ksd
from pushforward.diagnostics.permutations import num_permutations
from pushforward.diagnostics.results import Outcome, TestResult
from pushforward.diagnostics.tests.base import StatisticalTest


def _run(key, evidence, level):
    """The discrepancy in units of the target's own length scale.

    That is one over the median |score| of each coordinate (times .67, so that it is one
    for a standard Gaussian): the width of a mode and not the distance between modes.
    """
    sample = evidence.sample.scored
    total = len(evidence.sample.draws)
    unscored = total - len(sample.draws)
    if unscored > MAX_OUTSIDE * total:
        # The others alone do not follow the target, however exact all of them are.
        return TestResult(
            STEIN_DISCREPANCY.name,
            Outcome.INCONCLUSIVE,
            f"at {unscored:,} of {total:,} draws the score is not finite, so that they "
            "cannot be compared with it",
        )
    far = None if evidence.far is None else evidence.far.scored
    scaled_by = sample if far is None else far
    size = np.median(np.abs(scaled_by.scores), axis=0) / 0.6745
    scale = 1 / np.where(size > 0, size, 1.0)
    centre = np.median(scaled_by.noisy, axis=0)

    def discrepancy(key, part):
        points = jnp.asarray((part.noisy - centre) / scale, float)
        slopes = jnp.asarray(part.scores * scale, float)
        result = ksd(points, slopes, key=key, bootstraps=num_permutations(level))
        return float(result.u), float(np.asarray(result.p_value))

    keys = jax.random.split(key)
    u, p_value = discrepancy(keys[0], sample)
    reference, reference_p_value = None, None
    if far is not None:
        reference, reference_p_value = discrepancy(keys[1], far)
    return TestResult.of_p_value(
        STEIN_DISCREPANCY.name,
        p_value,
        level,
        failed="the draws do not fit the score of the target (KSD, U-statistic)",
        passed="U-statistic; 0 on average for exact draws",
        statistic=u,
        reference=reference,
        reference_p_value=reference_p_value,
    )


STEIN_DISCREPANCY = StatisticalTest("Stein discrepancy", frozenset(), _run)
