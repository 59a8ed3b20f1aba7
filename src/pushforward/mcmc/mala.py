"""The Metropolis-adjusted Langevin algorithm (MALA)."""

import blackjax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward.mcmc.moments import mean_and_covariance
from pushforward.targets.base import AbstractTarget


class MALAResult(eqx.Module):
    """Where the chains ended, and how they moved.

    Attributes:
        positions: The last point of each chain.
        acceptance: The mean acceptance probability over all steps and chains.
        accepted: For each chain the share of proposals that were accepted.
        step_size: The step size of the last step.
        evaluations: The number of log densities with gradient that were computed.
    """

    positions: Float[Array, "n d"]
    acceptance: Float[Array, ""]
    accepted: Float[Array, " n"]
    step_size: Float[Array, ""]
    evaluations: int = eqx.field(static=True)


@eqx.filter_jit
def mala(
    key: PRNGKeyArray,
    target: AbstractTarget,
    positions: Float[Array, "n d"],
    steps: int,
    *,
    step_size: float | Float[Array, ""] | None = None,
    covariance: Float[Array, "d d"] | None = None,
) -> MALAResult:
    """`steps` steps of MALA from each of n points, in preconditioned coordinates.

    With both `step_size` and `covariance` given, every step is the same reversible
    kernel. Otherwise the kernel depends on the points themselves.

    Args:
        key: Random key.
        target: A target with a log density.
        positions: Where the n chains start.
        steps: How many steps.
        step_size: The size of a step. By default it follows the acceptance rate
            towards .57 over the first half of the steps and is fixed from then on.
        covariance: Preconditions the proposals. By default that of the points.
    """
    n, dim = positions.shape
    mean, own_covariance = mean_and_covariance(positions)
    covariance = own_covariance if covariance is None else covariance
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
        states, size, accepted = carry
        keys = jax.random.split(jax.random.fold_in(key, i), n)
        moved, info = jax.vmap(lambda k, s: kernel(k, s, log_density, size))(
            keys, states
        )
        rates = jnp.where(jnp.isnan(info.acceptance_rate), 0.0, info.acceptance_rate)
        rate = jnp.mean(rates)
        adapting = (step_size is None) & (i < steps // 2)
        size = jnp.where(adapting, size * jnp.exp(rate - 0.57), size)
        accepted = accepted + info.is_accepted.astype(accepted.dtype)
        return (moved, size, accepted), rate

    first = (start, size0, jnp.zeros(n, positions.dtype))
    (states, size, accepted), rates = jax.lax.scan(step, first, jnp.arange(steps))
    return MALAResult(
        positions=mean[None] + states.position @ factor.T,
        acceptance=jnp.mean(rates),
        accepted=accepted / max(steps, 1),
        step_size=size,
        evaluations=n * (steps + 1),
    )
