"""Where training stands, and what follows from it: schedules, averages."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pushforward._precision import NETWORK_DTYPE


class Clock(eqx.Module):
    """Where training stands: the step, and how many are planned."""

    step: Int[Array, ""]
    total_steps: Int[Array, ""]

    @staticmethod
    def start(total_steps: Int[Array, ""]) -> "Clock":
        """Before the first step."""
        return Clock(jnp.zeros((), jnp.int32), jnp.asarray(total_steps, jnp.int32))

    @property
    def progress(self) -> Float[Array, ""]:
        """The share of the steps that are done, from 0 to 1."""
        step, total_steps = self._as_floats()
        return jnp.minimum(step / jnp.maximum(total_steps, 1.0), 1.0)

    def _as_floats(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        return self.step.astype(jnp.float32), self.total_steps.astype(jnp.float32)

    def advance(self) -> "Clock":
        """After one more step."""
        return Clock(self.step + 1, self.total_steps)

    def hurry(self) -> "Clock":
        """Further along the schedule by a third of what is left: at a lower rate."""
        return Clock(self.step + (self.total_steps - self.step) // 3, self.total_steps)

    def extend(self, total_steps: int) -> "Clock":
        """The same step of a longer plan."""
        return Clock(self.step, jnp.asarray(total_steps, jnp.int32))

    def warmup_cosine(
        self, warmup: float = 0.05, floor: float = 0.01
    ) -> Float[Array, ""]:
        """A factor that rises from 0 to 1 and falls to `floor` along a cosine.

        The rise matters: Adam amplifies noise where training starts at an optimum.
        """
        step, total_steps = self._as_floats()
        rise = jnp.minimum((step + 1) / (warmup * total_steps + 1), 1.0)
        fall = floor + (1 - floor) * 0.5 * (1 + jnp.cos(jnp.pi * self.progress))
        return rise * fall


def average(old: Any, new: Any, clock: Clock, decay: float = 0.999) -> Any:
    """An exponential moving average of weights, with a shorter memory at the start."""
    step = clock.step.astype(NETWORK_DTYPE)
    kept = jnp.minimum(decay, (1 + step) / (10 + step))
    # Weights are in the networks' precision; whatever else a network holds is not
    # averaged.
    return jax.tree.map(
        lambda a, b: kept * a + (1 - kept) * b if eqx.is_inexact_array(b) else b,
        old,
        new,
    )
