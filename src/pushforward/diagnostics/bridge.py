"""Bridge sampling: the normaliser from draws of a sampler and draws of the target.

With `delta = log q - log p` at n draws of the sampler p and m draws of the target, log
Z is the number c for which the best classifier between the two, the logistic function
of `delta - c + log(m / n)`, gives both the same weight (Bennett, 1976; Meng and Wong,
1996). It is far less sensitive to the tails of p than the mean of importance weights:
both sets of draws need only overlap.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy import optimize, special

from pushforward.diagnostics.arguments import MIN_DRAWS, require_same_parameters
from pushforward.errors import UsageError
from pushforward.sampler import Sampler
from pushforward.targets.arguments import as_target, one_key
from pushforward.targets.base import AbstractTarget


@dataclasses.dataclass(frozen=True)
class Bridge:
    """The normaliser by bridge sampling.

    Attributes:
        log_normaliser: log Z, the log of the integral of the un-normalised density.
        log_normaliser_se: Its standard error, where the draws of the target are
            independent of each other.
        overlap: 1 where both distributions are the same, 0 where they do not meet.
    """

    log_normaliser: float
    log_normaliser_se: float
    overlap: float


def bridge(
    key: PRNGKeyArray, target: AbstractTarget, sampler: Sampler, draws: Any
) -> Bridge:
    """Log Z by bridge sampling between a sampler and draws of its target.

    Args:
        key: Random key; as many draws of the sampler are made.
        target: A target with a log density.
        sampler: One whose own density is known.
        draws: Independent draws of the target, in the user's own tree: of
            `pushforward.refine(..., proposal=sampler)`, or of another chain for each.

    Raises:
        UsageError: The target has no density, the sampler's own density is not known,
            or there are fewer than 100 draws.
    """
    key, target = one_key(key), as_target(target)
    target.require_values("bridge")
    if not sampler.has_density:
        raise UsageError(
            "bridge needs a sampler whose own density is known, and this one adds "
            "noise or has a network that may fold; train it with methods.Transport()."
        )
    require_same_parameters(sampler, target)
    flat = target.structure.flatten_draws(draws)
    if len(flat) < MIN_DRAWS:
        raise UsageError(
            f"bridge needs at least {MIN_DRAWS} draws of the target, and got "
            f"{len(flat)}."
        )
    at_draws, at_target = jax.device_get(_ratios(key, target, sampler, flat))
    return bridge_of(np.asarray(at_draws), np.asarray(at_target))


def bridge_of(
    at_draws: Float[np.ndarray, " n"], at_target: Float[np.ndarray, " m"]
) -> Bridge:
    """The same from `log q - log p` at draws of p and at draws of the target."""
    d, q = (np.asarray(part, np.float64) for part in (at_draws, at_target))
    # Without a density of the target there is no weight; without one of the sampler
    # all of it.
    d = np.where(np.isnan(d), -np.inf, d)
    q = np.where(np.isnan(q), np.inf, q)
    shift = np.log(len(q) / len(d))

    def surplus(c):
        first = special.expit(d - c + shift).sum()
        return first - special.expit(c - q - shift).sum()

    known = np.concatenate([d, q])
    known = known[np.isfinite(known)]
    if not known.size:
        raise UsageError("The density is 0 at every draw of the sampler.")
    # Far to the left all draws look like the target's, far to the right none.
    width = 50 + abs(shift)
    low, high = known.min() - width, known.max() + width
    if not surplus(low) > 0 > surplus(high):
        raise UsageError(
            "The sampler and the draws of the target do not meet anywhere, so that "
            "there is no bridge between them; train for more steps."
        )
    root: Any = optimize.brentq(surplus, low, high, xtol=1e-10)
    c = float(root)
    parts = special.expit(d - c + shift), special.expit(c - q - shift)
    relative = [part.var() / (len(part) * part.mean() ** 2) for part in parts]
    return Bridge(c, float(np.sqrt(sum(relative))), _overlap(parts, d, q))


def _overlap(parts, d, q) -> float:
    """The share of wrong guesses of the best classifier, of that of a coin."""
    share = len(q) / (len(d) + len(q))
    wrong = parts[0].sum() + parts[1].sum()
    coin = 2 * share * (1 - share) * (len(d) + len(q))
    return float(min(wrong / coin, 1.0))


@eqx.filter_jit
def _ratios(
    key: PRNGKeyArray,
    target: AbstractTarget,
    sampler: Sampler,
    flat: Float[Array, "n d"],
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    ours = sampler.unconstrained()
    x, log_p = ours.sample_and_log_prob(key, flat.shape[0])
    log_q = jax.lax.map(target.log_density, x, batch_size=1024)
    at = jax.lax.map(target.log_density, flat, batch_size=1024)
    return jnp.asarray(log_q - log_p), jnp.asarray(at - ours.log_prob(flat))
