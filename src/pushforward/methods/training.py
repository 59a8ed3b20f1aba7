"""How long, on how many points and by which optimiser a network is trained."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray

from pushforward import _validate
from pushforward.mcmc.copies import divide, divides
from pushforward.mcmc.initialise import Initialisation, initialise
from pushforward.methods.clock import Clock
from pushforward.methods.optimisers import AbstractOptimiser, Adam, as_optimiser
from pushforward.targets.base import AbstractTarget, VarianceReduction
from pushforward.targets.preconditioner import Preconditioner

# A warm-up that is a share of the steps is never longer than this.
LONGEST_WARMUP = 500


class TrainConfig(eqx.Module):
    """What every method is told about its training.

    Attributes:
        steps: how many steps; `fit(steps=...)` replaces it.
        batch_size: how many points a step draws; `fit(batch_size=...)` replaces it.
        optimiser: one of ours, or any transformation of optax.
        averaging: the decay of the moving average of the weights, which is what is
            drawn from; 0 is no average.
        whiten: train in coordinates in which the target is about standard, found by a
            short exploration; otherwise in the target's own.
        particles: points in that exploration.
        coordinates: those to train in, instead of the ones that exploration finds;
            `fit(warm_start=...)` names those of a sampler.
    """

    steps: int = 4000
    batch_size: int = 256
    optimiser: AbstractOptimiser = eqx.field(converter=as_optimiser, default=Adam())
    averaging: float = 0.999
    whiten: bool = True
    particles: int = 2048
    coordinates: Preconditioner | None = None

    def __check_init__(self):
        _validate.whole_number("steps", self.steps)
        _validate.whole_number("batch_size", self.batch_size)
        _validate.share("averaging", self.averaging)
        _validate.flag("whiten", self.whiten)
        _validate.whole_number("particles", self.particles, 2)

    def initialise(self, key: PRNGKeyArray, target: AbstractTarget) -> Initialisation:
        """Coordinates for the target, and particles in them."""
        if self.whiten:
            found = initialise(key, target, particles=self.particles)
            return (
                found if self.coordinates is None else found.seen_in(self.coordinates)
            )
        copy, spent, dim = None, 0, target.dim
        if divides(target):
            one, spent = divide(jax.random.fold_in(key, 1), target)
            copy, dim = one.copy, one.dim
        plain = self.coordinates or Preconditioner.identity(dim)
        blank = jax.random.normal(key, (self.particles, dim))
        spent = jnp.asarray(spent, jnp.int32)
        return Initialisation(plain, blank, VarianceReduction(), spent, copy)


class SecondTraining(eqx.Module):
    """How the second network of an alternating method (score, critic) keeps up.

    Attributes:
        optimiser: one of ours, or any transformation of optax.
        steps: its steps for each of the sampler's.
        warmup: how many steps it trains alone at the start, at its full rate: a number
            of steps, or a share of them (of which at most 500 are made).
    """

    optimiser: AbstractOptimiser = eqx.field(
        converter=as_optimiser, default=Adam(1e-3, clip=10.0)
    )
    steps: int = 4
    warmup: int | float = 0.4

    def __check_init__(self):
        _validate.whole_number("steps of the second network", self.steps)
        if isinstance(self.warmup, int):
            _validate.whole_number("warmup", self.warmup, 0)
        else:
            _validate.share("warmup", self.warmup)

    def steps_alone(self, steps: int) -> int:
        """How many of so many steps it trains alone."""
        if isinstance(self.warmup, int):
            return min(self.warmup, steps)
        return min(int(self.warmup * steps), LONGEST_WARMUP)

    def is_alone(self, clock: Clock) -> Bool[Array, ""]:
        """Whether the second network still trains alone."""
        if isinstance(self.warmup, int):
            return clock.step < self.warmup
        share = jnp.floor(self.warmup * clock.total_steps.astype(jnp.float32))
        return clock.step < jnp.minimum(share, LONGEST_WARMUP).astype(jnp.int32)
