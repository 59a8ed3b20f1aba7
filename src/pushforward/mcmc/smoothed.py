"""A density with Gaussian noise: its score at every level, from the density alone.

With `x = x0 + sigma eps`, the score at level `sigma` is a mean over the points that `x`
may have come from, whose density is `q(x0) N(x; x0, sigma^2)`:

    s(x, sigma) = E[grad log q(x0)] = E[(x0 - x) / sigma^2].

The points are proposed from two sides: `x + sigma eps`, which serve where the noise is
small, and particles of an exploration, which serve where it is large. All are weighted
by what both together propose (the balance heuristic), so that no weight is large where
either side would do. Of the two integrands each is nearly constant where the other
varies; the combination that varies least over the points is taken, which for a Gaussian
does not vary at all.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward import _programs
from pushforward._validate import whole_number
from pushforward.errors import UsageError
from pushforward.mcmc.exploration import explore
from pushforward.targets.arguments import as_target, one_key
from pushforward.targets.base import AbstractTarget, NoiseConditionalTarget

# The lowest level, in widths of the narrowest mode, and the highest, in standard
# deviations of the particles.
_LOWEST, _HIGHEST = 0.1, 1.0


class SmoothedScore(eqx.Module):
    """The score of a target with noise, as a function of a point and the level.

    Attributes:
        target: the target without noise.
        directions: the `eps` of the proposals, in pairs with opposite signs.
        particles: draws of the target, roughly.
        log_densities: its normalised log density at the particles.
        scores: its score there.
        log_normaliser: its log normaliser.
    """

    target: AbstractTarget
    directions: Float[Array, "k d"]
    particles: Float[Array, "n d"]
    log_densities: Float[Array, " n"]
    scores: Float[Array, "n d"]
    log_normaliser: Float[Array, ""]

    def __call__(self, x: Any, sigma: Float[Array, ""]) -> Any:
        """The gradient of the smoothed log density at `x`, a tree like it."""
        structure = self.target.structure
        # Parameters are linear in the coordinates, and so are gradients.
        return structure.unflatten(self.at(structure.flatten(x), sigma))

    def at(self, x: Float[Array, " d"], sigma: Float[Array, ""]) -> Float[Array, " d"]:
        """The score at a point of coordinates."""
        dim = x.shape[0]
        near = x[None] + sigma * self.directions
        values, slopes = jax.vmap(self.target.value_and_score)(near)
        points = jnp.concatenate([near, self.particles])
        log_q = jnp.concatenate([values - self.log_normaliser, self.log_densities])
        slopes = jnp.concatenate([slopes, self.scores])
        known = jnp.isfinite(log_q) & jnp.all(jnp.isfinite(slopes), axis=1)
        log_q = jnp.where(known, log_q, -jnp.inf)
        slopes = jnp.where(known[:, None], slopes, 0.0)
        pulls = (points - x[None]) / sigma**2
        constant = dim * (0.5 * math.log(2 * math.pi) + jnp.log(sigma))
        log_n = -0.5 * sigma**2 * jnp.sum(pulls**2, axis=1) - constant
        # How many points either side has, of those at x0.
        both = jnp.logaddexp(
            math.log(len(self.directions)) + log_n,
            math.log(len(self.particles)) + log_q,
        )
        log_w = jnp.where(known, log_q + log_n - both, -jnp.inf)
        w = jax.nn.softmax(jnp.where(jnp.any(known), log_w, 0.0))
        slope, pull = w @ slopes, w @ pulls
        apart = (slopes - slope[None]) - (pulls - pull[None])
        share = jnp.sum(w[:, None] * (pull[None] - pulls) * apart)
        share = share / jnp.maximum(
            jnp.sum(w[:, None] * apart**2), jnp.finfo(x.dtype).tiny
        )
        return pull + jnp.clip(share, 0.0, 1.0) * (slope - pull)


def smooth(
    key: PRNGKeyArray,
    target: AbstractTarget,
    *,
    sigma_range: tuple[float, float] | None = None,
    num_proposals: int = 64,
    num_particles: int = 512,
    max_evaluations: int | None = None,
) -> NoiseConditionalTarget:
    """A plain density at every noise level, for networks without an inverse.

    The methods `DFT`, `KL` and `Fisher` train on it as on any target of noise levels:
    the network's draws follow the density itself.

    Args:
        key: random key: for the exploration, and for proposals.
        target: a target with a log density and no constraints.
        sigma_range: the lowest and the highest noise level; by default a tenth of the
            narrowest width of a mode, and the largest standard deviation.
        num_proposals: how many points around `x` are evaluated for one score; it is
            what one evaluation of the smoothed target costs.
        num_particles: how many particles of the exploration are used; they cost nothing
            more.
        max_evaluations: the budget of the exploration, as for `explore`.

    Returns:
        A target whose score at one point and level is the same in every call. It has no
        symmetry, even where `target` has one: the score from a number of points has it
        only roughly.
    """
    key, target = one_key(key), as_target(target)
    target.require_values("smooth")
    for leaf in target.structure.leaves:
        if not leaf.constraint.bijection.isometric:
            where = f" on {leaf.name!r}" if leaf.name else ""
            raise UsageError(
                f"smooth cannot add noise under the constraint '{leaf.constraint}'"
                f"{where}; write the density of the unconstrained parameter."
            )
    whole_number("num_proposals", num_proposals, 2)
    whole_number("num_particles", num_particles, 2)
    explore_key, noise_key, choice_key = jax.random.split(key, 3)
    found = explore(explore_key, target, max_evaluations=max_evaluations)
    if sigma_range is None:
        # The lengths of the columns, which are the axes.
        widths = np.sqrt(np.sum(found.mode_axes**2, axis=1))
        spread = np.std(np.asarray(found.particles), axis=0)
        sigma_range = (
            _LOWEST * float(np.min(widths)),
            _HIGHEST * float(np.max(spread)),
        )
    half = jax.random.normal(noise_key, (-(-num_proposals // 2), target.dim))
    score = _prepare(
        target,
        jnp.concatenate([half, -half]),
        jax.random.permutation(choice_key, found.particles)[:num_particles],
        jnp.asarray(found.log_normaliser, float),
    )
    structure = target.structure
    example = jax.tree.map(lambda s: np.zeros(s.shape), structure.shapes())
    constraints = {leaf.name: leaf.constraint for leaf in structure.leaves}
    # Without its symmetry: a score from random points has it only roughly.
    return NoiseConditionalTarget(
        score,
        sigma_range=sigma_range,
        example=example,
        constraints=constraints,
        sample=target.sample_fn,
    )


@_programs.compiled
def _prepare(target, directions, particles, log_normaliser) -> SmoothedScore:
    values, scores = jax.vmap(target.value_and_score)(particles)
    return SmoothedScore(
        target,
        directions,
        particles,
        values - log_normaliser,
        scores,
        log_normaliser,
    )
