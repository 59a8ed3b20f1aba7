"""The noise that is added to draws, so that their score can be learnt by denoising."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward import _validate
from pushforward._precision import NETWORK_DTYPE
from pushforward.errors import UsageError
from pushforward.targets.base import AbstractTarget

Range = tuple[float, float]


class Noise(eqx.Module):
    """The noise rule: `x = x0 + sigma eps`.

    For a plain target `sigma` is `scale`, and the noise is part of what is drawn. For a
    target that knows the noise level every point has a level of its own, drawn
    log-uniformly, and the noise is no part of the draws.

    Attributes:
        scale: sigma, in the coordinates in which the target is about standard.
        antithetic: use `eps` and `-eps` both, at twice the cost: worth it where sigma
            is small.
        levels: the lowest and the highest level of score steps; None is the target's
            own range.
        sampler_levels: the same of sampler steps; None is that of score steps.
        power: the weight of a level: a gradient counts by this power of its sigma.
    """

    scale: float = 0.05
    antithetic: bool = True
    levels: Range | None = None
    sampler_levels: Range | None = None
    power: float = 2.0

    def __check_init__(self):
        if not 0 <= _validate.finite("The noise scale", self.scale) < 1:
            raise UsageError(
                "The noise scale must be at least 0 and less than 1, the width of the "
                f"whitened target, not {self.scale}."
            )
        _validate.flag("antithetic", self.antithetic)
        _validate.finite("power", self.power)
        for bounds in (self.levels, self.sampler_levels):
            if bounds is not None and not 0 < bounds[0] <= bounds[1]:
                raise UsageError(
                    "A range of noise levels must be two positive numbers in order, "
                    f"not {bounds}."
                )

    def resolve(self, target: AbstractTarget) -> "Noise":
        """The same rule with the levels of the target filled in."""
        if not target.has_noise_levels():
            if self.levels is not None or self.sampler_levels is not None:
                raise UsageError(
                    "levels= and sampler_levels= of the noise are for a score that "
                    f"depends on the noise level, which a {target.kind.__name__} has "
                    "not; give scale= instead."
                )
            return self
        score, sampler = self.ranges(target)
        return dataclasses.replace(self, levels=score, sampler_levels=sampler)

    def ranges(self, target: AbstractTarget) -> tuple[Range, Range]:
        """The levels of score steps and of sampler steps."""
        if not target.has_noise_levels():
            return (self.scale, self.scale), (self.scale, self.scale)
        score = self.levels or target.noise_range
        sampler = self.sampler_levels or score
        if not score[0] <= sampler[0] <= sampler[1] <= score[1]:
            raise UsageError(
                f"The noise levels of sampler steps, {sampler[0]} to {sampler[1]}, "
                f"must lie within those of score steps, {score[0]} to {score[1]}."
            )
        return score, sampler

    def draw(
        self, key: PRNGKeyArray, target: AbstractTarget, bounds: Range, n: int
    ) -> Float[Array, " {n}"]:
        """A level for each of `n` points."""
        if not target.has_noise_levels():
            return jnp.full(n, self.scale, NETWORK_DTYPE)
        return draw_levels(key, *bounds, n)

    @property
    def signs(self) -> tuple[float, ...]:
        """The signs with which each `eps` is used."""
        return (1.0, -1.0) if self.antithetic else (1.0,)


def draw_levels(
    key: PRNGKeyArray, low: float, high: float, n: int
) -> Float[Array, " {n}"]:
    """Levels from `low` to `high`, log-uniformly."""
    first, last = (jnp.log(jnp.asarray(x, NETWORK_DTYPE)) for x in (low, high))
    return jnp.exp(first + (last - first) * jax.random.uniform(key, (n,), first.dtype))
