"""Tempered sequential Monte Carlo: a short look at the whole target."""

import blackjax
import blackjax.smc.adaptive_tempered as adaptive
import blackjax.smc.resampling as resampling
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pushforward.mcmc.spread import spread
from pushforward.targets.base import AbstractTarget


class Particles(eqx.Module):
    """Equally weighted particles at temperature one, and what they cost."""

    positions: Float[Array, "n d"]
    log_normaliser: Float[Array, ""]
    temperature: Float[Array, ""]
    rungs: Int[Array, ""]
    acceptance: Float[Array, ""]
    ancestors: Int[Array, ""]
    evaluations: Int[Array, ""]


# A run that has not reached temperature one after this many rungs has not arrived.
MAX_RUNGS = 60


def tempered_smc(
    key: PRNGKeyArray,
    target: AbstractTarget,
    start: Float[Array, "n d"],
    mean: Float[Array, " d"],
    factor: Float[Array, "d d"],
    *,
    moves: int = 8,
    leapfrogs: int = 4,
    closing_rungs: int = 3,
) -> Particles:
    """Moves particles from N(mean, factor factor') to the target by adaptive tempering.

    The path is `log N + beta (log q - log N)`; the next `beta` keeps the effective
    sample size at half. Moves are HMC, preconditioned by the particles' own covariance,
    each particle with its own random step size (targets such as funnels have no single
    right one), around a scale that follows the acceptance rate.

    Args:
        key: random key.
        target: a target with a log density.
        start: particles drawn from N(mean, factor factor').
        mean: mean of the starting Gaussian.
        factor: lower-triangular factor of its covariance.
        moves: HMC moves at each temperature.
        leapfrogs: leapfrog steps of one move.
        closing_rungs: rungs at temperature one, after it has been reached.
    """
    n = start.shape[0]
    inverse = jnp.linalg.inv(factor)
    tiny = jnp.finfo(start.dtype).min / 1e3

    def log_base(x):
        return -0.5 * jnp.sum((inverse @ (x - mean)) ** 2)

    def log_ratio(x):
        # A point where the density is not defined is a point of no density.
        value = target.log_density(x) - log_base(x)
        return jnp.where(jnp.isnan(value), tiny, jnp.clip(value, tiny, -tiny))

    hmc = blackjax.hmc.build_kernel()

    def move(key, state, log_density, step_size, inverse_mass_matrix):
        return hmc(key, state, log_density, step_size, inverse_mass_matrix, leapfrogs)

    kernel = adaptive.build_kernel(
        log_base,
        log_ratio,
        move,
        blackjax.hmc.init,
        resampling.systematic,
        target_ess=0.5,
    )

    def parameters(key, particles, scale):
        sizes = jnp.exp(jax.random.uniform(key, (n,), minval=-2.0, maxval=0.3))
        return {
            "step_size": (scale * sizes).astype(start.dtype),
            "inverse_mass_matrix": spread(particles)[1][None],
        }

    def rung(carry):
        state, scale, evidence, count, closed, _, roots = carry
        arrived = state.tempering_param >= 1.0
        tune_key, move_key = jax.random.split(jax.random.fold_in(key, count))
        tuned = parameters(tune_key, state.particles, scale)
        new, info = kernel(move_key, state, moves, tuned)
        rates = info.update_info.acceptance_rate
        accepted = jnp.mean(jnp.where(jnp.isnan(rates), 0.0, rates))
        return (
            new,
            jnp.clip(scale * jnp.exp(2.0 * (accepted - 0.7)), 1e-3, 1.5),
            evidence + info.log_likelihood_increment,
            count + 1,
            closed + arrived.astype(jnp.int32),
            accepted,
            roots[info.ancestors],
        )

    def unfinished(carry):
        _, _, _, count, closed, _, _ = carry
        return (closed < closing_rungs) & (count < MAX_RUNGS)

    state = adaptive.init(start)
    one = jnp.ones((), start.dtype)
    state = state._replace(tempering_param=0 * one)
    zero = jnp.int32(0)
    first = (state, 0.5 * one, 0 * one, zero, zero, one, jnp.arange(n))
    # One loop for the way and for the rungs at its end (whose weights are all equal):
    # the program is half as long to compile.
    carry = jax.lax.while_loop(unfinished, rung, first)
    state, _, evidence, count, _, accepted, roots = carry
    return Particles(
        positions=jnp.asarray(state.particles),
        log_normaliser=evidence,
        temperature=jnp.asarray(state.tempering_param),
        rungs=count,
        acceptance=accepted,
        ancestors=jnp.sum(jnp.bincount(roots, length=n) > 0),
        evaluations=n * count * moves * (leapfrogs + 1),
    )


def explore(
    key: PRNGKeyArray,
    target: AbstractTarget,
    *,
    particles: int = 2048,
    rounds: int = 2,
    start_scale: float = 3.0,
) -> Particles:
    """Tempered SMC from N(0, start_scale^2 I), then again from what it found.

    The second run starts from a Gaussian with 1.5 times the spread of the first one's
    particles, so that a target far from the origin or of another scale is approached
    twice. `evaluations` counts all rounds.
    """
    dim = target.dim

    def one_round(carry, i):
        mean, factor = carry
        start_key, run_key = jax.random.split(jax.random.fold_in(key, i))
        z = jax.random.normal(start_key, (particles, dim))
        run = tempered_smc(run_key, target, mean[None] + z @ factor.T, mean, factor)
        mean, covariance = spread(run.positions)
        factor = 1.5 * jnp.linalg.cholesky(covariance)
        return (mean, factor), run

    start = (jnp.zeros(dim), start_scale * jnp.eye(dim))
    _, runs = jax.lax.scan(one_round, start, jnp.arange(rounds))
    last = jax.tree.map(lambda a: a[-1], runs)
    return eqx.tree_at(lambda p: p.evaluations, last, jnp.sum(runs.evaluations))
