"""The recipe that works untouched: what `fit` runs when no method is named.

1. Look at the target and whiten it (`whitening.look`).
2. Reverse KL, the robust objective: with the exact entropy (`Transport`); where the
   target is a score that knows noise levels, through a score network (`KL`).
3. Done, where the KSD U-statistic of fresh draws is not two standard errors above 0,
   the mean of exact draws: DFT could win little that step 5 would see.
4. DFT from the same sampler.
5. DFT's result replaces KL's only if, on fresh draws used for nothing else, no part of
   the target loses weight significantly and the KSD U-statistic falls by more than two
   standard errors.

Both decisions are recorded in the history.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from pushforward.errors import UsageError
from pushforward.methods.alternating import AlternatingState
from pushforward.methods.base import (
    AUTO,
    AbstractMethod,
    AutoInt,
    AutoStr,
    fill_in,
    replace,
)
from pushforward.methods.dft import DFT
from pushforward.methods.judging import draw, length_scale, lost_weight, u_statistics
from pushforward.methods.kl import KL
from pushforward.methods.transport import Transport
from pushforward.sampler import Sampler
from pushforward.targets.base import AbstractTarget
from pushforward.whitening import ANNEALED_DIM, Look


class Recipe(AbstractMethod):
    """Whiten, KL, then DFT where fresh draws say it is better.

    `first` names the KL stage: "transport" (exact entropy), "kl" (a learned score, from
    the normal) or "kl_mixture" (a learned score, from the particles of the first look).
    """

    steps: AutoInt = AUTO
    batch_size: AutoInt = AUTO
    width: AutoInt = AUTO
    first: AutoStr = AUTO

    @property
    def evaluations(self) -> int:
        return self.stages()[0].evaluations

    def resolve(self, target: AbstractTarget, platform: str) -> "Recipe":
        # Where a score knows noise levels, a look that knows modes is where to start.
        implicit = "kl_mixture" if target.dim <= ANNEALED_DIM else "kl"
        chosen = implicit if target.is_noise_conditional else "transport"
        first = self.first or chosen
        if first not in _FIRST:
            known = ", ".join(_FIRST)
            raise UsageError(f"The recipe's first is one of {known}, not {first!r}.")
        stage = _FIRST[first](batch_size=self.batch_size, width=self.width)
        stage = stage.resolve(target, platform)
        return fill_in(
            self,
            {
                # A tenth more, for DFT, and one for each decision.
                "steps": stage.steps * 10 // 9 + 2,
                "batch_size": stage.batch_size,
                "width": stage.width,
                "first": first,
            },
        )

    def stages(self) -> tuple[AbstractMethod, ...]:
        polish = self.steps // 10
        main = max(self.steps - polish - 2, 1)
        first = _FIRST[self.first](
            steps=main, batch_size=self.batch_size, width=self.width
        )
        trial = DFT(
            batch_size=max(self.batch_size // 2, 1),
            width=self.width,
            noise_scale=0.02,
            learning_rate=1e-4,
            score_learning_rate=2e-3,
            score_warmup=polish // 2,
        )
        # The number of steps is not part of what is compiled.
        before = replace(first, steps=None)
        polished = Polish(before=before, trial=trial, steps=polish)
        chosen = Choose(before=replace(polished, steps=None))
        return first, Screen(before=before), polished, chosen

    def init(self, key, target, steps, previous=None):
        return self.stages()[0].init(key, target, steps)

    def step(self, key, target, state):
        return self.stages()[0].step(key, target, state)

    def sampler(self, target, state) -> Sampler:
        return self.stages()[0].sampler(target, state)


_FIRST = {
    "transport": Transport,
    "kl": KL,
    "kl_mixture": functools.partial(KL, shape="mixture"),
}


class ScreenState(eqx.Module):
    """Where the first stage stopped, and whether its draws leave something to win."""

    first: Any
    wanting: Bool[Array, ""]

    @property
    def look(self) -> Look:
        """The first look."""
        return self.first.look


class Screen(AbstractMethod):
    """Asks fresh draws of the first stage whether DFT has anything to win."""

    before: AbstractMethod
    steps: AutoInt = 1
    batch_size: AutoInt = 1024
    sets: int = 16

    @property
    def evaluations(self) -> int:
        return self.sets * self.batch_size

    def resolve(self, target: AbstractTarget, platform: str) -> "Screen":
        before = replace(self.before.resolve(target, platform), steps=None)
        return replace(self, before=before)

    def stages(self) -> tuple[AbstractMethod, ...]:
        return (self,)

    def init(self, key, target, steps, previous=None) -> ScreenState:
        return ScreenState(previous, jnp.ones((), bool))

    def step(self, key, target, state):
        sampler = self.sampler(target, state)
        x, s = draw(key, target, state.look, sampler, self.sets, self.batch_size)
        u = u_statistics(x, s, length_scale(s))
        mean, error = jnp.mean(u), jnp.std(u) / self.sets**0.5
        # Not a number is no reason to stop.
        wanting = ~(mean <= 2 * error)
        info = {
            "ksd_kl": mean,
            "ksd_kl_error": error,
            "dft_tried": wanting.astype(jnp.float32),
        }
        return ScreenState(state.first, wanting), info

    def settled(self, state) -> Bool[Array, ""]:
        return ~state.wanting

    def sampler(self, target, state) -> Sampler:
        return self.before.sampler(target, state.first)


class PolishState(eqx.Module):
    """The first stage's sampler, kept, and the one in training."""

    kept: Sampler
    trial: AlternatingState
    # Of many seeds, one that has nothing to win waits for the others.
    wanting: Bool[Array, ""]

    @property
    def look(self) -> Look:
        """The first look, which both share."""
        return self.trial.look


class Polish(AbstractMethod):
    """DFT from where the first stage stopped, whose sampler is kept aside."""

    before: AbstractMethod
    trial: DFT
    steps: AutoInt = AUTO
    batch_size: AutoInt = AUTO

    @property
    def evaluations(self) -> int:
        return self.trial.evaluations

    @property
    def minibatches(self) -> int:
        return self.trial.minibatches

    def resolve(self, target: AbstractTarget, platform: str) -> "Polish":
        trial = replace(self.trial.resolve(target, platform), steps=None)
        before = replace(self.before.resolve(target, platform), steps=None)
        return replace(self, trial=trial, before=before)

    def stages(self) -> tuple[AbstractMethod, ...]:
        return (self,)

    def init(self, key, target, steps, previous: Any = None) -> PolishState:
        kept = self.before.sampler(target, previous.first)
        trial = self.trial.init(key, target, steps, previous.first)
        return PolishState(kept, trial, previous.wanting)

    def step(self, key, target, state):
        trial, info = self.trial.step(key, target, state.trial)
        return PolishState(state.kept, trial, state.wanting), info

    def sampler(self, target, state) -> Sampler:
        # Not yet chosen: the safe one.
        return state.kept


class ChooseState(eqx.Module):
    """Two samplers and which of them is the better, once that is known."""

    kept: Sampler
    trial: Sampler
    look: Look
    wanting: Bool[Array, ""]
    take_trial: Bool[Array, ""]


class Choose(AbstractMethod):
    """Decides between two samplers on fresh draws used for nothing else."""

    before: Polish
    steps: AutoInt = 1
    batch_size: AutoInt = 1024
    sets: int = 16

    @property
    def evaluations(self) -> int:
        return 2 * self.sets * self.batch_size

    def resolve(self, target: AbstractTarget, platform: str) -> "Choose":
        return replace(self, before=self.before.resolve(target, platform))

    def stages(self) -> tuple[AbstractMethod, ...]:
        return (self,)

    def init(self, key, target, steps, previous: Any = None) -> ChooseState:
        trial = self.before.trial.sampler(target, previous.trial)
        return ChooseState(
            previous.kept, trial, previous.look, previous.wanting, jnp.zeros((), bool)
        )

    def step(self, key, target, state):
        draw_key, mixture_key = jax.random.split(key)
        # Both samplers have one structure: stacked, they are one program.
        pair = jax.tree.map(lambda a, b: jnp.stack([a, b]), state.kept, state.trial)
        x, s = jax.lax.map(
            lambda both: draw(
                both[0], target, state.look, both[1], self.sets, self.batch_size
            ),
            (jax.random.split(draw_key), pair),
        )
        # One unit for both.
        scale = length_scale(s)
        u_kept, u_trial = jax.lax.map(
            lambda both: u_statistics(both[0], both[1], scale), (x, s)
        )
        kept, trial = x
        gain = u_kept - u_trial
        mean = jnp.mean(gain)
        error = jnp.std(gain) / self.sets**0.5
        lost = lost_weight(
            mixture_key,
            state.look.particles,
            kept.reshape(-1, target.dim),
            trial.reshape(-1, target.dim),
        )
        take = (mean > 2 * error) & (lost < 4.0) & jnp.all(jnp.isfinite(trial))
        take = take & state.wanting
        new = eqx.tree_at(lambda s: s.take_trial, state, take)
        info = {
            "ksd_kl": jnp.mean(u_kept),
            "ksd_dft": jnp.mean(u_trial),
            "ksd_gain_error": error,
            "lost_weight_z": lost,
            "dft_chosen": take.astype(jnp.float32),
        }
        return new, info

    def sampler(self, target, state) -> Sampler:
        return jax.tree.map(
            lambda a, b: jnp.where(state.take_trial, b, a), state.kept, state.trial
        )
