"""Tempered sequential Monte Carlo: particles from the whole target."""

from collections.abc import Callable

import blackjax
import blackjax.smc.adaptive_tempered as adaptive
import blackjax.smc.resampling as resampling
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from pushforward.mcmc.moments import mean_and_covariance
from pushforward.targets.base import AbstractTarget


class Particles(eqx.Module):
    """Equally weighted particles of a run, and what it cost.

    Attributes:
        positions: The particles.
        log_normaliser: The log of the integral of the un-normalised density, as the
            run estimates it. It means nothing unless the run has finished.
        inverse_temperature: Where the run ended; 1 is the target.
        finished: Whether the particles follow the target, not a tempered density: the
            inverse temperature reached 1, and the final mutations were made there.
        num_temperatures: How many temperatures there were, final mutations included.
        acceptance: The mean acceptance probability of the last moves.
        ancestors: How many of the first particles have descendants among the last.
        evaluations: The number of target evaluations.
    """

    positions: Float[Array, "n d"]
    log_normaliser: Float[Array, ""]
    inverse_temperature: Float[Array, ""]
    finished: Bool[Array, ""]
    num_temperatures: Int[Array, ""]
    acceptance: Float[Array, ""]
    ancestors: Int[Array, ""]
    evaluations: Int[Array, ""]


# A run that has not finished after this many temperatures is given up.
MAX_TEMPERATURES = 60

_MOVES, _LEAPFROGS = 8, 4

# What one temperature costs each particle.
EVALUATIONS_PER_TEMPERATURE = _MOVES * (_LEAPFROGS + 1)


def tempered_smc(
    key: PRNGKeyArray,
    target: AbstractTarget,
    start: Float[Array, "n d"],
    mean: Float[Array, " d"],
    factor: Float[Array, "d d"],
    *,
    moves: int = _MOVES,
    leapfrogs: int = _LEAPFROGS,
    final_mutations: int = 3,
    max_temperatures: int | Int[Array, ""] = MAX_TEMPERATURES,
) -> Particles:
    """Moves particles from N(mean, factor factor') to the target by adaptive tempering.

    The path is `log N + beta (log q - log N)`; the next `beta` keeps the effective
    sample size at half. Moves are HMC, preconditioned by the particles' own covariance,
    each particle with its own random step size (targets such as funnels have no single
    right one), around a scale that follows the acceptance rate.

    Args:
        key: Random key.
        target: A target with a log density.
        start: Particles drawn from N(mean, factor factor').
        mean: Mean of the starting Gaussian.
        factor: Lower-triangular factor of its covariance.
        moves: HMC moves at each temperature.
        leapfrogs: Leapfrog steps of one move.
        final_mutations: How often the particles are moved again at temperature one;
            at least 1.
        max_temperatures: The run ends here, finished or not.
    """
    inverse = jnp.linalg.inv(factor)
    run = temper(
        key,
        target.log_density,
        lambda x: -0.5 * jnp.sum((inverse @ (x - mean)) ** 2),
        start,
        moves=moves,
        leapfrogs=leapfrogs,
        final_mutations=final_mutations,
        max_temperatures=max_temperatures,
    )
    # The increments estimate ratios to the integral of the base.
    log_integral = 0.5 * start.shape[1] * jnp.log(2 * jnp.pi) + jnp.sum(
        jnp.log(jnp.abs(jnp.diagonal(factor)))
    )
    return eqx.tree_at(
        lambda r: r.log_normaliser, run, run.log_normaliser + log_integral
    )


def temper(
    key: PRNGKeyArray,
    log_density: Callable[[Float[Array, " d"]], Float[Array, ""]],
    log_base: Callable[[Float[Array, " d"]], Float[Array, ""]],
    start: Float[Array, "n d"],
    *,
    moves: int = _MOVES,
    leapfrogs: int = _LEAPFROGS,
    final_mutations: int = 3,
    max_temperatures: int | Int[Array, ""] = MAX_TEMPERATURES,
    full_metric: bool = True,
) -> Particles:
    """Adaptive tempering from any density to another; `log_normaliser` is a ratio.

    Args:
        key: Random key.
        log_density: The un-normalised log density where the path ends.
        log_base: The log density where it begins; where it is normalised, the log
            normaliser of the run is that of `log_density`.
        start: Draws of the base.
        moves: HMC moves at each temperature.
        leapfrogs: Leapfrog steps of one move.
        final_mutations: How often the particles are moved again at temperature one.
        max_temperatures: The run ends here, finished or not.
        full_metric: Precondition by the covariance of the particles; otherwise by their
            variances, which a few particles in many dimensions still determine.
    """
    n = start.shape[0]
    tiny = jnp.finfo(start.dtype).min / 1e3

    def log_ratio(x):
        # A point where the density is not defined is a point of no density.
        value = log_density(x) - log_base(x)
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
        covariance = mean_and_covariance(particles)[1]
        metric = covariance if full_metric else jnp.diagonal(covariance)
        return {
            "step_size": (scale * sizes).astype(start.dtype),
            "inverse_mass_matrix": metric[None],
        }

    def temper(carry):
        state, scale, evidence, count, mutations, _, roots = carry
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
            mutations + arrived.astype(jnp.int32),
            accepted,
            roots[info.ancestors],
        )

    def unfinished(carry):
        _, _, _, count, mutations, _, _ = carry
        return (mutations < final_mutations) & (count < max_temperatures)

    state = adaptive.init(start)
    one = jnp.ones((), start.dtype)
    state = state._replace(tempering_param=0 * one)
    zero = jnp.int32(0)
    first = (state, 0.5 * one, 0 * one, zero, zero, one, jnp.arange(n))
    # One loop for the path and for the final mutations (whose weights are all equal):
    # the program is half as long to compile.
    carry = jax.lax.while_loop(unfinished, temper, first)
    state, _, evidence, count, mutations, accepted, roots = carry
    return Particles(
        positions=jnp.asarray(state.particles),
        log_normaliser=evidence,
        inverse_temperature=jnp.asarray(state.tempering_param),
        # BlackJAX moves at the old temperature and weighs towards the new one: on the
        # step that reaches 1 the particles still follow the previous density.
        finished=mutations >= final_mutations,
        num_temperatures=count,
        acceptance=accepted,
        ancestors=jnp.sum(jnp.bincount(roots, length=n) > 0),
        evaluations=n * count * moves * (leapfrogs + 1),
    )


def repeated_smc(
    key: PRNGKeyArray,
    target: AbstractTarget,
    *,
    particles: int = 2048,
    rounds: int = 2,
    start_scale: float = 3.0,
    max_temperatures: int | Int[Array, ""] = MAX_TEMPERATURES,
) -> Particles:
    """Tempered SMC from N(0, start_scale^2 I), then again from what it found.

    The second run starts from a Gaussian with 1.5 times the spread of the first one's
    particles, so that a target far from the origin or of another scale is approached
    twice. `evaluations` counts all rounds.

    Args:
        key: Random key.
        target: A target with a log density.
        particles: How many particles.
        rounds: How many runs, each from where the one before it ended.
        start_scale: The standard deviation of the first starting Gaussian.
        max_temperatures: The largest number of temperatures of each run.
    """
    dim = target.dim

    def one_round(carry, i):
        mean, factor = carry
        start_key, run_key = jax.random.split(jax.random.fold_in(key, i))
        z = jax.random.normal(start_key, (particles, dim))
        start = mean[None] + z @ factor.T
        run = tempered_smc(
            run_key, target, start, mean, factor, max_temperatures=max_temperatures
        )
        mean, covariance = mean_and_covariance(run.positions)
        factor = 1.5 * jnp.linalg.cholesky(covariance)
        return (mean, factor), run

    start = (jnp.zeros(dim), start_scale * jnp.eye(dim))
    _, runs = jax.lax.scan(one_round, start, jnp.arange(rounds))
    last = jax.tree.map(lambda a: a[-1], runs)
    return eqx.tree_at(lambda p: p.evaluations, last, jnp.sum(runs.evaluations))
