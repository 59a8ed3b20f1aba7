"""The default: explore, distil, improve, decide.

1. *Explore.* `mcmc.explore` finds particles and modes, on the host, before the first
   step. The sampler starts as a Gaussian mixture with components for every mode, in
   coordinates in which the particles have mean 0 and covariance I.
2. *Distil.* Forward KL on particles that HMC keeps moving: it covers all of them.
3. *Improve.* Reverse KL along the paths of draws, beside the forward KL, whose weight
   falls to 0. Draws of the sampler are offered to the particles by independence
   Metropolis, so that these come to have the weights of the modes, and to lie where
   exploration had not been.
4. *Decide.* Now and then the sampler is reviewed by draws and by particles that it was
   not trained on. What is returned is the best that was reviewed. Training ends when
   both sides agree; where reviews no longer improve, the learning rate falls, once, and
   then training ends.
"""

import dataclasses
import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from pushforward import _programs, _validate
from pushforward.errors import UsageError
from pushforward.mcmc.copies import affordable, divide, divides
from pushforward.mcmc.exploration import Exploration, explore
from pushforward.mcmc.initialise import Initialisation, from_particles
from pushforward.mcmc.refresh import LEAPFROGS, refresh
from pushforward.methods.base import AbstractMethod, AbstractState, replace
from pushforward.methods.clock import Clock, average
from pushforward.methods.evidence import Evidence, log_density_of, log_ratios
from pushforward.methods.training import TrainConfig
from pushforward.networks import AbstractDensityNetwork
from pushforward.networks.mixture_fit import fit_mixture_to_modes
from pushforward.networks.specs import (
    MANY,
    AbstractNetworkSpec,
    MixtureSpec,
    Start,
    as_spec,
)
from pushforward.objectives.base import Info
from pushforward.objectives.forward_kl import forward_kl_loss
from pushforward.objectives.reverse_kl import reverse_kl_loss
from pushforward.sampler import Sampler
from pushforward.targets.base import AbstractTarget, VarianceReduction
from pushforward.targets.one_copy import Copy
from pushforward.targets.preconditioner import Preconditioner

# Particles to train on, and to review by.
_POOL, _HELD = 8192, 2048
# A review looks at the particles, and at draws of two networks.
_REVIEW_EVALUATIONS = 3 * _HELD
_REVIEWS = 20
# Steps between reviews, at least.
_APART = 25
# Both sides agree where no more than this share of the draws, and of the particles, is
# lost to unequal weights.
_ENOUGH = 0.004
# Distilling ends when a review is no better than the last by this factor, or after this
# share of the steps.
_STALLED, _LONGEST = 0.8, 0.4
# A review is an improvement where the gap between the bounds of log Z is less than the
# smallest so far by this factor. After so many without one the rest of the schedule is
# run through in a last part of training, this long.
_IMPROVED, _PATIENCE, _LAST_REVIEWS = 0.85, 4, 4
# The share of the schedule that such a last part is.
_LAST_SHARE = 0.4
# Where draws or particles are worth less than this, the fit says so.
_DOUBTFUL = 0.25
# The weight of the forward KL beside the reverse KL, at first.
_FORWARD = 0.2
# In few dimensions the mixture has as many components as exploration's particles tell
# apart: a covariance for every so many of them and dimension. Rings and arcs have
# maxima anywhere or nowhere, so that the number of maxima says little. At least these.
_PARTICLES_EACH = 16
_COMPONENTS = 16


class Prepared(eqx.Module):
    """What exploration leaves to training."""

    initialisation: Initialisation
    agreed: Bool[Array, ""]
    mixture: Any
    pool: Float[Array, "n d"]
    held: Float[Array, "m d"]


class AdaptiveState(AbstractState):
    """What the next step needs."""

    network: AbstractDensityNetwork
    averaged: AbstractDensityNetwork
    optimiser: Any
    initialisation: Initialisation
    clock: Clock
    # Particles to train on and to review by, and the scale of their moves.
    pool: Float[Array, "n d"]
    held: Float[Array, "m d"]
    scale: Float[Array, ""]
    # The best network that was reviewed, and the last Jensen-Shannon divergence.
    best: AbstractDensityNetwork
    last: Float[Array, ""]
    # The smallest gap between the bounds of log Z, and how many reviews ago it was.
    gap: Float[Array, ""]
    since: Int[Array, ""]
    improving: Bool[Array, ""]
    complete: Bool[Array, ""]
    # Whether the runs of exploration agreed, and what the draws and the particles were
    # worth at the last review, as shares of their numbers.
    agreed: Bool[Array, ""]
    worth: Float[Array, "2"]


class ExploreAndTrain(AbstractMethod):
    """Explore, distil, improve, decide (see the module).

    Attributes:
        network: a network whose density is known.
        training: steps (the most that are made), batch size, optimiser, averaging.
        max_evaluations: the most that exploration spends; None is as much as it needs
            (see `mcmc.explore`).
        name: what it is called in configs and histories.
    """

    network: AbstractNetworkSpec = eqx.field(converter=as_spec)
    training: TrainConfig
    max_evaluations: int | None = None
    name: str = "adaptive"

    def __check_init__(self):
        if self.max_evaluations is not None:
            _validate.whole_number("max_evaluations", self.max_evaluations)

    @property
    def evaluations(self) -> int:
        each = self.batch_size + self._held_batch
        return self.batch_size + each * (LEAPFROGS + 1)

    @property
    def review_every(self) -> int:
        return max(self.steps // _REVIEWS, _APART)

    def resolve(self, target: AbstractTarget) -> "ExploreAndTrain":
        target.require_density(f"The method {self.name!r}")
        components = _most_components(target.dim)
        network = self.network
        if isinstance(network, MixtureSpec) and network.components is None:
            network = dataclasses.replace(network, components=components)
        return replace(self, network=network.resolve(target))

    def evaluations_of(self, target: AbstractTarget, steps: int) -> int:
        reviews = 1 + steps // max(steps // _REVIEWS, _APART)
        return super().evaluations_of(target, steps) + reviews * _REVIEW_EVALUATIONS

    def within(self, max_evaluations: int) -> "ExploreAndTrain":
        most = max(1, max_evaluations // 2)
        own = self.max_evaluations
        return replace(self, max_evaluations=most if own is None else min(own, most))

    def prepare(self, key: PRNGKeyArray, target: AbstractTarget) -> Prepared:
        explore_key, key = jax.random.split(key)
        copy, spent = None, 0
        if divides(target):
            copy_key, explore_key = jax.random.split(explore_key)
            ascents = affordable(self.max_evaluations)
            target, spent = _divide(copy_key, target, ascents)
            copy = target.copy
        budget = self.max_evaluations
        left = None if budget is None else max(budget - int(spent), 1)
        found = explore(explore_key, target, max_evaluations=left)
        preconditioner, u, axes = _coordinates(found, self.training.coordinates)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        held, pool = np.split(rng.permutation(len(u)), [len(u) // 4])
        evaluations = jnp.asarray(found.evaluations + spent, jnp.int32)
        most = self._components
        enough = found.num_maxima
        if target.dim <= MANY:
            told_apart = len(u) // (_PARTICLES_EACH * target.dim)
            enough = max(enough, told_apart, _COMPONENTS)
        counts = _share_out(found.mode_weights, min(enough, most))
        labels, counts = jnp.asarray(found.labels), jnp.asarray(counts)
        mixture = fit_mixture_to_modes(key, u, labels, axes, counts, most)
        return Prepared(
            Initialisation(
                preconditioner, u[:1], VarianceReduction(), evaluations, copy
            ),
            jnp.asarray(found.agreed),
            mixture,
            _repeated(np.asarray(u)[pool], _POOL),
            _repeated(np.asarray(u)[held], _HELD),
        )

    def prepared(self, target: AbstractTarget) -> Prepared:
        dim, k, copy = target.dim, self._components, None
        if divides(target):
            assert target.symmetry is not None
            dim, copy = target.symmetry.canonical_dim, Copy.blank(target.symmetry)
        one, blank = Preconditioner.identity(dim), jnp.zeros((1, dim))
        evaluations = jnp.zeros((), jnp.int32)
        return Prepared(
            Initialisation(one, blank, VarianceReduction(), evaluations, copy),
            jnp.zeros((), bool),
            (jnp.zeros(k), jnp.zeros((k, dim)), jnp.zeros((k, dim, dim))),
            jnp.zeros((_POOL, dim)),
            jnp.zeros((_HELD, dim)),
        )

    @property
    def _components(self) -> int:
        return getattr(self.network, "components", None) or 1

    def init(
        self,
        key: PRNGKeyArray,
        target: AbstractTarget,
        steps: Int[Array, ""],
        previous: Any = None,
    ) -> AdaptiveState:
        assert previous is not None
        network_key, spare = jax.random.split(key)
        found = previous.initialisation
        start = Start(
            found.precondition(target), previous.pool, 0.0, spare, previous.mixture
        )
        network: Any = self.network.sampler(network_key, start)
        if not isinstance(network, AbstractDensityNetwork) or not network.has_density:
            raise UsageError(
                f"The method {self.name!r} needs a network whose density is known, "
                "such as networks.mixture() or networks.coupling()."
            )
        one = jnp.ones(())
        no = jnp.zeros((), bool)
        return AdaptiveState(
            network=network,
            averaged=network,
            optimiser=self.training.optimiser.init(network),
            initialisation=found,
            clock=Clock.start(steps),
            pool=previous.pool,
            held=previous.held,
            scale=one,
            best=network,
            last=1e3 * one,
            gap=1e30 * one,
            since=jnp.zeros((), jnp.int32),
            improving=no,
            complete=no,
            agreed=previous.agreed,
            worth=jnp.zeros(2),
        )

    def step(
        self, key: PRNGKeyArray, target: AbstractTarget, state: AdaptiveState
    ) -> tuple[AdaptiveState, Info]:
        view = state.initialisation.precondition(target)
        move_key, latent_key, accept_key, held_key = jax.random.split(key, 4)
        n, clock, optimiser = self.batch_size, state.clock, self.training.optimiser
        rows, held_rows = (
            (clock.step * count + jnp.arange(count)) % size
            for count, size in ((n, _POOL), (self._held_batch, _HELD))
        )
        together = jnp.concatenate([state.pool[rows], state.held[held_rows]])
        moved = refresh(move_key, view, together, state.scale)
        x, held = jnp.split(moved.positions, [n])

        (forward, log_p), gradient = eqx.filter_value_and_grad(
            forward_kl_loss, has_aux=True
        )(state.network, x)
        delta = moved.log_density[:n] - log_p
        held_delta = moved.log_density[n:] - log_density_of(state.network, held)
        weight = jnp.where(state.improving, _FORWARD * (1 - clock.progress), 1.0)
        arrays, static = eqx.partition(state.network, eqx.is_array)

        def improve(arrays):
            network = eqx.combine(arrays, static)
            (loss, (draws, found)), along = eqx.filter_value_and_grad(
                reverse_kl_loss, has_aux=True
            )(network, view, network.latents(latent_key, n), latent_key)
            kept = _offer(accept_key, x, delta, draws, found)
            # The same draws: what is held out is trained on no more than before.
            few = held.shape[0]
            kept_held = _offer(held_key, held, held_delta, draws[:few], found[:few])
            return loss, along, kept, kept_held

        def distil(arrays):
            none = jax.tree.map(jnp.zeros_like, gradient)
            return jnp.zeros((), x.dtype), none, x, held

        loss, along, x, held = jax.lax.cond(state.improving, improve, distil, arrays)
        gradient = jax.tree.map(
            lambda f, r: weight.astype(f.dtype) * f + r, gradient, along
        )
        network, optimiser_state = optimiser.update(
            gradient, state.optimiser, state.network, optimiser.factor(clock)
        )
        averaged = average(state.averaged, network, clock, self.training.averaging)
        new = dataclasses.replace(
            state,
            network=network,
            averaged=averaged,
            optimiser=optimiser_state,
            clock=clock.advance(),
            pool=state.pool.at[rows].set(x),
            held=state.held.at[held_rows].set(held),
            scale=moved.scale,
        )
        return new, {"loss": loss, "forward": forward}

    @property
    def _held_batch(self) -> int:
        return max(self.batch_size // 4, 1)

    def review(
        self, key: PRNGKeyArray, target: AbstractTarget, state: AdaptiveState
    ) -> tuple[AdaptiveState, Info]:
        """Puts the averaged network and the best so far before the same particles."""
        view = state.initialisation.precondition(target)
        draw_key, accept_key = jax.random.split(key)
        log_q = jax.vmap(view.log_density)(state.held)

        def judge(candidate):
            key, arrays = candidate
            network = eqx.combine(arrays, static)
            draws, delta = log_ratios(key, network, view, _HELD)
            at_particles = log_q - log_density_of(network, state.held)
            return Evidence.of(delta, at_particles), draws, delta, at_particles

        # Particles improve as training goes on, so the best is judged anew.
        both = [eqx.filter(n, eqx.is_array) for n in (state.averaged, state.best)]
        static = eqx.filter(state.averaged, eqx.is_array, inverse=True)
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *both)
        judged = jax.lax.map(judge, (jax.random.split(draw_key), stacked))
        (found, draws, delta, at_particles), (best, *_) = (
            jax.tree.map(operator.itemgetter(i), judged) for i in range(2)
        )
        better = ~(best.divergence < found.divergence)
        kept = _choose(better, found, best)
        agree = (found.ess > 1 - _ENOUGH) & (found.ess_particles > 1 - _ENOUGH)
        stalled = found.divergence > _STALLED * state.last
        late = state.clock.progress >= _LONGEST
        improving = state.improving | stalled | late | agree
        gap = jnp.where(found.gap > 0, found.gap, 0.0)
        improved = ~state.improving | (gap < _IMPROVED * state.gap)
        since = jnp.where(improved, 0, state.since + 1)
        spent = state.initialisation.evaluations + jnp.int32(_REVIEW_EVALUATIONS)
        new = dataclasses.replace(
            state,
            held=_offer(accept_key, state.held, at_particles, draws, delta),
            best=_choose(better, state.averaged, state.best),
            last=found.divergence,
            clock=_hurried(state.clock, since >= _PATIENCE),
            gap=jnp.where(improved, gap, state.gap),
            since=since,
            improving=improving,
            complete=(agree & state.improving) | (state.clock.progress >= 1),
            worth=jnp.stack([kept.ess, kept.ess_particles]),
            initialisation=dataclasses.replace(state.initialisation, evaluations=spent),
        )
        return new, {**found._asdict(), "kept": better.astype(delta.dtype)}

    def recover(self, state: AdaptiveState) -> AdaptiveState:
        """From the best network that was reviewed, at a lower learning rate."""
        best = state.best
        return dataclasses.replace(
            state, network=best, averaged=best, clock=state.clock.hurry()
        )

    def is_complete(self, state: AdaptiveState) -> Bool[Array, ""]:
        return state.complete

    def doubts(self, state: AdaptiveState) -> tuple[str, ...]:
        draws, particles = np.asarray(state.worth).tolist()
        return doubts_of(bool(state.agreed), draws, particles)

    def sampler(self, target: AbstractTarget, state: AdaptiveState) -> Sampler:
        found = state.initialisation.preconditioner
        return Sampler(state.best, found, target.structure, symmetry=target.symmetry)


def doubts_of(agreed: bool, draws: float, particles: float) -> tuple[str, ...]:
    """What exploration and the last review give reason to doubt.

    Args:
        agreed: whether the runs of exploration agreed.
        draws: what draws of the sampler were worth, as a share of their number.
        particles: what particles of the target were worth.
    """
    found = []
    if not agreed:
        found.append(
            "Independent runs of exploration did not agree on the normaliser, so mass "
            "may be missing from the sampler; look at pf.explore, and give it more "
            "max_evaluations."
        )
    if min(draws, particles) < _DOUBTFUL:
        found.append(
            f"At the last review a draw of the sampler was worth {draws:.2g} draws of "
            f"the target, and a particle of the target {particles:.2g} draws of the "
            "sampler; exact draws would be worth 1. Check the draws, and weigh or "
            "refine them."
        )
    return tuple(found)


def _most_components(dim: int) -> int:
    """A component is a covariance, which many dimensions make expensive."""
    return max(1, min(64, 2**18 // dim**2))


def _hurried(clock: Clock, now: Bool[Array, ""]) -> Clock:
    """The last part of a shorter schedule, where training no longer pays."""
    left = _LAST_REVIEWS * jnp.maximum(clock.total_steps // _REVIEWS, _APART)
    total = (left.astype(jnp.float32) / _LAST_SHARE).astype(jnp.int32)
    now = now & (clock.progress < 1 - _LAST_SHARE)
    return Clock(
        jnp.where(now, total - left, clock.step),
        jnp.where(now, total, clock.total_steps),
    )


def _choose(first: Bool[Array, ""], a: Any, b: Any) -> Any:
    def pick(x, y):
        return jnp.where(first, x, y) if eqx.is_array(x) else x

    return jax.tree.map(pick, a, b)


def _offer(
    key: PRNGKeyArray,
    x: Float[Array, "n d"],
    delta: Float[Array, " n"],
    draws: Float[Array, "n d"],
    delta_of_draws: Float[Array, " n"],
) -> Float[Array, "n d"]:
    """Particles after one step of independence Metropolis, by draws of the sampler.

    With `delta = log q - log p`, a draw takes the place of a particle with probability
    `min(1, exp(delta' - delta))`.
    """
    log_u = jnp.log(jax.random.uniform(key, delta.shape, delta.dtype))
    return jnp.where((log_u < delta_of_draws - delta)[:, None], draws, x)


def _coordinates(found: Exploration, given: Preconditioner | None):
    """Coordinates for the particles, the particles there, and the axes of the modes."""
    x = found.particles
    preconditioner = _from_particles(x) if given is None else given
    u, axes = _into(
        preconditioner, x, jnp.asarray(found.mode_centres), jnp.asarray(found.mode_axes)
    )
    return preconditioner, u, axes


_divide = _programs.compiled(divide)
_from_particles = _programs.compiled(from_particles)


@_programs.compiled
def _into(preconditioner: Preconditioner, x, centres, axes):
    u = jax.vmap(preconditioner.from_target)(x)

    def turn(centre, axes):
        def move(v):
            return jax.jvp(preconditioner.from_target, (centre,), (v,))[1]

        return jax.vmap(move, in_axes=1, out_axes=1)(axes)

    return u, jax.vmap(turn)(centres.astype(x.dtype), axes.astype(x.dtype))


def _share_out(weights: np.ndarray, total: int) -> Int[np.ndarray, " k"]:
    """How many of `total` components each mode has: at least one."""
    counts = np.ones(len(weights), np.int32)
    while counts.sum() < total:
        counts[np.argmax(weights / counts)] += 1
    return counts


def _repeated(x: Float[np.ndarray, "n d"], n: int) -> Float[Array, "k d"]:
    """`n` rows: all of them in turn."""
    return jnp.asarray(x[np.arange(n) % len(x)])
