"""The protocol of a training method."""

import abc
import bisect
import dataclasses
import types
from collections.abc import Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from pushforward._precision import NETWORK_DTYPE
from pushforward.mcmc.initialise import (
    EVALUATIONS_PER_PARTICLE,
    LEAST_PARTICLES,
    Initialisation,
)
from pushforward.methods.clock import Clock
from pushforward.methods.training import TrainConfig
from pushforward.networks import AbstractBatchNetwork, AbstractNetwork, at_rest
from pushforward.networks.own import OwnNetwork
from pushforward.networks.specs import AbstractNetworkSpec, Start, as_spec
from pushforward.objectives.base import Info
from pushforward.sampler import Sampler
from pushforward.targets.base import AbstractTarget

State = Any


class AbstractTask(eqx.Module):
    """Something that is learnt step by step: what the engine runs.

    What is left to us (None) is chosen by `resolve`, once, from the target or the data,
    never from the device.
    """

    # What it is called in the config and the history of a run.
    name: eqx.AbstractVar[str]

    @property
    @abc.abstractmethod
    def steps(self) -> int:
        """How many steps are made, unless `fit` is given another number."""

    @abc.abstractmethod
    def resolve(self, target: Any) -> "AbstractTask":
        """The same task, with all that depends on the target filled in."""

    def with_sizes(
        self, *, steps: int | None = None, batch_size: int | None = None
    ) -> "AbstractTask":
        """A copy with another number of steps, or points a step."""
        sizes = {"steps": steps, "batch_size": batch_size}
        return replace(self, **{k: v for k, v in sizes.items() if v is not None})

    def describe(self) -> dict[str, Any]:
        """Its name and its numbers, as they stand in a run's config."""
        return {"name": self.name, **describe(self)}

    def prepare(self, key: PRNGKeyArray, target: Any) -> Any:
        """What is found out on the host before the first step, or None.

        Its arrays have the shapes of `prepared(target)`. It is what `init` is given as
        `previous`.
        """
        return None

    def prepared(self, target: Any) -> Any:
        """What `prepare` returns, with any numbers; pure."""
        return None

    @abc.abstractmethod
    def init(
        self,
        key: PRNGKeyArray,
        target: Any,
        steps: Int[Array, ""],
        previous: State | None = None,
    ) -> State:
        """The state before the first step; pure and jit-able.

        Args:
            key: random key.
            target: what to sample from (or to learn from).
            steps: how many steps are planned (schedules follow it).
            previous: what `prepare` returned.
        """

    @abc.abstractmethod
    def step(self, key: PRNGKeyArray, target: Any, state: State) -> tuple[State, Info]:
        """One step of training; pure and jit-able.

        A state with a number that is not finite must stay so in further steps, as that
        of a network and its optimiser does: the engine looks at it now and then, and
        goes back. What may recover, such as the last loss, belongs in the second value.
        """

    @property
    def review_every(self) -> int:
        """After how many steps `review` is called; 0 is never."""
        return 0

    def review(
        self, key: PRNGKeyArray, target: Any, state: State
    ) -> tuple[State, Info]:
        """A decision between two steps, recorded in the history; pure and jit-able."""
        return state, {}

    def is_complete(self, state: State) -> Bool[Array, ""]:
        """Whether further steps would not pay, asked after a review."""
        return jnp.zeros((), bool)

    def recover(self, state: State) -> State:
        """Where to go on from after many steps that were not finite; pure.

        It is called several times before training is given up.
        """
        return state

    @abc.abstractmethod
    def result(self, target: Any, state: State) -> Any:
        """What has been learnt so far."""


class AbstractState(eqx.Module):
    """What the state of every method holds."""

    network: eqx.AbstractVar[AbstractNetwork]
    averaged: eqx.AbstractVar[AbstractNetwork]
    initialisation: eqx.AbstractVar[Initialisation]
    clock: eqx.AbstractVar["Clock"]


class AbstractMethod(AbstractTask):
    """A way to train a sampler: a task whose data are a target.

    Its state is an `AbstractState`.
    """

    network: eqx.AbstractVar[AbstractNetworkSpec]
    training: eqx.AbstractVar[TrainConfig]

    @property
    def steps(self) -> int:
        return self.training.steps

    @property
    def batch_size(self) -> int:
        """How many points a step draws."""
        return self.training.batch_size

    def with_sizes(
        self, *, steps: int | None = None, batch_size: int | None = None
    ) -> "AbstractMethod":
        sizes = {"steps": steps, "batch_size": batch_size}
        given = {k: v for k, v in sizes.items() if v is not None}
        training = dataclasses.replace(self.training, **given)
        return dataclasses.replace(self, training=training)

    def warm_started(self, sampler: Sampler) -> "AbstractMethod":
        """A copy that starts from the network of a sampler, in its coordinates."""
        coordinates = sampler.preconditioner
        training = dataclasses.replace(self.training, coordinates=coordinates)
        network = as_spec(sampler.network)
        return dataclasses.replace(self, network=network, training=training)

    def __repr__(self) -> str:
        return summary(self)

    @property
    @abc.abstractmethod
    def evaluations(self) -> int:
        """How often one step evaluates the target."""

    def evaluations_of_steps(self, target: AbstractTarget, steps: int) -> int:
        """How often so many steps evaluate the target."""
        return steps * self.evaluations * target.evaluation_cost(self.minibatches)

    def evaluations_of(self, target: AbstractTarget, steps: int) -> int:
        """The same with the reviews between them, which its state counts."""
        return self.evaluations_of_steps(target, steps)

    def affordable_steps(self, target: AbstractTarget, evaluations: int) -> int:
        """The most steps that so many evaluations pay for; at least 1."""

        def cost(steps: int) -> int:
            return self.evaluations_of(target, steps)

        return max(1, bisect.bisect(range(1, self.steps + 1), evaluations, key=cost))

    def within(self, max_evaluations: int) -> "AbstractMethod":
        """The same method, whose start takes no more than half of a budget.

        What the start leaves goes to steps (see `affordable_steps`).
        """
        particles = max_evaluations // 2 // EVALUATIONS_PER_PARTICLE
        particles = min(self.training.particles, max(particles, LEAST_PARTICLES))
        training = dataclasses.replace(self.training, particles=particles)
        return dataclasses.replace(self, training=training)

    @property
    def minibatches(self) -> int:
        """On how many minibatches each evaluation is, where the target has them.

        A loss that multiplies two scores needs two, or it has the variance of one on
        top.
        """
        return 1

    @abc.abstractmethod
    def resolve(self, target: AbstractTarget) -> "AbstractMethod":
        """The same method, with all that depends on the target filled in."""

    def remark(self, planned: int, made: int) -> str:
        """A sentence about steps that did something else than move the sampler."""
        return ""

    @abc.abstractmethod
    def sampler(self, target: AbstractTarget, state: State) -> Sampler:
        """What has been learnt so far."""

    def recover(self, state: State) -> State:
        """From the averaged weights, at a lower learning rate."""
        return eqx.tree_at(
            lambda s: (s.network, s.clock), state, (state.averaged, state.clock.hurry())
        )

    def doubts(self, state: State) -> tuple[str, ...]:
        """What the training itself gives reason to doubt, a sentence for each."""
        return ()

    def result(self, target: AbstractTarget, state: State) -> Sampler:
        return self.sampler(target, state)


def start_of(
    method: AbstractMethod,
    keys: Sequence[PRNGKeyArray],
    target: AbstractTarget,
    noise_scale: float,
    spare_key: PRNGKeyArray,
) -> tuple[Initialisation, AbstractNetwork]:
    """The coordinates in which training starts, and the sampler network.

    Args:
        method: what is trained.
        keys: for the initialisation, and for the network.
        target: what to sample from.
        noise_scale: the noise that is part of the sampler's draws.
        spare_key: for networks that draw twice.
    """
    found = method.training.initialise(keys[0], target)
    view = found.precondition(target)
    start = Start(view, found.particles, noise_scale, spare_key)
    network = method.network.sampler(keys[1], start)
    spent = found.evaluations + method.network.evaluations(target)
    return dataclasses.replace(found, evaluations=spent), network


def sampler_of(
    state: AbstractState, target: AbstractTarget, noise_scale: float
) -> Sampler:
    """The sampler with a state's averaged network."""
    network, found = state.averaged, state.initialisation
    if isinstance(network, AbstractBatchNetwork):
        # The running statistics of the weights that were averaged are not theirs.
        shape = (16, 256, network.in_size)
        z = jax.random.normal(jax.random.key(0), shape, NETWORK_DTYPE)
        network = at_rest(network, z)
    own: Any = network.module if isinstance(network, OwnNetwork) else network
    noise = noise_scale or None
    return Sampler(own, found.preconditioner, target.structure, noise, target.symmetry)


def extend(state: State, steps: int) -> State:
    """The state with its clocks set to a larger number of steps."""
    return jax.tree.map(
        lambda leaf: leaf.extend(steps) if isinstance(leaf, Clock) else leaf,
        state,
        is_leaf=lambda leaf: isinstance(leaf, Clock),
    )


Task = TypeVar("Task", bound=AbstractTask)


def replace(task: Task, **changes: Any) -> Task:
    """A copy with some fields replaced."""
    return dataclasses.replace(task, **changes)


def describe(part: Any) -> Any:
    """A part of a method as plain JSON: modules by kind and fields.

    What is the caller's own (a function, a network, a transformation of optax) is
    described by its name alone.
    """
    if part is None or isinstance(part, bool | int | float | str):
        return part
    # A transformation of optax is a named tuple.
    if type(part) in (tuple, list):
        return [describe(each) for each in part]
    if eqx.is_array(part):
        return {"array": list(part.shape)}
    if _is_own(part):
        return {"own": _name(part)}
    fields = {f.name: describe(getattr(part, f.name)) for f in dataclasses.fields(part)}
    return {"kind": type(part).__name__, **fields}


def summary(method: AbstractMethod) -> str:
    """A method in a few lines: its parts, each with what is not as usual."""
    first, *rest = (f.name for f in dataclasses.fields(method) if f.name != "name")
    lines = [
        f"{type(method).__name__} {method.name!r}: {_brief(getattr(method, first))}"
    ]
    lines += [f"  {name}: {_brief(getattr(method, name))}" for name in rest]
    return "\n".join(lines)


def _brief(part: Any) -> str:
    """A part by its kind and those of its fields that differ from their defaults."""
    # A transformation of optax is a named tuple.
    if part is None or type(part) in (bool, int, float, str, tuple, list):
        return repr(part)
    if eqx.is_array(part):
        return f"array{list(part.shape)}"
    if _is_own(part):
        return _name(part)
    shown = []
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if field.default is dataclasses.MISSING or value != field.default:
            shown.append(f"{field.name}={_brief(value)}")
    return f"{type(part).__name__}({', '.join(shown)})"


def _is_own(part: Any) -> bool:
    """Whether it is the caller's own: a function, a network, a module with arrays."""
    if not isinstance(part, eqx.Module) or isinstance(part, AbstractNetwork):
        return True
    ours = type(part).__module__.split(".")[0] == __name__.split(".")[0]
    return not ours and any(map(eqx.is_array, jax.tree.leaves(part)))


def _name(part: Any) -> str:
    named = part if isinstance(part, type | types.FunctionType) else type(part)
    return f"{named.__module__}.{named.__qualname__}"
