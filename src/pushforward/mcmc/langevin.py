"""Langevin dynamics without an accept step: with all data, and with minibatches."""

from collections.abc import Callable
from typing import Any

import blackjax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward import _validate
from pushforward.errors import UsageError
from pushforward.mcmc.result import MCMCResult
from pushforward.targets.base import AbstractTarget


class SGLDResult(eqx.Module):
    """Where the chains ended, the last points of each, and the number of scores."""

    positions: Float[Array, "n d"]
    kept: Float[Array, "n keep d"]
    evaluations: int = eqx.field(static=True)


def langevin(
    key: PRNGKeyArray,
    target: AbstractTarget,
    positions: Float[Array, "n d"],
    steps: int,
    *,
    step_size: float | Float[Array, ""],
) -> MCMCResult:
    """`steps` steps of unadjusted Langevin dynamics from each of n points.

    With the step size h, the score s and a standard Gaussian z, one step is
    `x + h s(x) + sqrt(2 h) z`. A minibatch target is seen through all of its data. The
    first steps of a longer run are those of a shorter one with the same key, and the
    number of steps is not compiled in.
    """
    _validate.whole_number("steps", steps, 0)
    size = jnp.asarray(step_size, positions.dtype)
    count = jnp.asarray(steps, jnp.int32)
    ends, _ = _walk(key, target, positions, count, size, keep=0, minibatch=False)
    return MCMCResult(ends, positions.shape[0] * steps)


def sgld(
    key: PRNGKeyArray,
    target: AbstractTarget,
    positions: Float[Array, "n d"],
    steps: int,
    *,
    step_size: float | Float[Array, ""] | Callable[[Float[Array, ""]], Any],
    keep: int = 1,
) -> SGLDResult:
    """Stochastic-gradient Langevin dynamics: a fresh minibatch at each step and chain.

    Args:
        key: Random key.
        target: Usually a `MinibatchTarget`; other kinds are seen as they are.
        positions: Where the n chains start.
        steps: How many steps; each costs one score of a minibatch per chain.
        step_size: H in `x + h s(x) + sqrt(2 h) z`, or a function of the number of steps
            done (0, 1, ... as a float) that returns it.
        keep: How many of the last points of each chain are returned, oldest first.
    """
    if not 0 <= keep <= steps:
        raise UsageError(
            f"sgld keeps the last points of {steps} steps, so keep must lie between 0 "
            f"and {steps}, and it is {keep}."
        )
    size = step_size
    if not callable(size):
        size = jnp.asarray(size, positions.dtype)
    count = jnp.asarray(steps, jnp.int32)
    ends, kept = _walk(key, target, positions, count, size, keep=keep, minibatch=True)
    return SGLDResult(ends, kept, positions.shape[0] * steps)


@eqx.filter_jit
def _walk(key, target, positions, steps, step_size, *, keep, minibatch):
    n, dtype = positions.shape[0], positions.dtype
    kernel = blackjax.sgld.build_kernel()

    def score(x, key):
        return target.score(x, key=key)

    def step(i, carry):
        x, trail = carry
        size = step_size(i.astype(dtype)) if callable(step_size) else step_size
        size = jnp.asarray(size, dtype)

        def move(key, x):
            noise, batch = jax.random.split(key)
            return kernel(noise, x, score, batch if minibatch else None, size)

        keys = jax.random.split(jax.random.fold_in(key, i), n)
        x = jax.vmap(move)(keys, x)
        # A ring: slot `i mod keep` holds the newest of the last `keep` points.
        return x, trail.at[i % keep].set(x) if keep else trail

    trail = jnp.zeros((keep, *positions.shape), dtype)
    ends, trail = jax.lax.fori_loop(0, steps, step, (positions, trail))
    if keep:
        trail = jnp.roll(trail, -(steps % keep), axis=0)
    return ends, jnp.swapaxes(trail, 0, 1)
