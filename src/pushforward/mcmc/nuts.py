"""NUTS with window adaptation: the reference where no exact draws exist."""

from typing import Any

import blackjax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pushforward.targets.base import AbstractTarget


class NUTSResult(eqx.Module):
    """Chains, the number of leapfrog steps they took, and of divergences."""

    positions: Float[Array, "chains n d"]
    leapfrogs: Int[Array, ""]
    divergences: Int[Array, ""]


@eqx.filter_jit
def nuts(
    key: PRNGKeyArray,
    target: AbstractTarget,
    starts: Float[Array, "chains d"],
    *,
    draws: int,
    warmup: int = 1000,
    acceptance: float = 0.8,
) -> NUTSResult:
    """One adapted NUTS chain from each start, with `draws` kept draws a chain."""
    adapt: Any = blackjax.window_adaptation(
        blackjax.nuts, target.log_density, target_acceptance_rate=acceptance
    )

    def chain(key, start):
        warm_key, run_key = jax.random.split(key)
        # BlackJAX's adaptation mixes types, which a program in strict mode refuses.
        with jax.numpy_dtype_promotion("standard"):
            (state, parameters), _ = adapt.run(warm_key, start, warmup)
        kernel: Any = blackjax.nuts(target.log_density, **parameters)

        def step(state, key):
            state, info = kernel.step(key, state)
            kept = state.position, info.num_integration_steps, info.is_divergent
            return state, kept

        _, kept = jax.lax.scan(step, state, jax.random.split(run_key, draws))
        return kept

    keys = jax.random.split(key, starts.shape[0])
    positions, leapfrogs, divergent = jax.vmap(chain)(keys, starts)
    return NUTSResult(positions, jnp.sum(leapfrogs), jnp.sum(divergent))
