"""The protocol of a training method."""

import abc
import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from pushforward._precision import NETWORK_DTYPE
from pushforward.sampler import Sampler
from pushforward.targets.base import AbstractTarget

# A number or a name, or None for "choose for me". `resolve` leaves no None, so to the
# type checker they are what they will be.
AUTO: Any = None
if TYPE_CHECKING:
    AutoInt: TypeAlias = int
    AutoFloat: TypeAlias = float
    AutoStr: TypeAlias = str
else:
    AutoInt, AutoFloat, AutoStr = int | None, float | None, str | None

# A flat mapping of scalars: what the progress bar shows and metrics.jsonl holds.
Info = dict[str, Float[Array, ""]]
State = Any


class AbstractTask(eqx.Module):
    """Something that is learnt step by step: what the engine runs.

    Fields are plain numbers, names or None; None means "choose for me", and `resolve`
    does so from the data and the device, once.
    """

    steps: eqx.AbstractVar[AutoInt]
    batch_size: eqx.AbstractVar[AutoInt]

    @property
    @abc.abstractmethod
    def evaluations(self) -> int:
        """How often one step evaluates the target (or looks at a datum)."""

    @property
    def minibatches(self) -> int:
        """On how many minibatches each evaluation is, where the target has them.

        A loss that multiplies two scores needs two, or it has the variance of one on
        top.
        """
        return 1

    @abc.abstractmethod
    def resolve(self, target: Any, platform: str) -> "AbstractTask":
        """The same task with every None filled in."""

    @abc.abstractmethod
    def stages(self) -> tuple["AbstractTask", ...]:
        """The tasks to run one after another; most are a single stage, themselves."""

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
            previous: the last state of the stage before, where there is one.
        """

    @abc.abstractmethod
    def step(self, key: PRNGKeyArray, target: Any, state: State) -> tuple[State, Info]:
        """One step of training; pure and jit-able.

        A state with a number that is not finite must stay so in further steps, as that
        of a network and its optimiser does: the engine looks at it now and then, and
        goes back. What may recover, such as the last loss, belongs in the second value.
        """

    @abc.abstractmethod
    def result(self, target: Any, state: State) -> Any:
        """What has been learnt so far."""

    def settled(self, state: State) -> Bool[Array, ""]:
        """Whether nothing is left to the stages after this one, asked at its end.

        They are left out if that holds for every seed.
        """
        return jnp.zeros((), bool)


class AbstractMethod(AbstractTask):
    """A way to train a sampler: a task whose data are a target.

    The field `look` of its state holds the first look at it (`whitening.Look`).
    """

    @abc.abstractmethod
    def resolve(self, target: AbstractTarget, platform: str) -> "AbstractMethod":
        """The same method with every None filled in."""

    @abc.abstractmethod
    def stages(self) -> tuple["AbstractMethod", ...]:
        """The methods to run one after another."""

    @abc.abstractmethod
    def sampler(self, target: AbstractTarget, state: State) -> Sampler:
        """What has been learnt so far."""

    def result(self, target: AbstractTarget, state: State) -> Sampler:
        return self.sampler(target, state)


class Clock(eqx.Module):
    """Where training stands: the step, and how many are planned."""

    step: Int[Array, ""]
    horizon: Int[Array, ""]

    @staticmethod
    def start(horizon: Int[Array, ""]) -> "Clock":
        """Before the first step."""
        return Clock(jnp.zeros((), jnp.int32), jnp.asarray(horizon, jnp.int32))

    def tick(self) -> "Clock":
        """After one more step."""
        return Clock(self.step + 1, self.horizon)

    def extend(self, horizon: int) -> "Clock":
        """The same step of a longer plan."""
        return Clock(self.step, jnp.asarray(horizon, jnp.int32))

    def warmup_cosine(self, warmup: float = 0.05, floor: float = 0.01):
        """A factor that rises from 0 to 1 and falls to `floor` along a cosine.

        The rise matters: Adam amplifies noise where training starts at an optimum.
        """
        step, horizon = (n.astype(jnp.float32) for n in (self.step, self.horizon))
        done = jnp.minimum(step / jnp.maximum(horizon, 1.0), 1.0)
        rise = jnp.minimum((step + 1) / (warmup * horizon + 1), 1.0)
        fall = floor + (1 - floor) * 0.5 * (1 + jnp.cos(jnp.pi * done))
        return rise * fall


def extend(state: State, steps: int) -> State:
    """The state with its clocks set to a larger number of steps."""
    return jax.tree.map(
        lambda leaf: leaf.extend(steps) if isinstance(leaf, Clock) else leaf,
        state,
        is_leaf=lambda leaf: isinstance(leaf, Clock),
    )


class Adam(NamedTuple):
    """Adam with gradient clipping, its learning rate given at every step.

    The rate is an argument, so that runs of any length compile to the same program.
    """

    learning_rate: float
    b1: float = 0.9
    b2: float = 0.99
    clip: float = 1.0

    @property
    def transform(self) -> optax.GradientTransformation:
        """The update without its learning rate."""
        return optax.chain(
            optax.clip_by_global_norm(self.clip),
            optax.scale_by_adam(b1=self.b1, b2=self.b2),
        )

    def init(self, model: Any) -> Any:
        """The optimiser's state for a network."""
        return self.transform.init(eqx.filter(model, eqx.is_inexact_array))

    def update(self, gradient: Any, state: Any, model: Any, factor: Array):
        """One update of `model` at `factor` times the learning rate."""
        # optax mixes integers and floats, which a program in strict mode refuses.
        with jax.numpy_dtype_promotion("standard"):
            updates, state = self.transform.update(gradient, state)
        rate = -self.learning_rate * factor
        updates = jax.tree.map(lambda u: rate.astype(u.dtype) * u, updates)
        return eqx.apply_updates(model, updates), state


def average(old: Any, new: Any, clock: Clock, decay: float = 0.999) -> Any:
    """An exponential moving average of weights, with a shorter memory at the start."""
    step = clock.step.astype(NETWORK_DTYPE)
    kept = jnp.minimum(decay, (1 + step) / (10 + step))
    # Every leaf of a network is a weight in the networks' precision.
    return jax.tree.map(lambda a, b: kept * a + (1 - kept) * b, old, new)


Method = TypeVar("Method", bound=AbstractTask)


def replace(method: Method, **changes: Any) -> Method:
    """A copy with some fields replaced."""
    return dataclasses.replace(method, **changes)


def fill_in(method: Method, defaults: dict[str, Any]) -> Method:
    """A copy whose None fields are taken from `defaults`."""
    missing = {k: v for k, v in defaults.items() if getattr(method, k) is None}
    return replace(method, **missing)
