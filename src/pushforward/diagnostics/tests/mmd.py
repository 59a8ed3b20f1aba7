"""The maximum mean discrepancy between draws and reference."""

import jax.numpy as jnp
import numpy as np

from pushforward.diagnostics.mmd import mmd
from pushforward.diagnostics.permutations import num_permutations
from pushforward.diagnostics.results import TestResult
from pushforward.diagnostics.tests.base import Need, StatisticalTest


def _run(key, evidence, level):
    """A permutation test, in coordinates of equal spread."""
    scaler = evidence.reference.scaler
    parts = evidence.sample.draws, evidence.near, evidence.far.draws
    own, other, beside = (jnp.asarray(scaler(part), float) for part in parts)
    result = mmd(own, other, key=key, permutations=num_permutations(level))
    baseline = mmd(beside, other, bandwidth=result.bandwidth)
    return TestResult.of_p_value(
        MMD.name,
        float(np.asarray(result.p_value)),
        level,
        failed="the draws and the reference do not follow one law (MMD, squared)",
        passed="squared; 0 on average for exact draws",
        statistic=float(result.value),
        reference=float(baseline.value),
    )


MMD = StatisticalTest("MMD", frozenset({Need.REFERENCE}), _run)
