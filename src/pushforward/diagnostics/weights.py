"""Importance weights: exact expectations, and the normaliser, from draws of a sampler.

A sampler made by change of variables knows the density p of its own draws. With weights
`w = q / p` their expectations are those of the target, however rough the sampler, and
the mean weight is the normaliser `Z`, the integral of q. The largest weights are
replaced by quantiles of a generalised Pareto law that is fitted to them
(Pareto-smoothed importance sampling; Vehtari et al., JMLR 2024). Its shape k
says whether p is somewhere far too thin: above `min(1 - 1 / log10(n), .7)` the means of
n weights cannot be relied on.
"""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.diagnostics import psis_weights
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward._validate import whole_number
from pushforward.diagnostics.arguments import as_sampler, require_same_parameters
from pushforward.errors import UsageError
from pushforward.sampler import MOST, Sampler
from pushforward.targets.arguments import as_target, one_key
from pushforward.targets.base import AbstractTarget

# The threshold of k for many weights.
_MAX_PARETO_K = 0.7
# Fewer weights say nothing about their tail.
_MIN_DRAWS = 100


@dataclasses.dataclass(frozen=True, repr=False)
class ImportanceSample:
    """Draws of a sampler with the weights that make them draws of the target.

    What the sampler never draws has no weight: a mode that it lacks is missing from all
    of these figures, and none of them shows it.

    Attributes:
        draws: The draws, in the user's own tree.
        weights: A Pareto-smoothed weight for each; their sum is 1.
        log_normaliser: log Z, the log of the integral of the un-normalised density.
        log_normaliser_se: Its standard error.
        ess: The effective sample size: how many independent draws of the target the
            weighted draws are worth.
        pareto_k: The shape k of the Pareto law of the largest weights.
        undefined: At how many draws the log density is NaN or +inf. The density counts
            as zero there.
    """

    draws: Any
    weights: Float[np.ndarray, " n"]
    log_normaliser: float
    log_normaliser_se: float
    ess: float
    pareto_k: float
    undefined: int = 0

    @property
    def max_pareto_k(self) -> float:
        """The threshold of k for this number of draws."""
        return max_pareto_k(len(self.weights))

    @property
    def reliable(self) -> bool:
        """Whether the tail of the weights is light enough."""
        return self.pareto_k <= self.max_pareto_k

    def __repr__(self) -> str:
        n = len(self.weights)
        figures = (
            f"ImportanceSample of {n:,} draws, worth {self.ess:,.0f}:\n"
            f"  log Z = {self.log_normaliser:.5g} ± {self.log_normaliser_se:.1g}\n"
            f"  Pareto k = {self.pareto_k:.2f}"
        )
        if self.undefined:
            figures = (
                f"At {self.undefined:,} draws the log density is not a number or +inf; "
                f"they have no weight.\n{figures}"
            )
        if self.reliable:
            return (
                f"{figures}, at most {self.max_pareto_k:.2f}: "
                "the weights are reliable\n"
                "  (a mode that the sampler lacks does not show in these figures)"
            )
        return (
            f"{figures}, above {self.max_pareto_k:.2f}: a few draws carry too much\n"
            "  weight. Do not rely on these figures; use pushforward.refine, or train "
            "for more steps."
        )


def max_pareto_k(n: int) -> float:
    """The shape k above which the means of n weights cannot be relied on."""
    return min(1 - 1 / math.log10(n), _MAX_PARETO_K)


def weigh(
    key: PRNGKeyArray, target: AbstractTarget, sampler: Sampler, n: int = 10_000
) -> ImportanceSample:
    """Weighs `n` draws of a sampler by its target.

    Args:
        key: Random key; the draws are those of `sampler.sample(key, n)`.
        target: A target with a log density; each draw costs one evaluation.
        sampler: One whose own density is known: of the default `fit`, of
            `methods.Transport`, `Flow` and `Gaussian`.
        n: How many draws.

    Returns:
        The draws with their weights, the normaliser, and how far to trust both. A draw
        whose log density is NaN or +inf has no weight, and is counted.

    Raises:
        UsageError: The target has no density, the sampler's own density is not known,
            or the two do not fit together.
    """
    key, target, sampler = one_key(key), as_target(target), as_sampler(sampler)
    n = whole_number("n", n, least=_MIN_DRAWS, most=MOST)
    target.require_values("weigh")
    if (reason := sampler.why_no_average) is not None:
        raise UsageError(
            f"weigh needs a sampler whose own density is known, and this one {reason}: "
            "weights by the density of one copy would be wrong by an unknown factor."
        )
    if not sampler.has_density:
        raise UsageError(
            "weigh needs a sampler whose own density is known, and this one adds noise "
            "or has a network that may fold; train it with methods.Transport()."
        )
    require_same_parameters(sampler, target)

    draws, parts = jax.device_get(_draw_weighed(sampler, target, key, n))
    log_weights = np.asarray(parts, np.float64)
    undefined = np.isnan(log_weights) | np.isposinf(log_weights)
    if undefined.all():
        raise UsageError(
            "The log density is not a number at "
            f"{int(undefined.sum()):,} of {n:,} draws."
        )
    log_weights = np.where(undefined, -np.inf, log_weights)
    highest = log_weights.max()
    if highest == -np.inf:
        raise UsageError("The density is 0 at every draw of the sampler.")
    weights, pareto_k = pareto_smoothed(log_weights - highest)
    total = weights.sum()
    ess = float(total**2 / np.square(weights).sum())
    return ImportanceSample(
        draws=draws,
        weights=weights / total,
        log_normaliser=float(highest + np.log(total / n)),
        # The relative standard error of the mean weight.
        log_normaliser_se=float(np.sqrt(max(1 / ess - 1 / n, 0.0))),
        ess=ess,
        pareto_k=pareto_k,
        undefined=int(undefined.sum()),
    )


def pareto_smoothed(
    log_weights: Float[np.ndarray, " n"],
) -> tuple[Float[np.ndarray, " n"], float]:
    """Pareto-smoothed weights, of which the largest was 1, and the shape k."""
    if np.median(log_weights) > -1e-2:
        # The largest is within one percent of the median. A shape fitted to what
        # exceeds it would be that of rounding errors.
        return np.exp(log_weights), 0.0
    n = len(log_weights)
    tail = min(max(int(3 * np.sqrt(n)), 5), n // 5)
    order = np.argsort(log_weights)
    if log_weights[order[n - tail - 1]] == -np.inf:
        # Fewer weights than a tail has, beside those that are 0.
        return np.exp(log_weights), math.inf
    # BlackJAX mixes types, which a program in strict mode refuses.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        smoothed, pareto_k = psis_weights(jnp.asarray(log_weights, float))
    # The sum of those returned is 1. The largest below the tail was not changed.
    below = order[n - tail - 1]
    smoothed = np.asarray(smoothed, np.float64)
    smoothed = smoothed - smoothed[below] + log_weights[below]
    return np.exp(smoothed), float(pareto_k)


@eqx.filter_jit
def _draw_weighed(
    sampler: Sampler, target: AbstractTarget, key: PRNGKeyArray, n: int
) -> tuple[Any, Float[Array, " n"]]:
    x, log_p = sampler.unconstrained().sample_and_log_prob(key, n)
    # In pieces: a density may need much more memory than a draw.
    log_q = jax.lax.map(target.log_density, x, batch_size=1024)
    tree = jax.vmap(sampler.structure.unflatten)(x)
    return tree, jnp.asarray(log_q - log_p)
