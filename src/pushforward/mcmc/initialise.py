"""Initialisation: coordinates in which a target is roughly standard, and particles.

For a log density they come from a short run of tempered SMC, for a posterior seen
through minibatches from a Laplace approximation, for a score without a density from a
short run of Langevin dynamics, which is annealed where the score depends on the noise
level.
"""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pushforward.mcmc.annealed import annealed_langevin
from pushforward.mcmc.copies import divide, divides
from pushforward.mcmc.smc import repeated_smc
from pushforward.targets.base import (
    AbstractTarget,
    NoiseConditionalTarget,
    ScoreTarget,
    VarianceReduction,
)
from pushforward.targets.minibatch import MinibatchTarget, sampling_table
from pushforward.targets.one_copy import Copy, OneCopy
from pushforward.targets.preconditioner import Preconditioned, Preconditioner


class Initialisation(eqx.Module):
    """Where a training starts from.

    Attributes:
        preconditioner: coordinates in which the target is roughly standard.
        particles: approximate draws of the target, in these coordinates.
        variance_reduction: what makes minibatches less noisy, where there are any.
        evaluations: how many evaluations of the target all this took.
        copy: which copy of the target is learnt, where it has a symmetry that is
            divided out.
    """

    preconditioner: Preconditioner
    particles: Float[Array, "n d"]
    variance_reduction: VarianceReduction
    evaluations: Int[Array, ""]
    copy: Copy | None = None

    def precondition(self, target: AbstractTarget) -> Preconditioned:
        """The target in these coordinates, with its variance reduced."""
        reduced = target.reduce_variance(self.variance_reduction)
        if self.copy is not None:
            reduced = OneCopy(reduced, self.copy)
        return Preconditioned(reduced, self.preconditioner)

    def seen_in(self, preconditioner: Preconditioner) -> "Initialisation":
        """The same particles in other coordinates."""

        def move(u):
            return preconditioner.from_target(self.preconditioner.to_target(u))

        particles = jax.vmap(move)(self.particles)
        return dataclasses.replace(
            self, preconditioner=preconditioner, particles=particles
        )


# What an initialisation takes for each of its particles, about: tempered SMC moves them
# at some twenty temperatures in its two rounds, Langevin dynamics a thousand times.
EVALUATIONS_PER_PARTICLE = 1500
# Coordinates are not found from fewer.
LEAST_PARTICLES = 64

# Quantiles of the standard normal at 75 % and 99 %.
_Q75, _Q99 = 0.6744898, 2.3263479
# Tails are bent only where the 98 % range is this much wider than a Gaussian's.
_HEAVY = 1.4
_MAX_TAILS = 2.0


def from_particles(x: Float[Array, "n d"], *, bend: bool = True) -> Preconditioner:
    """The preconditioner under which the particles have mean 0 and covariance I."""
    n, dim = x.shape
    low, q25, q75, high = jnp.quantile(x, jnp.array([0.01, 0.25, 0.75, 0.99]), axis=0)
    centre = jnp.median(x, axis=0)
    deviation = jnp.std(x, axis=0)
    # A collapsed run repeats its particles: the quartiles may coincide.
    middle = jnp.maximum(q75 - q25, 1e-3 * deviation)
    ratio = (high - low) / middle
    # sinh(t Q99)/sinh(t Q75) grows with t: invert it on a table.
    table = jnp.linspace(1e-3, _MAX_TAILS, 400)
    ratios = jnp.sinh(table * _Q99) / jnp.sinh(table * _Q75)
    tails = jnp.interp(ratio, ratios, table)
    tails = jnp.where((ratio > _HEAVY * _Q99 / _Q75) & bend, tails, 0.0)
    width = middle * jnp.where(
        tails > 0, tails / (2 * jnp.sinh(tails * _Q75) + 1e-9), 1.0
    )
    scale = jnp.where(tails > 0, width, deviation)
    scale = jnp.maximum(scale, jnp.finfo(x.dtype).tiny * 1e6)
    plain = Preconditioner(
        centre, scale, tails, jnp.zeros(dim, x.dtype), jnp.eye(dim, dtype=x.dtype)
    )
    v = jax.vmap(plain.from_target)(x)
    shift = jnp.mean(v, axis=0)
    centred = v - shift[None]
    covariance = centred.T @ centred / n + 1e-6 * jnp.eye(dim, dtype=x.dtype)
    factor = jnp.linalg.cholesky(covariance)
    return eqx.tree_at(lambda w: (w.shift, w.factor), plain, (shift, factor))


def initialise(
    key: PRNGKeyArray, target: AbstractTarget, *, particles: int = 2048
) -> Initialisation:
    """The initialisation that suits the kind of target; pure and jit-able.

    Args:
        key: random key.
        target: a target of any kind; for a kind of your own see
            `register_initialisation`.
        particles: how many particles.
    """
    how = _initialise.dispatch(target.kind)
    if not divides(target):
        return how(target, key, particles)
    copy_key, key = jax.random.split(key)
    one, spent = divide(copy_key, target)
    found = how(one, key, particles)
    return dataclasses.replace(
        found, copy=one.copy, evaluations=found.evaluations + spent
    )


@functools.singledispatch
def _initialise(
    target: AbstractTarget, key: PRNGKeyArray, particles: int
) -> Initialisation:
    return initialise_by_smc(key, target, particles=particles)


@_initialise.register(ScoreTarget)
def _(target, key, particles):
    return initialise_by_langevin(key, target, particles=particles)


@_initialise.register(MinibatchTarget)
def _(target, key, particles):
    return initialise_by_laplace(key, target, particles=particles)


@_initialise.register(NoiseConditionalTarget)
def _(target, key, particles):
    if target.dim > ANNEALED_DIM:
        return _initialise_without_particles(key, target, particles)
    return initialise_by_annealing(key, target, particles=particles)


# For a kind of target of your own: `register_initialisation(Kind, function)` with a
# `function(target, key, particles)` that returns an `Initialisation`.
register_initialisation = _initialise.register


def initialise_by_smc(
    key: PRNGKeyArray, target: AbstractTarget, *, particles: int = 2048
) -> Initialisation:
    """A short tempered-SMC run in two rounds (`mcmc.repeated_smc`)."""
    run = repeated_smc(key, target, particles=particles)
    preconditioner = from_particles(run.positions)
    u = jax.vmap(preconditioner.from_target)(run.positions)
    return Initialisation(preconditioner, u, VarianceReduction(), run.evaluations)


# A direction gets a wide but finite scale where its curvature is less than this share
# of the curvature in the coordinates that it combines.
_FLAT = 1e-8
# Curvatures below this share of the largest are raised to it for a Newton step.
_RANGE = 1e-6
# Half the squared length, in standard deviations, of the last Newton step: the length
# of the next would be about its square.
_ARRIVED = 1e-3
_HALVINGS = 20


def initialise_by_laplace(
    key: PRNGKeyArray,
    target: AbstractTarget,
    *,
    particles: int = 2048,
    steps: int = 60,
) -> Initialisation:
    """A Gaussian at the mode with the curvature there: damped Newton on all data."""
    with jax.default_matmul_precision("highest"):
        mode, factor, taken = _climb(target, steps)
        weights = importance(target, mode, factor)
        table = None if weights is None else sampling_table(weights)
    u = jax.random.normal(key, (particles, target.dim))
    # A Hessian is dim products with a vector, each as expensive as two scores.
    evaluations = (taken + 2) * (2 * target.dim + 2)
    if table is not None:
        # A pass over the data at the mode, and one for every direction.
        evaluations = evaluations + 1 + _DIRECTIONS
    reduction = VarianceReduction(mode, target.score(mode), table)
    preconditioner = Preconditioner.affine(mode, factor)
    return Initialisation(preconditioner, u, reduction, evaluations)


# Random directions along which the importance of an observation is measured.
_DIRECTIONS = 8


@functools.singledispatch
def importance(
    target: AbstractTarget, mode: Float[Array, " d"], factor: Float[Array, "d d"]
) -> Float[Array, " n"] | None:
    """How much each observation's score moves within a posterior sd of the mode.

    The root mean square over a few random directions v of
    `|L' (score_i(m + L v) - score_i(m))|`: to first order the size of the noise that a
    minibatch with the control variate has from this observation. None where the target
    has no observations.
    """
    return None


@importance.register(MinibatchTarget)
def _(target, mode, factor):
    dim = target.dim
    # A fixed key: directions decide how often rows are seen, not what is drawn.
    directions = jax.random.normal(jax.random.key(0), (_DIRECTIONS, dim))

    def of_row(datum):
        def score(x):
            parameters = target.structure.unflatten
            return jax.grad(lambda y: target.log_likelihood(parameters(y), datum))(x)

        here = score(mode)
        moved = jax.vmap(lambda v: factor.T @ (score(mode + factor @ v) - here))
        return jnp.sqrt(jnp.mean(jnp.sum(moved(directions) ** 2, axis=1)))

    return jax.lax.map(of_row, target.data, batch_size=4096)


def _climb(
    target: AbstractTarget, steps: int
) -> tuple[Float[Array, " d"], Float[Array, "d d"], Int[Array, ""]]:
    """The mode, a lower factor of the covariance there, the number of Newton steps.

    A step is taken in coordinates `x + L v` in which the curvature before it was the
    identity. So a small curvature in a direction that the data hardly constrain is not
    a difference of large numbers, which 32-bit would lose.
    """
    dim = target.dim

    def energy(x):
        return -target.log_density(x)

    def curvature(x, factor):
        """`L' H L`, by products of the Hessian with the columns of L."""
        products = jax.lax.map(
            lambda v: jax.jvp(jax.grad(energy), (x,), (v,))[1], factor.T, batch_size=8
        )
        found = products @ factor
        return 0.5 * (found + found.T)

    start = jnp.zeros(dim)
    own = jnp.abs(jnp.diagonal(curvature(start, jnp.eye(dim))))
    own = jnp.maximum(own, _RANGE * jnp.max(own))

    def whiten(x, factor):
        """The factor in which the curvature at x is the identity, up to its signs."""
        ridge = _FLAT * (factor.T * own[None]) @ factor
        values, vectors = jnp.linalg.eigh(curvature(x, factor) + ridge)
        sizes = jnp.maximum(jnp.abs(values), _RANGE * jnp.max(jnp.abs(values)))
        return factor @ (vectors / jnp.sqrt(sizes)[None])

    def unfinished(carry):
        _, _, taken, decrement = carry
        return (taken < steps) & (decrement > _ARRIVED)

    def newton(carry):
        x, factor, taken, _ = carry
        factor = whiten(x, factor)
        here, gradient = jax.value_and_grad(energy)(x)
        step = -factor.T @ gradient
        decrement = 0.5 * jnp.sum(step**2)
        # What the rounding of a sum over all data may hide.
        slack = 32 * jnp.finfo(x.dtype).eps * jnp.abs(here)

        def too_far(carry):
            size, count = carry
            there = energy(x + size * (factor @ step))
            enough = there <= here - 1e-4 * size * decrement + slack
            # Written so that a value that is not a number is too far.
            return ~enough & (count < _HALVINGS)

        size, _ = jax.lax.while_loop(
            too_far,
            lambda carry: (0.5 * carry[0], carry[1] + 1),
            (jnp.ones((), x.dtype), jnp.zeros((), jnp.int32)),
        )
        # A damped step is not the last, however short.
        decrement = jnp.where(size < 1, jnp.inf, decrement)
        return x + size * (factor @ step), factor, taken + 1, decrement

    first = start, jnp.diag(1 / jnp.sqrt(own)), jnp.zeros((), jnp.int32), jnp.inf
    mode, factor, taken, _ = jax.lax.while_loop(unfinished, newton, first)
    # Any factor of the covariance L L' will do, and whitenings have a lower one.
    _, upper = jnp.linalg.qr(whiten(mode, factor).T)
    signs = jnp.where(jnp.diagonal(upper) < 0, -1.0, 1.0)
    return mode, upper.T * signs[None], taken


def initialise_by_langevin(
    key: PRNGKeyArray,
    target: AbstractTarget,
    *,
    particles: int = 2048,
    steps: int = 1000,
) -> Initialisation:
    """Unadjusted Langevin from N(0, 9 I), where only a score is known."""
    dim = target.dim

    def step(x, i):
        score = jax.vmap(target.score)(x)
        size = jnp.minimum(0.05 * dim / jnp.mean(jnp.sum(score**2, axis=1)), 1.0)
        noise = jax.random.normal(jax.random.fold_in(key, i), x.shape)
        return x + size * score + jnp.sqrt(2 * size) * noise, None

    start = 3.0 * jax.random.normal(jax.random.fold_in(key, steps), (particles, dim))
    x, _ = jax.lax.scan(step, start, jnp.arange(steps))
    preconditioner = from_particles(x)
    u = jax.vmap(preconditioner.from_target)(x)
    evaluations = jnp.asarray(particles * steps)
    return Initialisation(preconditioner, u, VarianceReduction(), evaluations)


# Above this dimension a score that depends on the noise level is not explored: a
# mixture of the particles would say little, and evaluations are expensive.
ANNEALED_DIM = 64


def initialise_by_annealing(
    key: PRNGKeyArray,
    target: AbstractTarget,
    *,
    particles: int = 2048,
    steps: int = 1000,
) -> Initialisation:
    """Annealed Langevin from the highest noise level to the lowest, then denoised.

    At level `sigma` a step is `x + a s(x) + sqrt(2 a) z`, with `a = sigma^2 / 10` (see
    `mcmc.annealed_langevin`). The coordinates stay: noise must stay isotropic.
    """
    low, high = target.require_noise_levels("Annealed Langevin dynamics")
    start_key, run_key = jax.random.split(key)
    start = high * jax.random.normal(start_key, (particles, target.dim))
    levels = jnp.geomspace(high, low, steps).astype(start.dtype)
    run = annealed_langevin(run_key, target, start, levels, step_ratio=0.1)
    identity = Preconditioner.identity(target.dim)
    evaluations = jnp.asarray(run.evaluations)
    return Initialisation(identity, run.positions, VarianceReduction(), evaluations)


def _initialise_without_particles(
    key: PRNGKeyArray, target: AbstractTarget, particles: int
) -> Initialisation:
    # Smoothed targets keep their own coordinates: noise must stay isotropic.
    u = jax.random.normal(key, (particles, target.dim))
    identity = Preconditioner.identity(target.dim)
    return Initialisation(identity, u, VarianceReduction(), jnp.asarray(0))
