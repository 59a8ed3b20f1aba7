"""Log densities and scores of draws, in blocks, and how many evaluations that takes."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from pushforward import _programs
from pushforward.sampler import Sampler
from pushforward.targets.base import AbstractTarget

# Draws are evaluated in blocks of this size, so that their number compiles nothing.
BLOCK = 2048
# The share of draws of density zero above which nothing can be passed. Arithmetic in 32
# bits loses the density of a few exact draws; more are the sampler's or the density's
# fault.
MAX_OUTSIDE = 0.01


def padded(n: int) -> int:
    """`n` rounded up to whole blocks: the evaluations that `n` draws take."""
    return -(-n // BLOCK) * BLOCK


def log_densities(
    target: AbstractTarget, draws: Float[np.ndarray, "n d"]
) -> Float[np.ndarray, " n"]:
    """The un-normalised log density at each draw."""
    return _in_blocks(_log_density_block, target, draws)


def own_log_densities(
    sampler: Sampler, draws: Float[np.ndarray, "n d"]
) -> Float[np.ndarray, " n"]:
    """The log density of the sampler itself at each draw; it costs no evaluation."""
    return _in_blocks(_own_log_density_block, sampler, draws)


def scores(
    target: AbstractTarget, draws: Float[np.ndarray, "n d"]
) -> Float[np.ndarray, "n d"]:
    """The score at each draw, over all data where there are data."""
    return _in_blocks(_score_block, target, draws)


@dataclasses.dataclass(frozen=True)
class Sample:
    """Draws with what the target says about each.

    Attributes:
        draws: In unconstrained coordinates.
        log_densities: Log densities, all finite; None where the target has no density.
        noisy: The points at which the scores were taken: the draws, or draws with the
            least noise of a noise-conditional target, whose score is of those.
        scores: The score at each of them, finite or not.
        infinite: How many draws were left out because their log density is +inf.
    """

    draws: Float[np.ndarray, "n d"]
    log_densities: Float[np.ndarray, " n"] | None
    noisy: Float[np.ndarray, "n d"]
    scores: Float[np.ndarray, "n d"]
    infinite: int = 0

    @staticmethod
    def of(
        rng: np.random.Generator,
        target: AbstractTarget,
        draws: Float[np.ndarray, "n d"],
    ) -> tuple["Sample", int]:
        """The draws where the density is not zero, and the number of the others.

        It is zero where its log is not a finite number. Of a target without a density
        the score must be finite.
        """
        noisy = draws
        least_noise, _ = target.noise_range
        if least_noise > 0:
            noise = rng.standard_normal(draws.shape)
            noisy = draws + least_noise * noise
        slopes = scores(target, noisy)
        values, infinite = None, 0
        if target.why_no_density() is None:
            values = log_densities(target, draws)
            infinite = int(np.sum(np.isposinf(values)))
            inside = np.isfinite(values)
            values = values[inside]
        else:
            inside = np.isfinite(slopes).all(axis=1)
        sample = Sample(draws[inside], values, noisy[inside], slopes[inside], infinite)
        return sample, int(np.sum(~inside))

    @property
    def scored(self) -> "Sample":
        """The draws whose score is finite."""
        finite = np.isfinite(self.scores).all(axis=1)
        values = None if self.log_densities is None else self.log_densities[finite]
        return Sample(
            self.draws[finite], values, self.noisy[finite], self.scores[finite]
        )

    @staticmethod
    def evaluations(target: AbstractTarget, n: int) -> int:
        """What `of` costs for `n` draws."""
        return padded(n) * (2 if target.why_no_density() is None else 1)


@_programs.compiled
def _log_density_block(target, block):
    return target.map(target.log_density, block)


@_programs.compiled
def _own_log_density_block(sampler, block):
    return sampler.log_prob(block)


@_programs.compiled
def _score_block(target, block):
    return target.map(target.score, block)


def _in_blocks(function, of, draws):
    parts = []
    for start in range(0, len(draws), BLOCK):
        part = draws[start : start + BLOCK]
        rows = np.arange(BLOCK) % len(part)
        values = function(of, jnp.asarray(part[rows], float))
        parts.append(np.asarray(values, np.float64)[: len(part)])
    return np.concatenate(parts)
