"""Draws and a reference made by `check` that differ: which of the two is wrong?"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray
from scipy import stats

from pushforward.diagnostics import energies
from pushforward.diagnostics.reference import (
    PARTICLES,
    STIRS,
    Reference,
    generator,
)
from pushforward.diagnostics.two_sample import Frame, SlicedW2
from pushforward.targets.base import AbstractTarget

# Draws are moved as often as the particles of the reference.
MOVES = STIRS * energies.MOVES
_PERMUTATIONS = 1199

# Where shares of draws are compared, as quantiles of the reference's log density; 0 is
# below all of it.
_LEVELS = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


@dataclasses.dataclass(frozen=True)
class Movement:
    """How far draws are from standing still.

    Attributes:
        change: The mean change of the log density.
        error: Its standard error.
        p_value: How often exact draws would move as much.
        what: What moves most clearly.
    """

    change: float
    error: float
    p_value: float
    what: str


def movement(
    key: PRNGKeyArray,
    target: AbstractTarget,
    draws: Float[np.ndarray, "n d"],
    reference: Reference,
) -> Movement:
    """Whether draws stay where they are under the HMC moves that the reference stood.

    Draws `x` that follow the target make `(x, x')` exchangeable, with `x'` where the
    moves lead, since the moves are reversible. Three things are tested, each at a third
    of the level: that the means of the log density and of the coordinates stay
    (`energies.drift`, Bonferroni); that as many draws cross a level of the log density
    upwards as downwards (a sign test at eight levels, Bonferroni), which sees a few
    outliers; and that the moves do not bring the draws nearer to the reference (sliced
    W2, by swapping `x_i` and `x'_i` at random). The reference only says where to look:
    the p-value holds even if it is wrong.

    Args:
        key: Random key.
        target: A target with a density.
        draws: Draws where the density is finite, in unconstrained coordinates.
        reference: What the draws differ from.
    """
    host_key, key = jax.random.split(key)
    before = energies.log_densities(target, draws)
    moved = _stirred(key, target, draws)
    after = np.stack([energies.log_densities(target, part) for part in moved])
    # As under MALA, what ends where nothing is defined counts as not moved.
    lost = ~(np.isfinite(after) & np.isfinite(moved).all(axis=2))
    after = np.where(lost, before, after)
    moved = np.where(lost[:, :, None], draws, moved)

    values = energies.log_densities(target, reference.draws)
    whole = np.column_stack([reference.draws, values])
    frame = Frame.of(whole)
    start = frame(np.column_stack([draws, before]))
    ends = [frame(np.column_stack(pair)) for pair in zip(moved, after, strict=True)]
    names = [*(f"'{name}'" for name in target.names), "the log density"]
    # More than one end of a draw makes their mean less noisy, and no less zero.
    drifts = [
        energies.drift(a, b).p_value
        for a, b in zip(start.T, np.mean(ends, axis=0).T, strict=True)
    ]
    worst = int(np.argmin(drifts))
    crossings = _crossings(before, after[0], np.quantile(values, _LEVELS))
    distance = SlicedW2(generator(host_key), start.shape[1])
    nearer = distance.approach(start, ends[0], frame(whole), permutations=_PERMUTATIONS)
    found = [
        (len(drifts) * drifts[worst], f"the mean of {names[worst]}"),
        (len(_LEVELS) * min(crossings), "the share of draws of low or high density"),
        (nearer.p_value, "the distance to the reference (sliced W2)"),
    ]
    p_value, what = min(found)
    change = energies.drift(before, np.mean(after, axis=0))
    return Movement(change.mean, change.error, min(1.0, len(found) * p_value), what)


def _stirred(key, target, draws):
    """Where the moves lead, once or more often for each draw.

    Blocks of as many rows as the reference has particles: nothing is compiled for the
    number of draws.
    """
    n, dim = draws.shape
    copies = min(4, max(1, PARTICLES // n))
    rows = np.arange(-(-copies * n // PARTICLES) * PARTICLES) % n
    blocks = []
    for i, block in enumerate(np.split(draws[rows], len(rows) // PARTICLES)):
        positions = jnp.asarray(block, float)
        for stir_key in jax.random.split(jax.random.fold_in(key, i), STIRS):
            positions = energies.stir(stir_key, target, positions)
        blocks.append(np.asarray(positions, np.float64))
    return np.concatenate(blocks)[: copies * n].reshape(copies, n, dim)


def _crossings(before, after, levels):
    for level in levels:
        up = int(np.sum((before < level) & (after >= level)))
        down = int(np.sum((before >= level) & (after < level)))
        yield stats.binomtest(up, up + down).pvalue if up + down else 1.0
