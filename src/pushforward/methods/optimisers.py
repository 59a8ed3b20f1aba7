"""Optimisers: ours, with a learning rate and a schedule kept as data, and any of optax.

The schedule is a factor computed from where training stands, so runs of any length are
one compiled program.
"""

import abc
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from pushforward import _validate
from pushforward.errors import UsageError
from pushforward.methods.clock import Clock
from pushforward.networks import AbstractNetwork

Schedule = Literal["cosine", "constant"]


class AbstractOptimiser(eqx.Module):
    """How weights are changed by a gradient."""

    @abc.abstractmethod
    def factor(self, clock: Clock) -> Float[Array, ""]:
        """The factor on the learning rate at this step."""

    @abc.abstractmethod
    def init(self, model: Any) -> Any:
        """The optimiser's state for a network."""

    @abc.abstractmethod
    def update(
        self, gradient: Any, state: Any, model: Any, factor: Float[Array, ""]
    ) -> tuple[Any, Any]:
        """The network and the optimiser's state after one update."""


class Adam(AbstractOptimiser):
    """Adam with gradient clipping.

    Attributes:
        learning_rate: the highest learning rate.
        momentum: the decay of the mean of gradients (Adam's beta 1).
        beta2: the decay of the mean of their squares.
        clip: the largest norm of a gradient.
        schedule: "cosine" rises from 0 in the first twentieth of the steps and falls to
            a hundredth along a cosine; "constant" stays.
    """

    learning_rate: float = 1e-3
    momentum: float = 0.9
    beta2: float = 0.99
    clip: float = 1.0
    schedule: Schedule = "cosine"

    def __check_init__(self):
        _validate.positive("learning_rate", self.learning_rate)
        _validate.share("momentum", self.momentum)
        _validate.share("beta2", self.beta2)
        _validate.positive("clip", self.clip)
        _validate.one_of("schedule", self.schedule, get_args(Schedule))

    @property
    def _transform(self) -> optax.GradientTransformation:
        return optax.chain(
            optax.clip_by_global_norm(self.clip),
            optax.scale_by_adam(b1=self.momentum, b2=self.beta2),
        )

    def factor(self, clock: Clock) -> Float[Array, ""]:
        return _factor(self.schedule, clock)

    def init(self, model: Any) -> Any:
        return self._transform.init(eqx.filter(model, eqx.is_inexact_array))

    def update(
        self, gradient: Any, state: Any, model: Any, factor: Float[Array, ""]
    ) -> tuple[Any, Any]:
        rate = -self.learning_rate * factor
        return _update(self._transform, rate, gradient, state, model, in_units=True)


class Optax(AbstractOptimiser):
    """Any transformation of optax, learning rate included.

    Attributes:
        transform: the transformation.
        schedule: a factor on its updates; "constant" leaves them as they are.
    """

    transform: optax.GradientTransformation
    schedule: Schedule = "constant"

    def __check_init__(self):
        if not isinstance(self.transform, optax.GradientTransformation):
            raise UsageError(
                "An optimiser must be a transformation of optax, such as "
                f"optax.adam(1e-3), not {self.transform!r}."
            )
        _validate.one_of("schedule", self.schedule, get_args(Schedule))

    def factor(self, clock: Clock) -> Float[Array, ""]:
        return _factor(self.schedule, clock)

    def init(self, model: Any) -> Any:
        return self.transform.init(eqx.filter(model, eqx.is_inexact_array))

    def update(
        self, gradient: Any, state: Any, model: Any, factor: Float[Array, ""]
    ) -> tuple[Any, Any]:
        return _update(self.transform, factor, gradient, state, model)


Optimiser = AbstractOptimiser | optax.GradientTransformation


def as_optimiser(optimiser: Optimiser) -> AbstractOptimiser:
    """What a user passed as an optimiser, as one of ours."""
    if isinstance(optimiser, AbstractOptimiser):
        return optimiser
    return Optax(optimiser)


def _factor(schedule: Schedule, clock: Clock) -> Float[Array, ""]:
    return (
        jnp.ones((), jnp.float32) if schedule == "constant" else clock.warmup_cosine()
    )


def _update(
    transform: optax.GradientTransformation,
    rate: Float[Array, ""],
    gradient: Any,
    state: Any,
    model: Any,
    *,
    in_units: bool = False,
) -> tuple[Any, Any]:
    """One update, multiplied by `rate`, perhaps in the network's own units."""
    weights = eqx.filter(model, eqx.is_inexact_array)
    in_units = in_units and isinstance(model, AbstractNetwork)
    if in_units:
        gradient = model.gradient_in_units(gradient)
    # optax mixes integers and floats, which a program in strict mode refuses.
    with jax.numpy_dtype_promotion("standard"):
        updates, state = transform.update(gradient, state, weights)
    updates = jax.tree.map(lambda u: rate.astype(u.dtype) * u, updates)
    if in_units:
        updates = model.update_of_units(updates)
    return eqx.apply_updates(model, updates), state
