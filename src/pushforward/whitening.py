"""From a target to coordinates in which it is roughly standard.

The coordinates come from a first look at the target: a short tempered-SMC run, which
sees every mode that a short run can see; for a posterior over minibatches, a Laplace
fit; for a score without a density, a short Langevin run, annealed where the score knows
the noise level.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pushforward.mcmc.annealed import annealed_langevin
from pushforward.mcmc.smc import explore
from pushforward.targets.base import AbstractTarget, MinibatchTarget, picks
from pushforward.targets.coordinates import Whitened, Whitening


class Look(eqx.Module):
    """What a first look at a target gives: coordinates, particles in them, the cost."""

    whitening: Whitening
    particles: Float[Array, "n d"]
    # The full score at the centre, where the target is seen through minibatches.
    centre: Float[Array, " d"] | None
    centre_score: Float[Array, " d"] | None
    # By which its observations are picked (`MinibatchTarget.picking`).
    picks: Int[Array, " rows"] | None
    evaluations: Int[Array, ""]

    def view(self, target: AbstractTarget) -> Whitened:
        """The target in these coordinates, with its control variate if it has one."""
        if isinstance(target, MinibatchTarget):
            # What was not found here, the user may have given.
            own = target.centre, target.centre_score, target.picks
            found = self.centre, self.centre_score, self.picks
            target = eqx.tree_at(
                lambda t: (t.centre, t.centre_score, t.picks),
                target,
                tuple(b if a is None else a for a, b in zip(found, own, strict=True)),
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
    if target.sigma_range is not None:
        if target.dim > ANNEALED_DIM:
            return _blind_look(key, target, particles)
        return annealed_look(key, target, particles=particles)
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
    return Look(whitening, u, None, None, None, run.evaluations)


# A direction counts as flat, and gets a wide but finite scale, where its curvature is
# less than this share of that of the coordinates it is made of.
_FLAT = 1e-8
# Newton's step is taken in directions that are this much flatter than the steepest.
_RANGE = 1e-6
# Half the squared length of a Newton step in sds; the step that is this short is the
# last, as the one after it would be its square.
_ARRIVED = 1e-3
_HALVINGS = 20


def laplace_look(
    key: PRNGKeyArray,
    target: AbstractTarget,
    *,
    particles: int = 2048,
    steps: int = 60,
) -> Look:
    """A Gaussian at the mode with the curvature there: damped Newton on all data."""
    chosen = None
    with jax.default_matmul_precision("highest"):
        mode, factor, taken = _climb(target, steps)
        if isinstance(target, MinibatchTarget):
            chosen = picks(importance(target, mode, factor))
    u = jax.random.normal(key, (particles, target.dim))
    # A Hessian is dim products with a vector, each the price of two scores.
    evaluations = (taken + 2) * (2 * target.dim + 2)
    whitening = Whitening.affine(mode, factor)
    if chosen is not None:
        # A pass over the data at the mode, and one for every direction.
        evaluations = evaluations + 1 + _DIRECTIONS
    return Look(whitening, u, mode, target.score(mode), chosen, evaluations)


# Directions in which the observations are asked how much they tell.
_DIRECTIONS = 8


def importance(
    target: MinibatchTarget, mode: Float[Array, " d"], factor: Float[Array, "d d"]
) -> Float[Array, " n"]:
    """How much each observation's score moves within a posterior sd of the mode.

    The root mean square over a few random directions v of
    `|L' (score_i(m + L v) - score_i(m))|`: to first order the size of the noise that a
    minibatch with the control variate has from this observation.
    """
    dim = target.dim
    # Fixed directions: they decide how often rows are seen, not what is drawn.
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
    identity. So the curvature in a direction that the data hardly tell is computed as
    such, and not as a difference of large numbers, which 32-bit would lose.
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
    return Look(whitening, u, None, None, None, jnp.asarray(particles * steps))


# Up to this dimension a score that knows the noise level is looked at: in more, a
# mixture of the particles is no use, and the score is dear.
ANNEALED_DIM = 64


def annealed_look(
    key: PRNGKeyArray,
    target: AbstractTarget,
    *,
    particles: int = 2048,
    steps: int = 1000,
) -> Look:
    """Annealed Langevin from the highest noise level to the lowest, then denoised.

    At level `sigma` a step is `x + a s(x) + sqrt(2 a) z`, with `a = sigma^2 / 10` (see
    `mcmc.annealed_langevin`). The coordinates stay: noise must stay isotropic.
    """
    assert target.sigma_range is not None
    low, high = target.sigma_range
    start_key, run_key = jax.random.split(key)
    start = high * jax.random.normal(start_key, (particles, target.dim))
    levels = jnp.geomspace(high, low, steps).astype(start.dtype)
    run = annealed_langevin(run_key, target, start, levels, step_ratio=0.1)
    plain = Whitening.identity(target.dim)
    evaluations = jnp.asarray(run.evaluations)
    return Look(plain, run.positions, None, None, None, evaluations)


def _blind_look(key: PRNGKeyArray, target: AbstractTarget, particles: int) -> Look:
    # Smoothed targets keep their own coordinates: noise must stay isotropic.
    u = jax.random.normal(key, (particles, target.dim))
    return Look(Whitening.identity(target.dim), u, None, None, None, jnp.asarray(0))
