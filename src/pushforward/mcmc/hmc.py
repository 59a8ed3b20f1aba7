"""Hamiltonian Monte Carlo with a fixed number of leapfrog steps."""

import functools

import blackjax
import equinox as eqx
import jax
import jax.numpy as jnp
from blackjax.mcmc.hmc import hmc_proposal
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward.errors import UsageError
from pushforward.targets.base import AbstractTarget


class HMCResult(eqx.Module):
    """Where the chains ended, the mean acceptance, and the number of gradients."""

    positions: Float[Array, "n d"]
    acceptance: Float[Array, ""]
    evaluations: int = eqx.field(static=True)


def hmc(
    key: PRNGKeyArray,
    target: AbstractTarget,
    positions: Float[Array, "n d"],
    steps: int,
    *,
    step_size: float | Float[Array, ""],
    leapfrogs: int,
    adjusted: bool = True,
) -> HMCResult:
    """`steps` steps of HMC with unit masses from each of n points.

    A step draws a momentum from N(0, I), follows it for `leapfrogs` leapfrog steps of
    size `step_size`, and accepts where it arrives by Metropolis' rule. The first steps
    of a longer run are those of a shorter one with the same key, and neither count is
    compiled in.

    Args:
        key: random key.
        target: a target; a minibatch target is seen through all of its data.
        positions: where the n chains start.
        steps: how many steps; each costs `leapfrogs` gradients per chain.
        step_size: size of one leapfrog step.
        leapfrogs: leapfrog steps of one step.
        adjusted: whether there is an accept step. Without one only the score is used,
            and the chains keep a bias of the order of `step_size**2`.
    """
    if steps < 0 or leapfrogs < 1:
        raise UsageError(
            "hmc takes no fewer than 0 steps of no fewer than 1 leapfrog, and steps is "
            f"{steps}, leapfrogs is {leapfrogs}."
        )
    if adjusted and not target.has_density:
        raise UsageError(
            f"hmc's accept step needs a log density, and a {type(target).__name__} has "
            "only a score: ask for adjusted=False."
        )
    ends, acceptance = _walk(
        key,
        target,
        positions,
        jnp.asarray(steps, jnp.int32),
        jnp.asarray(step_size, positions.dtype),
        jnp.asarray(leapfrogs, jnp.int32),
        adjusted=adjusted,
    )
    return HMCResult(ends, acceptance, positions.shape[0] * (1 + steps * leapfrogs))


@eqx.filter_jit
def _walk(key, target, positions, steps, step_size, leapfrogs, *, adjusted):
    n, dim = positions.shape
    masses = jnp.ones(dim, positions.dtype)

    def log_density(x):
        if adjusted:
            return target.log_density(x)
        # The value means nothing and is not looked at; the gradient is the score.
        return jnp.sum(jax.lax.stop_gradient(target.score(x)) * x)

    def always(key, log_ratio, here, there):
        return there, (True, jnp.ones_like(log_ratio), None)

    proposal = hmc_proposal
    if not adjusted:
        proposal = functools.partial(hmc_proposal, sample_proposal=always)
    kernel = blackjax.hmc.build_kernel(build_proposal=proposal)

    def step(i, carry):
        states, total = carry
        keys = jax.random.split(jax.random.fold_in(key, i), n)
        states, info = jax.vmap(
            lambda k, s: kernel(k, s, log_density, step_size, masses, leapfrogs)
        )(keys, states)
        return states, total + jnp.mean(info.acceptance_rate)

    start = jax.vmap(lambda x: blackjax.hmc.init(x, log_density))(positions)
    zero = jnp.zeros((), positions.dtype)
    states, total = jax.lax.fori_loop(0, steps, step, (start, zero))
    # No step at all rejects nothing.
    count = jnp.maximum(steps, 1).astype(total.dtype)
    return states.position, jnp.where(steps > 0, total / count, 1)
