"""The kernel Stein discrepancy of draws, which needs only the score of the target."""

import jax
import jax.numpy as jnp
import numpy as np

from pushforward.diagnostics.evaluation import MAX_OUTSIDE, log_densities, padded
from pushforward.diagnostics.ksd import ksd
from pushforward.diagnostics.permutations import num_permutations
from pushforward.diagnostics.results import Outcome, TestResult
from pushforward.diagnostics.tests.base import StatisticalTest

# A density ends abruptly where more than this share of steps of this length, in units
# of the interquartile range, lead out of its support.
_STEP, _ABRUPT = 0.05, 0.002


def _ends_abruptly(evidence, draws) -> bool:
    """Whether the density ends where it is not small.

    By parts, `E[s f + f'] = 0` needs a density that vanishes on the boundary of its
    support. Where it does not, exact draws have a discrepancy too.
    """
    if evidence.target.why_no_density() is not None:
        return False
    low, high = np.quantile(draws, [0.25, 0.75], axis=0)
    steps = np.random.default_rng(0).standard_normal(draws.shape)
    values = log_densities(evidence.target, draws + _STEP * (high - low) * steps)
    return bool(np.mean(np.isneginf(values)) > _ABRUPT)


def _evaluations(evidence) -> int:
    no_values = evidence.target.why_no_density() is not None
    return 0 if no_values else padded(len(evidence.sample.draws))


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
    if _ends_abruptly(evidence, sample.draws):
        return TestResult(
            STEIN_DISCREPANCY.name,
            Outcome.INCONCLUSIVE if far is None else Outcome.PASSED,
            "not made: the density ends abruptly, and there exact draws have a "
            "discrepancy too",
        )
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


STEIN_DISCREPANCY = StatisticalTest(
    "Stein discrepancy", frozenset(), _run, evaluations=_evaluations
)
