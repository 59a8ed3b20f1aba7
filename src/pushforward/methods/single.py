"""One network trained on one loss."""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Int, PRNGKeyArray

from pushforward import _validate
from pushforward.mcmc.initialise import Initialisation
from pushforward.methods.base import (
    AbstractMethod,
    AbstractState,
    replace,
    sampler_of,
    start_of,
)
from pushforward.methods.clock import Clock, average
from pushforward.methods.training import TrainConfig
from pushforward.networks import AbstractNetwork
from pushforward.networks.specs import AbstractNetworkSpec, as_spec
from pushforward.objectives.base import AbstractBatchObjective, Info
from pushforward.sampler import Sampler
from pushforward.targets.base import AbstractTarget


class SingleState(AbstractState):
    """What the next step needs."""

    network: AbstractNetwork
    averaged: AbstractNetwork
    optimiser: Any
    initialisation: Initialisation
    clock: Clock


class SingleNetwork(AbstractMethod):
    """A sampler network and a loss that its draws and the target alone make up.

    Attributes:
        objective: the loss of a batch of draws.
        network: the sampler network: one of `pushforward.networks`, such as
            `networks.residual()`, a function `(dim, key)` or an `eqx.Module`.
        training: steps, batch, optimiser.
        name: what it is called in configs and histories.
    """

    objective: AbstractBatchObjective
    network: AbstractNetworkSpec = eqx.field(converter=as_spec)
    training: TrainConfig = TrainConfig()
    name: str = "single_network"

    def __check_init__(self):
        least = self.objective.least_batch
        _validate.whole_number("batch_size", self.training.batch_size, least)

    @property
    def evaluations(self) -> int:
        return self.batch_size

    def resolve(self, target: AbstractTarget) -> "SingleNetwork":
        target.require_no_noise(f"The method {self.name!r}")
        network = self.network.resolve(target)
        return replace(self, objective=self.objective.resolve(target), network=network)

    def init(
        self,
        key: PRNGKeyArray,
        target: AbstractTarget,
        steps: Int[Array, ""],
        previous: Any = None,
    ) -> SingleState:
        *keys, spare = jax.random.split(key, 3)
        found, network = start_of(self, keys, target, 0.0, spare)
        state = self.training.optimiser.init(network)
        return SingleState(
            network=network,
            averaged=network,
            optimiser=state,
            initialisation=found,
            clock=Clock.start(steps),
        )

    def step(
        self, key: PRNGKeyArray, target: AbstractTarget, state: SingleState
    ) -> tuple[SingleState, Info]:
        optimiser, clock = self.training.optimiser, state.clock
        loss, gradient = eqx.filter_value_and_grad(self.objective)(
            state.network,
            state.initialisation.precondition(target),
            key,
            self.batch_size,
            clock.progress,
        )
        network, optimiser_state = optimiser.update(
            gradient, state.optimiser, state.network, optimiser.factor(clock)
        )
        new = SingleState(
            network=network,
            averaged=average(state.averaged, network, clock, self.training.averaging),
            optimiser=optimiser_state,
            initialisation=state.initialisation,
            clock=clock.advance(),
        )
        return new, {"loss": loss}

    def sampler(self, target: AbstractTarget, state: SingleState) -> Sampler:
        return sampler_of(state, target, 0.0)
