"""Importance weights: exact expectations, and the normaliser, from draws of a sampler.

A sampler made by change of variables knows the density p of its own draws. With weights
`w = q / p` their expectations are those of the target, however rough the sampler, and
the mean weight is the normaliser `Z`, the integral of q. That holds as long as p is
nowhere far too thin, which the largest weights tell: where they follow a Pareto law of
a shape k above .7, their means cannot be relied on (Vehtari et al., JMLR 2024).
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pushforward.errors import UsageError
from pushforward.sampler import Sampler
from pushforward.targets.arguments import as_key
from pushforward.targets.base import AbstractTarget

# Above this shape of their tail, means of weights converge too slowly to be of use.
RELIABLE = 0.7
# Fewer weights say nothing about their tail.
_LEAST = 100


@dataclasses.dataclass(frozen=True)
class Weighed:
    """Draws of a sampler with the weights that make them draws of the target.

    What the sampler never draws has no weight: a mode that it lacks is missing from all
    of these figures, and none of them tells.

    Attributes:
        draws: The draws, in the user's own tree.
        weights: A weight for each; their sum is 1.
        log_normaliser: log Z, the log of the integral of the un-normalised density.
        error: Its standard error.
        effective: How many independent draws of the target they are worth.
        tail: The shape k of the Pareto law of the largest weights.
    """

    draws: Any
    weights: Float[np.ndarray, " n"]
    log_normaliser: float
    error: float
    effective: float
    tail: float

    @property
    def reliable(self) -> bool:
        """Whether the tail of the weights is light enough."""
        return self.tail <= RELIABLE

    def __str__(self) -> str:
        n = len(self.weights)
        figures = (
            f"log Z = {self.log_normaliser:.5g} ± {self.error:.1g}, from {n:,} draws "
            f"whose weights make them worth {self.effective:,.0f}; tail of the "
            f"weights: k = {self.tail:.2f}"
        )
        if self.reliable:
            return (
                f"{figures}, light enough. A mode that the sampler lacks does not show "
                "in these figures."
            )
        return (
            f"{figures}, above {RELIABLE}: a few draws carry too much, so do not rely "
            "on these figures; use pushforward.refine, or train for more steps."
        )


def weigh(
    key: PRNGKeyArray, target: AbstractTarget, sampler: Sampler, n: int = 10_000
) -> Weighed:
    """Weighs `n` draws of a sampler by its target.

    Args:
        key: random key; the draws are those of `sampler.sample(key, n)`.
        target: a target with a log density; each draw costs one evaluation.
        sampler: one whose own density is known: of the default `fit` where it kept its
            KL stage, and of `methods.Transport`, both in more than one dimension; of
            `Flow` and `Gaussian`.
        n: how many draws.
    """
    key = as_key(key)
    if not target.has_values:
        raise UsageError(
            "weigh needs the values of a log density, and this target has only a "
            "score, or is seen through minibatches."
        )
    if not sampler.has_density:
        raise UsageError(
            "weigh needs a sampler whose own density is known, and this one adds noise "
            "or has a network that may fold; in more than one dimension train it with "
            "methods.Transport()."
        )
    if sampler.structure != target.structure:
        raise UsageError(
            "The sampler was trained for other parameters than the target has."
        )
    if n < _LEAST:
        raise UsageError(f"weigh needs at least {_LEAST} draws, and n is {n}.")

    def draw(sampler, key, block):
        return _draw_weighed(sampler, target, key, block)

    trees, parts = zip(*sampler.blocks(key, n, draw), strict=True)
    draws = jax.tree.map(lambda *leaves: np.concatenate(leaves), *trees)
    log_weights = np.concatenate(parts).astype(np.float64)
    if np.isnan(log_weights).any():
        raise UsageError(
            "The log density is not a number at "
            f"{int(np.isnan(log_weights).sum()):,} of {n:,} draws."
        )
    highest = log_weights.max()
    if highest == -np.inf:
        raise UsageError("The density is 0 at every draw of the sampler.")
    weights = np.exp(log_weights - highest)
    effective = float(weights.sum() ** 2 / (weights**2).sum())
    return Weighed(
        draws=draws,
        weights=weights / weights.sum(),
        log_normaliser=float(highest + np.log(weights.mean())),
        # The relative standard error of the mean weight.
        error=float(np.sqrt(max(1 / effective - 1 / n, 0.0))),
        effective=effective,
        tail=tail_shape(weights),
    )


@eqx.filter_jit
def _draw_weighed(
    sampler: Sampler, target: AbstractTarget, key: PRNGKeyArray, block: Int[Array, ""]
):
    key = jax.random.fold_in(key, block)
    x, log_p = sampler.block_with_log_density(key, sampler.block_size)
    # In pieces: a density may need much more memory than a draw.
    log_q = jax.lax.map(target.log_density, x, batch_size=1024)
    tree = jax.vmap(sampler.structure.unflatten)(x)
    return tree, jnp.asarray(log_q - log_p)


def tail_shape(weights: Float[np.ndarray, " n"]) -> float:
    """The shape k of the generalised Pareto law of the largest weights."""
    n = len(weights)
    count = int(min(n / 5, 3 * np.sqrt(n)))
    ordered = np.sort(weights)
    excess = ordered[-count:] - ordered[-count - 1]
    if ordered[-1] <= 1.001 * ordered[n // 2]:
        # All alike, up to rounding: no tail.
        return 0.0
    shape, _, _ = scipy.stats.genpareto.fit(excess / excess.mean(), floc=0)
    return float(shape)
