"""Whether draws stay where they are under MALA, which leaves the target unchanged."""

import jax
import numpy as np

from pushforward.diagnostics import stationarity as chain
from pushforward.diagnostics.results import Outcome, TestResult
from pushforward.diagnostics.tests.base import Need, StatisticalTest

# Twenty steps from each draw over more data than this take too long, unless the caller
# says how much may be spent.
_MAX_DATA = 10_000


def _run(key, evidence, level):
    """The mean log density before and after, with a kernel that the draws do not shape.

    The kernel is tuned on the reference; without one, on half of the draws, and the
    other half is tested.
    """
    target, sample, far = evidence.target, evidence.sample, evidence.far
    tune_key, *keys = jax.random.split(key, 3)
    rows = np.arange(len(sample.draws))
    if evidence.near is not None:
        points = evidence.near
    else:
        points, rows = sample.draws[::2], rows[1::2]
    kernel = chain.tune_mala(tune_key, target, points)

    def movement(key, draws, values):
        return chain.mala_movement(key, target, draws, values, kernel)

    own = movement(keys[0], sample.draws[rows], sample.log_densities[rows])
    reference, reference_p_value = None, None
    if far is not None:
        other = movement(keys[1], far.draws, far.log_densities)
        reference, reference_p_value = other.change, other.p_value
    change = f"the mean log density by {own.change:+.3f} ± {own.error:.3f}"
    result = TestResult.of_p_value(
        STATIONARITY.name,
        own.p_value,
        level,
        failed=f"{chain.MALA_STEPS} MALA steps change {change}: the draws do not "
        f"follow the target yet ({own.chain})",
        passed=f"change of the mean log density over {chain.MALA_STEPS} MALA steps "
        f"({own.chain})",
        statistic=own.change,
        reference=reference,
        reference_p_value=reference_p_value,
    )
    if result.outcome is Outcome.PASSED and not own.is_informative:
        return TestResult(
            STATIONARITY.name,
            Outcome.INCONCLUSIVE,
            f"{chain.MALA_STEPS} MALA steps hardly move the draws ({own.chain}), so "
            "they cannot show whether the draws stand still",
            statistic=own.change,
            reference=reference,
            p_value=own.p_value,
            level=level,
        )
    return result


def _skip(evidence):
    terms = evidence.target.num_terms
    if terms <= _MAX_DATA or evidence.bounded:
        return None
    return TestResult(
        STATIONARITY.name,
        Outcome.INCONCLUSIVE,
        f"not tested: MALA on {terms:,} observations is too slow; say with "
        "max_evaluations= what it may cost",
    )


def _evaluations(evidence):
    cost = chain.tuning_evaluations() + chain.mala_evaluations(
        len(evidence.sample.draws)
    )
    if evidence.far is not None:
        cost += chain.mala_evaluations(len(evidence.far.draws))
    return cost


STATIONARITY = StatisticalTest(
    "stationarity", frozenset({Need.LOG_DENSITY}), _run, _skip, _evaluations
)
