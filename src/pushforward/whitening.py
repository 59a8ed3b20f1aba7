"""From a target to coordinates in which it is roughly standard.

The coordinates come from a first look at the target: a short tempered-SMC run, which
sees every mode that a short run can see; for a posterior over minibatches, a Laplace
fit; for a score without a density, a short Langevin run.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pushforward.mcmc.smc import explore
from pushforward.targets.base import AbstractTarget, MinibatchTarget
from pushforward.targets.coordinates import Whitened, Whitening


class Look(eqx.Module):
    """What a first look at a target gives: coordinates, particles in them, the cost."""

    whitening: Whitening
    particles: Float[Array, "n d"]
    # The full score at the centre, where the target is seen through minibatches.
    centre: Float[Array, " d"] | None
    centre_score: Float[Array, " d"] | None
    evaluations: Int[Array, ""]

    def view(self, target: AbstractTarget) -> Whitened:
        """The target in these coordinates, with its control variate if it has one."""
        if isinstance(target, MinibatchTarget):
            target = eqx.tree_at(
                lambda t: (t.centre, t.centre_score),
                target,
                (self.centre, self.centre_score),
                is_leaf=lambda leaf: leaf is None,
            )
        return Whitened(target, self.whitening)


# Quantiles of the standard normal at 75 % and 99 %.
_Q75, _Q99 = 0.6744898, 2.3263479
# Tails are bent only where the 98 % range is this much wider than a Gaussian's.
_HEAVY = 1.4
_MAX_TAILS = 2.0


def from_particles(x: Float[Array, "n d"], *, bend: bool = True) -> Whitening:
    """The whitening whose `u` have mean 0 and covariance I over the particles."""
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
    plain = Whitening(
        centre, scale, tails, jnp.zeros(dim, x.dtype), jnp.eye(dim, dtype=x.dtype)
    )
    v = jax.vmap(plain.from_target)(x)
    shift = jnp.mean(v, axis=0)
    centred = v - shift[None]
    covariance = centred.T @ centred / n + 1e-6 * jnp.eye(dim, dtype=x.dtype)
    factor = jnp.linalg.cholesky(covariance)
    return eqx.tree_at(lambda w: (w.shift, w.factor), plain, (shift, factor))


def look(key: PRNGKeyArray, target: AbstractTarget, *, particles: int = 2048) -> Look:
    """The first look that suits the kind of target; pure and jit-able."""
    if target.is_noise_conditional:
        return _blind_look(key, target, particles)
    if isinstance(target, MinibatchTarget):
        return laplace_look(key, target, particles=particles)
    if not target.has_density:
        return langevin_look(key, target, particles=particles)
    return smc_look(key, target, particles=particles)


def smc_look(
    key: PRNGKeyArray, target: AbstractTarget, *, particles: int = 2048
) -> Look:
    """A short tempered-SMC run in two rounds (`mcmc.explore`)."""
    run = explore(key, target, particles=particles)
    whitening = from_particles(run.positions)
    u = jax.vmap(whitening.from_target)(run.positions)
    return Look(whitening, u, None, None, run.evaluations)


def laplace_look(
    key: PRNGKeyArray,
    target: AbstractTarget,
    *,
    particles: int = 2048,
    steps: int = 200,
) -> Look:
    """A Gaussian at the mode with the curvature there: L-BFGS on the full density."""
    dim = target.dim

    def energy(x):
        return -target.log_density(x)

    optimiser = optax.lbfgs()
    evaluate = optax.value_and_grad_from_state(energy)

    def step(carry, _):
        x, state = carry
        value, grad = evaluate(x, state=state)
        # optax mixes integers and floats, which a program in strict mode refuses.
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimiser.update(
                grad, state, x, value=value, grad=grad, value_fn=energy
            )
        return (optax.apply_updates(x, updates), state), None

    start = jnp.zeros(dim)
    mode: Any
    (mode, _), _ = jax.lax.scan(
        step, (start, optimiser.init(start)), None, length=steps
    )
    hessian = jax.lax.map(
        lambda v: jax.jvp(jax.grad(energy), (mode,), (v,))[1], jnp.eye(dim)
    )
    values, vectors = jnp.linalg.eigh(0.5 * (hessian + hessian.T))
    # Directions of no curvature get a wide but finite scale.
    values = jnp.maximum(values, 1e-6 * jnp.max(values))
    covariance = (vectors / values[None]) @ vectors.T
    whitening = Whitening.affine(mode, jnp.linalg.cholesky(covariance))
    u = jax.random.normal(key, (particles, dim))
    evaluations = jnp.asarray(steps * 2 + dim)
    return Look(whitening, u, mode, target.score(mode), evaluations)


def langevin_look(
    key: PRNGKeyArray,
    target: AbstractTarget,
    *,
    particles: int = 2048,
    steps: int = 1000,
) -> Look:
    """Unadjusted Langevin from N(0, 9 I), where only a score is known."""
    dim = target.dim

    def step(x, i):
        score = jax.vmap(target.score)(x)
        size = jnp.minimum(0.05 * dim / jnp.mean(jnp.sum(score**2, axis=1)), 1.0)
        noise = jax.random.normal(jax.random.fold_in(key, i), x.shape)
        return x + size * score + jnp.sqrt(2 * size) * noise, None

    start = 3.0 * jax.random.normal(jax.random.fold_in(key, steps), (particles, dim))
    x, _ = jax.lax.scan(step, start, jnp.arange(steps))
    whitening = from_particles(x)
    u = jax.vmap(whitening.from_target)(x)
    return Look(whitening, u, None, None, jnp.asarray(particles * steps))


def _blind_look(key: PRNGKeyArray, target: AbstractTarget, particles: int) -> Look:
    # Smoothed targets keep their own coordinates: noise must stay isotropic.
    u = jax.random.normal(key, (particles, target.dim))
    return Look(Whitening.identity(target.dim), u, None, None, jnp.asarray(0))
