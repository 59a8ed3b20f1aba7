"""NUTS with window adaptation: the reference where no exact draws exist."""

from typing import Any

import blackjax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from pushforward.targets.base import AbstractTarget


class NUTSResult(eqx.Module):
    """Chains, the number of leapfrog steps they took, and of divergences."""

    positions: Float[Array, "chains n d"]
    leapfrogs: Int[Array, ""]
    divergences: Int[Array, ""]


class WarmNUTS(eqx.Module):
    """Adapted chains that have not drawn yet, their keys, and what they cost."""

    keys: Key[Array, " chains"]
    states: Any
    parameters: Any
    leapfrogs: Int[Array, ""]


@eqx.filter_jit
def nuts(
    key: PRNGKeyArray,
    target: AbstractTarget,
    starts: Float[Array, "chains d"],
    *,
    draws: int,
    warmup: int = 1000,
    acceptance: float = 0.8,
    doublings: int = 10,
) -> NUTSResult:
    """One adapted NUTS chain from each start, with `draws` kept draws a chain.

    A draw takes less than `2**doublings` leapfrog steps. All chains wait for the one
    that takes the most, so a low bound pays where the coordinates are good.
    """
    warm = nuts_warmup(
        key,
        target,
        starts,
        warmup=warmup,
        acceptance=acceptance,
        doublings=doublings,
    )
    return nuts_draws(target, warm, draws=draws, doublings=doublings)


@eqx.filter_jit
def nuts_warmup(
    key: PRNGKeyArray,
    target: AbstractTarget,
    starts: Float[Array, "chains d"],
    *,
    warmup: int = 1000,
    acceptance: float = 0.8,
    doublings: int = 10,
) -> WarmNUTS:
    """The first half of `nuts`, for those who want to time the two apart."""
    adapt: Any = blackjax.window_adaptation(
        blackjax.nuts,
        target.log_density,
        target_acceptance_rate=acceptance,
        max_num_doublings=doublings,
    )

    def chain(key, start):
        warm_key, run_key = jax.random.split(key)
        # BlackJAX's adaptation mixes types, which a program in strict mode refuses.
        with jax.numpy_dtype_promotion("standard"):
            (state, parameters), history = adapt.run(warm_key, start, warmup)
        taken = history.info.num_integration_steps
        # A number that sets the size of arrays cannot travel with the chains.
        parameters.pop("max_num_doublings", None)
        return run_key, state, parameters, jnp.sum(taken)

    keys = jax.random.split(key, starts.shape[0])
    keys, states, parameters, taken = jax.vmap(chain)(keys, starts)
    return WarmNUTS(keys, states, parameters, jnp.sum(taken))


@eqx.filter_jit
def nuts_draws(
    target: AbstractTarget, warm: WarmNUTS, *, draws: int, doublings: int = 10
) -> NUTSResult:
    """The second half of `nuts`."""

    def chain(key, start, parameters):
        kernel: Any = blackjax.nuts(
            target.log_density, **parameters, max_num_doublings=doublings
        )

        def step(state, key):
            state, info = kernel.step(key, state)
            kept = state.position, info.num_integration_steps, info.is_divergent
            return state, kept

        return jax.lax.scan(step, start, jax.random.split(key, draws))[1]

    every = warm.keys, warm.states, warm.parameters
    positions, leapfrogs, divergent = jax.vmap(chain)(*every)
    return NUTSResult(positions, jnp.sum(leapfrogs), jnp.sum(divergent))
