"""A second look at a density that does not seem to fall: from where its mass is.

Seen from points around the origin a proper density may rise for a long way before it
falls: with a log scale as a coordinate, the density of a regression grows towards
residuals of any size. From its highest point it falls at once.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward import _programs
from pushforward.mcmc.ascent import ascend, log_uniform_starts
from pushforward.targets import probing
from pushforward.targets.base import AbstractTarget
from pushforward.targets.examine import direction, seems

# Ascents, as many as sums over data allow.
_ASCENTS, _FEW_ASCENTS, _MAX_TERMS = 64, 4, 500_000
# Points around the highest one: an improper density is flat from each of them, and a
# narrow ridge of a proper one, such as the neck of a funnel, from almost none. Fewer,
# as of the ascents, where each value is a sum over many data.
_BASES, _FEW_BASES, _SPREAD = 8, 2, 0.5
# The width of a coordinate is the first of these distances at which the log density has
# fallen so far; in more dimensions it is taken to be 1.
_DISTANCES, _FALL, _MAX_DIM = 10.0 ** np.arange(-9, 9.1, 0.5), 2.0, 256
# No density with a finite integral has a point so high that an ascent could find.
_TOO_HIGH = 1e20
# Suspects beyond these are much like them.
_MAX_SUSPECTS = 16


@dataclasses.dataclass(frozen=True)
class SecondLook:
    """What a second look found.

    Attributes:
        flat: a direction in which the density cannot be normalised, if there is one.
        settled: whether all suspicions were confirmed or refuted.
        height: the log density of the highest point found.
        distance: how far from the origin that is.
    """

    flat: probing.Flat | None
    settled: bool
    height: float
    distance: float

    def sentence(self, target: AbstractTarget) -> str:
        """What is wrong, with the evidence."""
        assert self.flat is not None
        (t0, near), (t1, far) = self.flat.near, self.flat.far
        unit = float(np.linalg.norm(self.flat.direction))
        start = f"at the highest point found, {self.distance:.3g} from the origin,"
        if t0 > 0:
            start = f"at a distance of {t0 * unit:.3g} from the highest point found"
        seen = f"{near:.4g} {start} and {far:.4g} at {t1 * unit:.3g} from there"
        if self.height > _TOO_HIGH:
            seen = f"{near:.4g} at the origin and {far:.4g} at {self.distance:.3g}"
        return (
            f"The density {seems(self.flat)} in the direction "
            f"{direction(target, self.flat)} (its log is {seen}): it cannot be "
            "normalised, and draws would run away; is a prior missing, or a sign wrong?"
        )


def look_again(
    key: PRNGKeyArray, target: AbstractTarget, suspects: tuple[probing.Flat, ...]
) -> SecondLook:
    """Looks whether a density falls in all directions from its highest point.

    Many ascents find that point. From there, and from points beside it, the suspect
    directions, the axes, random directions and the way on from the origin are followed
    in units of the widths of the density there.

    Args:
        key: random key.
        target: a target with a log density.
        suspects: directions in which it does not seem to fall.
    """
    climb_key, base_key, look_key = jax.random.split(key, 3)
    n = max(_FEW_ASCENTS, min(_ASCENTS, _MAX_TERMS // target.num_terms))
    top, height = (np.asarray(a, np.float64) for a in _climb(climb_key, target, n))
    height, distance = float(height), float(np.linalg.norm(top))
    if not np.isfinite(height):
        return SecondLook(None, False, height, distance)
    ahead = [top / distance] if distance > 0 else []
    if height > _TOO_HIGH and ahead:
        origin = float(probing.evaluate(target, np.zeros((1, target.dim))).values[0])
        flat = probing.Flat(ahead[0], (0.0, origin), (distance, height), falls=False)
        return SecondLook(flat, True, height, distance)
    low, high = _widths(target, top, height)
    count = _BASES if n == _ASCENTS else _FEW_BASES
    steps = np.array(jax.random.normal(base_key, (count, target.dim)), np.float64)
    # The first base is the highest point itself.
    steps[0] = 0.0
    bases = top + _SPREAD * low * steps
    bases = bases[np.isfinite(probing.evaluate(target, bases).values)]
    if not len(bases):
        return SecondLook(None, False, height, distance)
    lines = [each.direction for each in suspects[:_MAX_SUSPECTS]] + ahead
    rng = np.random.default_rng(np.asarray(jax.random.key_data(look_key)).ravel())
    found, settled = probing.flat_from(target, rng, bases, high, lines, height)
    return SecondLook(found[0] if found else None, settled, height, distance)


@_programs.compiled
def _climb(
    key: PRNGKeyArray, target: AbstractTarget, n: int
) -> tuple[Float[Array, " d"], Float[Array, ""]]:
    """The highest point of n ascents, and the log density there."""
    centre, scale = jnp.zeros(target.dim, float), jnp.ones(target.dim, float)
    starts, sizes = log_uniform_starts(key, n, centre, scale, 0.1, 100.0)
    best, heights = ascend(target.log_density, starts, sizes)
    top = jnp.argmax(heights)
    return best[top], heights[top]


def _widths(
    target: AbstractTarget, top: Float[np.ndarray, " d"], height: float
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]:
    """How far each coordinate goes until the density has fallen: to either side.

    The shorter way comes first, then the longer.
    """
    dim = len(top)
    if dim > _MAX_DIM:
        return np.ones(dim), np.ones(dim)
    lines = np.concatenate([np.eye(dim), -np.eye(dim)])
    walks = top + _DISTANCES[:, None] * lines[:, None, :]
    values = probing.evaluate(target, walks.reshape(-1, dim)).values
    fallen = ~(values.reshape(2 * dim, -1) > height - _FALL)
    first = np.where(fallen.any(axis=1), fallen.argmax(axis=1), len(_DISTANCES) - 1)
    sides = _DISTANCES[first].reshape(2, dim)
    return sides.min(axis=0), sides.max(axis=0)
