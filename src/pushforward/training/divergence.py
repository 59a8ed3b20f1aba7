"""What a training ended with, or may have broken it: what the last draws meet."""

import dataclasses

import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward.diagnostics.evaluation import log_densities, padded
from pushforward.sampler import Sampler
from pushforward.targets.base import AbstractTarget
from pushforward.targets.constraints import CONSTRAINT_HINT

_DRAWS = 1024
# In whitened coordinates, where the initialisation saw the target at 1 or so.
_FAR = 30.0
# Draws of a trained sampler that are looked at: all at once with a density, and without
# one only for whether they are finite.
_LAST, _FEW = 2048, 256


@dataclasses.dataclass(frozen=True)
class LastDraws:
    """What was seen at fresh draws of a trained sampler.

    Attributes:
        count: how many there were.
        nonfinite: how many of them are not finite.
        outside: the share of them at which the log density is not finite; None where
            it was not computed.
        evaluations: how many evaluations of the target that took.
    """

    count: int
    nonfinite: int
    outside: float | None
    evaluations: int

    @property
    def sentence(self) -> str:
        """What is wrong where draws are not finite, and what to do, as a clause."""
        return (
            f"{self.nonfinite:,} of {self.count:,} draws of the sampler are not "
            "finite; check whether the density falls where they go, or train with "
            "another key or method"
        )


def evaluations_of_last_draws(target: AbstractTarget) -> int:
    """How often `last_draws` evaluates the target."""
    return padded(_LAST) if _is_cheap(target) else 0


def _is_cheap(target: AbstractTarget) -> bool:
    """Whether it has values, none of which is a sum over data."""
    return target.why_no_values() is None and target.num_terms == 1


def last_draws(
    key: PRNGKeyArray, target: AbstractTarget, sampler: Sampler
) -> LastDraws:
    """Looks at fresh draws of a trained sampler, and at the density of each.

    The density is left alone where one value is a sum over data.
    """
    dense = _is_cheap(target)
    count = _LAST if dense else _FEW
    draws = np.asarray(sampler.unconstrained().sample(key, count))
    nonfinite = int(np.sum(~np.isfinite(draws).all(axis=1)))
    if not dense:
        return LastDraws(count, nonfinite, None, 0)
    outside = float(np.mean(~np.isfinite(log_densities(target, draws))))
    return LastDraws(count, nonfinite, outside, evaluations_of_last_draws(target))


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
    whitened = np.asarray(jax.vmap(sampler.coordinates)(draws))
    size = np.abs(whitened).max(axis=1)
    if np.median(size) > _FAR:
        typical = draws[int(np.argsort(size)[_DRAWS // 2])]
        return (
            f"the draws have run away, to points such as {_point(target, typical)}: "
            "check whether the density falls fast enough to have a finite integral"
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
