"""Hamiltonian Monte Carlo with a fixed number of leapfrog steps."""

import functools

import blackjax
import equinox as eqx
import jax
import jax.numpy as jnp
from blackjax.mcmc.hmc import hmc_proposal
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward import _validate
from pushforward.errors import UsageError
from pushforward.mcmc.result import MCMCResult
from pushforward.targets.base import AbstractTarget


def hmc(
    key: PRNGKeyArray,
    target: AbstractTarget,
    positions: Float[Array, "n d"],
    steps: int,
    *,
    step_size: float | Float[Array, ""],
    leapfrogs: int,
    adjusted: bool = True,
) -> MCMCResult:
    """`steps` steps of HMC with unit masses from each of n points.

    A step draws a momentum from N(0, I), follows it for `leapfrogs` leapfrog steps of
    size `step_size`, and accepts the end point by the Metropolis rule. The first steps
    of a longer run are those of a shorter one with the same key, and neither count is
    compiled in.

    Args:
        key: Random key.
        target: A target; a minibatch target is seen through all of its data.
        positions: Where the n chains start.
        steps: How many steps; each costs `leapfrogs` gradients per chain.
        step_size: Size of one leapfrog step.
        leapfrogs: Leapfrog steps of one step.
        adjusted: Whether there is an accept step. Without one only the score is used,
            and the chains keep a bias of the order of `step_size**2`.
    """
    _validate.whole_number("steps", steps, 0)
    _validate.whole_number("leapfrogs", leapfrogs)
    if adjusted:
        reason = target.why_no_density()
        if reason is not None:
            raise UsageError(
                f"The accept step of hmc needs a log density, but {reason}; ask for "
                "adjusted=False."
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
    evaluations = positions.shape[0] * (1 + steps * leapfrogs)
    return MCMCResult(ends, evaluations, acceptance)


@eqx.filter_jit
def _walk(key, target, positions, steps, step_size, leapfrogs, *, adjusted):
    n, dim = positions.shape
    masses = jnp.ones(dim, positions.dtype)

    def log_density(x):
        if adjusted:
            return target.log_density(x)
        # Only the gradient is used: the score.
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
    # Without any step nothing is rejected.
    count = jnp.maximum(steps, 1).astype(total.dtype)
    return states.position, jnp.where(steps > 0, total / count, 1)
