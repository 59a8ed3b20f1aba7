"""The recipe that works untouched: what `fit` runs when no method is named.

1. Look at the target and whiten it (`whitening.look`).
2. Reverse KL, the robust objective: with the exact entropy (`Transport`); where the
   target is a score that knows noise levels, through a score network (`KL`).
3. DFT from the same sampler.
4. DFT's result replaces KL's only if, on fresh draws used for nothing else, no part of
   the target loses weight significantly and the KSD U-statistic falls by more than two
   standard errors. The decision is recorded in the history.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from pushforward.diagnostics.ksd import stein_kernel
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
from pushforward.methods.common import fit_mixture
from pushforward.methods.dft import DFT
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
                # A tenth more, for DFT.
                "steps": stage.steps * 10 // 9 + 1,
                "batch_size": stage.batch_size,
                "width": stage.width,
                "first": first,
            },
        )

    def stages(self) -> tuple[AbstractMethod, ...]:
        polish = self.steps // 10
        main = max(self.steps - polish - 1, 1)
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
        polished = Polish(before=replace(first, steps=None), trial=trial, steps=polish)
        return first, polished, Choose(before=replace(polished, steps=None))

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


class PolishState(eqx.Module):
    """The first stage's sampler, kept, and the one in training."""

    kept: Sampler
    trial: AlternatingState

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

    def init(self, key, target, steps, previous=None) -> PolishState:
        kept = self.before.sampler(target, previous)
        return PolishState(kept, self.trial.init(key, target, steps, previous))

    def step(self, key, target, state):
        trial, info = self.trial.step(key, target, state.trial)
        return PolishState(state.kept, trial), info

    def sampler(self, target, state) -> Sampler:
        # Not yet chosen: the safe one.
        return state.kept

    def candidates(self, target, state: Any) -> tuple[Sampler, Sampler, Look]:
        """The kept sampler, the trained one, and the look they share."""
        return state.kept, self.trial.sampler(target, state.trial), state.trial.look


class ChooseState(eqx.Module):
    """Two samplers and which of them is the better, once that is known."""

    kept: Sampler
    trial: Sampler
    look: Look
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

    def init(self, key, target, steps, previous=None) -> ChooseState:
        kept, trial, look = self.before.candidates(target, previous)
        return ChooseState(kept, trial, look, jnp.zeros((), bool))

    def step(self, key, target, state):
        draw_key, mixture_key = jax.random.split(key)
        view = state.look.view(target)
        from_target = state.look.whitening.from_target
        # Both samplers have one structure: stacked, they are one program.
        pair = jax.tree.map(lambda a, b: jnp.stack([a, b]), state.kept, state.trial)

        def one_set(both):
            sampler, key = both
            draw_key, noise_key = jax.random.split(key)
            x = jax.vmap(from_target)(sampler.block(draw_key, self.batch_size))
            if target.sigma_range is not None:
                # Its score is that of noisy points.
                noise = jax.random.normal(noise_key, x.shape, x.dtype)
                x = x + target.sigma_range[0] * noise
            return u_statistic(x, jax.vmap(view.score)(x)), x

        def all_sets(both):
            sampler, keys = both
            return jax.lax.map(lambda key: one_set((sampler, key)), keys)

        keys = jax.random.split(draw_key, (2, self.sets))
        (u_kept, u_trial), (kept, trial) = jax.lax.map(all_sets, (pair, keys))
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
        new = ChooseState(state.kept, state.trial, state.look, take)
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


def u_statistic(x: Float[Array, "n d"], s: Float[Array, "n d"]) -> Float[Array, ""]:
    """The KSD U-statistic, dense: for the few draws of one compiled decision."""
    rows = jax.vmap(
        lambda x1, s1: jax.vmap(lambda x2, s2: stein_kernel(x1, x2, s1, s2))(x, s)
    )(x, s)
    n = x.shape[0]
    return (jnp.sum(rows) - jnp.trace(rows)) / (n * (n - 1))


def lost_weight(
    key, reference: Float[Array, "r d"], kept: Float[Array, "n d"],
    trial: Float[Array, "n d"], *, cells: int = 8,
) -> Float[Array, ""]:  # fmt: skip
    """How much weight the worst-hit part of the target lost, in standard errors.

    The parts are the cells of a mixture fitted to the reference.
    """
    _, means, _ = fit_mixture(key, reference, cells, sweeps=5)

    def shares(x):
        distances = jnp.sum((x[:, None] - means[None]) ** 2, axis=-1)
        return jnp.mean(jax.nn.one_hot(jnp.argmin(distances, axis=1), cells), axis=0)

    before, after = shares(kept), shares(trial)
    n = kept.shape[0]
    pooled = jnp.clip(0.5 * (before + after), 1e-6, 1.0)
    return jnp.max((before - after) / jnp.sqrt(2 * pooled * (1 - pooled) / n + 1e-12))
