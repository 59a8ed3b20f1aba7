"""What may have broken a training: what the last sampler's draws meet."""

import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward.sampler import Sampler
from pushforward.targets.base import AbstractTarget
from pushforward.targets.constraints import CONSTRAINT_HINT

_DRAWS = 1024
# In whitened coordinates, where the initialisation saw the target at 1 or so.
_FAR = 30.0


def explain_divergence(
    key: PRNGKeyArray, target: AbstractTarget, sampler: Sampler
) -> str | None:
    """What is wrong where the sampler draws, and what to do; None if nothing is."""
    draws = sampler.unconstrained().sample(key, _DRAWS)
    if not np.isfinite(draws).all():
        return "the sampler's own draws are not finite: lower the learning rate"
    if not target.has_noise_levels():
        found = _outside(target, draws) or _score(target, draws)
        if found is not None:
            return found
    whitened = np.asarray(jax.vmap(sampler.preconditioner.from_target)(draws))
    size = np.abs(whitened).max(axis=1)
    if np.median(size) > _FAR:
        typical = draws[int(np.argsort(size)[_DRAWS // 2])]
        return (
            f"the draws have run away, to such as {_point(target, typical)}: see "
            "whether the density falls fast enough to have a finite integral"
        )
    return None


def _outside(target: AbstractTarget, draws: Float[Array, "n d"]) -> str | None:
    if target.why_no_values() is not None:
        return None
    values = np.asarray(target.map(target.log_density, draws))
    outside = np.isneginf(values)
    if not outside.any():
        return None
    first = int(np.argmax(outside))
    return (
        f"the log density is -inf at {outside.mean():.1%} of the draws, such as "
        f"{_point(target, draws[first])}: if a parameter has bounds, give it "
        f"{CONSTRAINT_HINT}"
    )


def _score(target: AbstractTarget, draws: Float[Array, "n d"]) -> str | None:
    bad = ~np.isfinite(np.asarray(target.map(target.score, draws)))
    worst = int(np.argmax(bad.mean(axis=0)))
    if not bad[:, worst].any():
        return None
    first = draws[int(np.argmax(bad[:, worst]))]
    return (
        f"the score in coordinate {target.names[worst]!r} is not finite at "
        f"{bad[:, worst].mean():.1%} of the draws, such as {_point(target, first)}: "
        f"mend the density there or, if this is a bound, give it {CONSTRAINT_HINT}"
    )


def _point(target: AbstractTarget, x: Float[Array, " d"]) -> str:
    """A point by the names of its coordinates; a long one is cut short."""
    shown = [f"{n} = {v:.3g}" for n, v in zip(target.names[:4], x[:4], strict=False)]
    return ", ".join([*shown, "…"] if len(x) > 4 else shown)
