"""Two networks in turns: one learns about the sampler, and the sampler moves by it."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from pushforward.errors import UsageError
from pushforward.mcmc.initialise import Initialisation
from pushforward.methods.base import (
    AbstractMethod,
    AbstractState,
    replace,
    sampler_of,
    start_of,
)
from pushforward.methods.clock import Clock, average
from pushforward.methods.training import SecondTraining, TrainConfig
from pushforward.networks import (
    AbstractBatchNetwork,
    AbstractNetwork,
    with_statistics,
)
from pushforward.networks.specs import AbstractNetworkSpec, as_spec
from pushforward.objectives.base import AbstractPairObjective, Info
from pushforward.sampler import Sampler
from pushforward.targets.base import AbstractTarget


class AlternatingState(AbstractState):
    """What the next step needs."""

    network: AbstractNetwork
    averaged: AbstractNetwork
    second: AbstractNetwork
    network_optimiser: Any
    second_optimiser: Any
    initialisation: Initialisation
    clock: Clock


class Alternating(AbstractMethod):
    """A sampler, and a second network (a score, a critic) that learns about it.

    A step trains the second network on fresh draws a few times, then the sampler once.

    Attributes:
        objective: the losses of both; `objectives.ScoreBased` makes them of a loss that
            needs the sampler's score.
        network: the sampler network: one of `pushforward.networks`, such as
            `networks.residual()`, a function `(dim, key)` or an `eqx.Module`.
        second: the second network, given in the same way.
        training: steps, batch, optimiser of the sampler.
        second_training: the same of the second network.
        name: what it is called in configs and histories.
    """

    objective: AbstractPairObjective
    network: AbstractNetworkSpec = eqx.field(converter=as_spec)
    second: AbstractNetworkSpec = eqx.field(converter=as_spec)
    training: TrainConfig = TrainConfig()
    second_training: SecondTraining = SecondTraining()
    name: str = "alternating"

    def __check_init__(self):
        warmup = self.second_training.warmup
        if isinstance(warmup, int) and 0 < warmup >= self.steps:
            raise UsageError(
                f"The first {warmup} steps train the second network alone, and there "
                f"are only {self.steps} steps: the sampler would never move; give more "
                "steps or a shorter warm-up."
            )

    @property
    def evaluations(self) -> int:
        return self.objective.evaluations(self.batch_size, self.second_training.steps)

    @property
    def minibatches(self) -> int:
        return self.objective.minibatches

    def resolve(self, target: AbstractTarget) -> "Alternating":
        return replace(
            self,
            objective=self.objective.resolve(target),
            network=self.network.resolve(target),
            second=self.second.resolve(target),
        )

    def init(
        self,
        key: PRNGKeyArray,
        target: AbstractTarget,
        steps: Int[Array, ""],
        previous: Any = None,
    ) -> AlternatingState:
        *keys, second_key = jax.random.split(key, 3)
        noise, spare = (
            self.objective.noise_scale(target),
            jax.random.fold_in(keys[1], 1),
        )
        found, network = start_of(self, keys, target, noise, spare)
        second = self.second.field(second_key, found.precondition(target))
        return AlternatingState(
            network=network,
            averaged=network,
            second=second,
            network_optimiser=self.training.optimiser.init(network),
            second_optimiser=self.second_training.optimiser.init(second),
            initialisation=found,
            clock=Clock.start(steps),
        )

    def step(
        self, key: PRNGKeyArray, target: AbstractTarget, state: AlternatingState
    ) -> tuple[AlternatingState, Info]:
        view = state.initialisation.precondition(target)
        second_key, network_key = jax.random.split(key)
        n, clock = self.batch_size, state.clock
        alone = self.second_training.is_alone(clock)

        optimiser = self.second_training.optimiser
        rate = jnp.where(alone, 1.0, optimiser.factor(clock))

        def body(carry, key):
            second, optimiser_state = carry
            loss, gradient = eqx.filter_value_and_grad(self.objective.second_loss)(
                second, state.network, view, key, n
            )
            carry = optimiser.update(gradient, optimiser_state, second, rate)
            return carry, loss

        (second, second_optimiser), losses = jax.lax.scan(
            body,
            (state.second, state.second_optimiser),
            jax.random.split(second_key, self.second_training.steps),
        )

        optimiser = self.training.optimiser
        loss: Any = self.objective.sampler_loss
        (_, (info, seen)), gradient = eqx.filter_value_and_grad(loss, has_aux=True)(
            state.network, second, view, network_key, n
        )
        network, network_optimiser = optimiser.update(
            gradient,
            state.network_optimiser,
            state.network,
            jnp.where(alone, 0.0, optimiser.factor(clock)),
        )
        if isinstance(network, AbstractBatchNetwork) and seen is not None:
            network = with_statistics(network, seen)
        new = AlternatingState(
            network=network,
            averaged=average(state.averaged, network, clock, self.training.averaging),
            second=second,
            network_optimiser=network_optimiser,
            second_optimiser=second_optimiser,
            initialisation=state.initialisation,
            clock=clock.advance(),
        )
        return new, {self.objective.second_name: jnp.mean(losses), **info}

    def remark(self, planned: int, made: int) -> str:
        alone = min(self.second_training.steps_alone(planned), made)
        if not alone:
            return ""
        which = self.objective.second_name.removesuffix("_loss")
        first = "step" if alone == 1 else f"{alone} steps"
        return f"The first {first} trained the {which} network alone."

    def sampler(self, target: AbstractTarget, state: AlternatingState) -> Sampler:
        return sampler_of(state, target, self.objective.noise_scale(target))
