"""The noise levels at which the score network and the sampler are trained."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward._precision import NETWORK_DTYPE
from pushforward.errors import UsageError
from pushforward.targets.base import AbstractTarget

# The bounds of the levels: of score steps, and of sampler steps.
BOUNDS = ("sigma_min", "sigma_max", "sampler_sigma_min", "sampler_sigma_max")


def choose_bounds(
    target: AbstractTarget, given: dict[str, float | None], noise: float
) -> dict[str, float]:
    """The bounds of the levels, where they are not given.

    Those of the target for the score steps, those of the score steps for the sampler's.
    A target that knows no levels has one, `noise`, and there is nothing to choose.
    """
    if target.sigma_range is None:
        return dict.fromkeys(BOUNDS, noise)
    chosen = dict(zip(BOUNDS[:2], target.sigma_range, strict=True))
    chosen |= {k: v for k in BOUNDS[:2] if (v := given[k]) is not None}
    chosen |= {f"sampler_{k}": v for k, v in chosen.items()}
    chosen |= {k: v for k in BOUNDS[2:] if (v := given[k]) is not None}
    low, high, first, last = (chosen[name] for name in BOUNDS)
    if not 0 < low <= first <= last <= high:
        raise UsageError(
            f"The noise levels of sampler steps, {first} to {last}, must lie in "
            f"order and within those of score steps, {low} to {high}."
        )
    return chosen


def draw_levels(
    key: PRNGKeyArray, low: float, high: float, n: int
) -> Float[Array, " {n}"]:
    """Levels from `low` to `high`, log-uniformly."""
    first, last = (jnp.log(jnp.asarray(x, NETWORK_DTYPE)) for x in (low, high))
    return jnp.exp(first + (last - first) * jax.random.uniform(key, (n,), first.dtype))
