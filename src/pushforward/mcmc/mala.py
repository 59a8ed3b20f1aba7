"""MALA: the smallest exact improvement of a set of draws."""

from typing import Any

import blackjax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward.errors import UsageError
from pushforward.mcmc.spread import spread
from pushforward.targets.base import AbstractTarget


class MALAResult(eqx.Module):
    """Moved points and the share of proposals that was accepted."""

    positions: Float[Array, "n d"]
    acceptance: Float[Array, ""]


@eqx.filter_jit
def mala(
    key: PRNGKeyArray,
    target: AbstractTarget,
    positions: Float[Array, "n d"],
    steps: int,
    *,
    step_size: float | Float[Array, ""] | None = None,
) -> MALAResult:
    """`steps` steps of MALA from each of n points, in the points' own scale.

    Proposals are preconditioned by the points' covariance. Without `step_size` the
    step follows the acceptance rate towards .57 over the first half of the steps and is
    fixed from then on (after which the chain is exact).
    """
    n, dim = positions.shape
    mean, covariance = spread(positions)
    factor = jnp.linalg.cholesky(covariance)
    inverse = jnp.linalg.inv(factor)

    def log_density(u):
        return target.log_density(mean + factor @ u)

    kernel = blackjax.mala.build_kernel()
    u = (positions - mean[None]) @ inverse.T
    start = jax.vmap(lambda v: blackjax.mala.init(v, log_density))(u)
    size0 = 0.5 * dim ** (-1 / 3) if step_size is None else step_size
    size0 = jnp.asarray(size0, positions.dtype)

    def step(carry, i):
        states, size = carry
        keys = jax.random.split(jax.random.fold_in(key, i), n)
        moved, info = jax.vmap(lambda k, s: kernel(k, s, log_density, size))(
            keys, states
        )
        rates = jnp.where(jnp.isnan(info.acceptance_rate), 0.0, info.acceptance_rate)
        rate = jnp.mean(rates)
        adapting = (step_size is None) & (i < steps // 2)
        size = jnp.where(adapting, size * jnp.exp(rate - 0.57), size)
        return (moved, size), rate

    (states, _), rates = jax.lax.scan(step, (start, size0), jnp.arange(steps))
    return MALAResult(mean[None] + states.position @ factor.T, jnp.mean(rates))


def refine(key: PRNGKeyArray, target: AbstractTarget, draws: Any, steps: int) -> Any:
    """Buys exactness: `steps` MALA steps from each draw, in the user's own tree.

    Args:
        key: random key.
        target: a target with a log density.
        draws: draws in the user's own tree, as `Sampler.sample` returns them.
        steps: how many steps; each costs one evaluation of the score per draw.

    Returns:
        As many draws, closer to the target.
    """
    if not target.has_density:
        raise UsageError(
            "refine needs a log density, and a "
            f"{type(target).__name__} has only a score."
        )
    if steps < 0:
        raise UsageError(f"steps must not be negative, and it is {steps}.")
    flat = target.structure.flatten_draws(draws)
    if steps == 0:
        return draws
    moved = mala(key, target, flat, steps).positions
    return jax.vmap(target.structure.unflatten)(moved)
