"""The tails of draws beside those that the sampler's importance weights give them."""

import jax
import numpy as np

from pushforward.diagnostics.arguments import MIN_DRAWS
from pushforward.diagnostics.evaluation import log_densities, own_log_densities, padded
from pushforward.diagnostics.extremes import Directions, compare_extremes
from pushforward.diagnostics.permutations import num_permutations
from pushforward.diagnostics.reference import generator
from pushforward.diagnostics.results import Outcome, TestResult
from pushforward.diagnostics.tests.base import Need, StatisticalTest
from pushforward.diagnostics.tests.extremes import tail_result
from pushforward.diagnostics.two_sample import RobustScaler
from pushforward.diagnostics.weights import pareto_smoothed

# Fresh draws for each draw that is judged.
_FACTOR = 4


def _run(key, evidence, level):
    """Fresh draws of the sampler, weighted, are a reference without MCMC.

    They know nothing of what the sampler never draws, and are worth `1 / sum(w^2)`
    independent draws, `w` being smoothed weights whose sum is one. Of an exact sampler
    all weights are equal, and the test compares it with itself.
    """
    target, sampler, sample = evidence.target, evidence.sampler, evidence.sample
    draw_key, host_key = jax.random.split(key)
    drawn = sampler.sample(draw_key, _FACTOR * len(sample.draws))
    drawn = np.asarray(drawn, np.float64)
    drawn = drawn[np.isfinite(drawn).all(axis=1)]
    if len(drawn) < MIN_DRAWS:
        return _too_few(drawn)
    values, own = log_densities(target, drawn), own_log_densities(sampler, drawn)
    weighed = np.isfinite(values) & np.isfinite(own)
    drawn, values, own = drawn[weighed], values[weighed], own[weighed]
    if len(drawn) < MIN_DRAWS:
        return _too_few(drawn)
    log_weights = values - own
    weights, pareto_k = pareto_smoothed(log_weights - np.max(log_weights))
    weights = weights / np.sum(weights)
    worth = float(1 / np.sum(np.square(weights)))
    reference = evidence.reference
    scaler = RobustScaler.of(drawn) if reference is None else reference.scaler

    def directions(draws, values, own):
        further = {"the log density": values, "the log density of the sampler": own}
        return Directions.of(scaler, target.names, draws, further)

    compared = compare_extremes(
        generator(host_key),
        directions(
            sample.draws, sample.log_densities, own_log_densities(sampler, sample.draws)
        ),
        directions(drawn, values, own),
        weights * worth,
        permutations=num_permutations(level / 4),
    )
    of = f"weighted draws (worth {worth:,.0f} exact ones, Pareto k {pareto_k:.2f})"
    return tail_result(
        WEIGHTED_EXTREMES.name, compared, level, of, remark=f"; beside {of}"
    )


def _too_few(drawn):
    return TestResult(
        WEIGHTED_EXTREMES.name,
        Outcome.INCONCLUSIVE,
        f"only {len(drawn)} fresh draws of the sampler have a weight",
    )


WEIGHTED_EXTREMES = StatisticalTest(
    "weighted extremes",
    frozenset({Need.LOG_DENSITY, Need.SAMPLER_DENSITY}),
    _run,
    evaluations=lambda evidence: padded(_FACTOR * len(evidence.sample.draws)),
)
