"""Every parameter alone: its summary, and how far it is from the reference."""

import dataclasses
import math

import numpy as np
from jaxtyping import Float
from scipy import stats

# The chance that exact draws leave the band in any parameter.
FALSE_ALARMS = 0.01
# The quantiles whose differences make up the error of a parameter.
_LEVELS = np.arange(1, 100) / 100
# The central 90 % of a Gaussian, in standard deviations.
_GAUSSIAN_RANGE = 3.2897
_POINTS = 120


@dataclasses.dataclass(frozen=True)
class Errors:
    """How far draws are from the reference, parameter by parameter.

    Attributes:
        errors: The mean distance between the quantiles of both, at the levels of 1 % to
            99 %, in standard deviations of the reference.
        distances: The Kolmogorov-Smirnov distance.
    """

    errors: Float[np.ndarray, " d"]
    distances: Float[np.ndarray, " d"]

    @staticmethod
    def of(
        draws: Float[np.ndarray, "n d"], reference: Float[np.ndarray, "m d"]
    ) -> "Errors":
        """The errors of `draws` against `reference`."""
        ours, theirs = (np.quantile(x, _LEVELS, axis=0) for x in (draws, reference))
        gaps = np.mean(np.abs(ours - theirs), axis=0)
        columns = zip(draws.T, reference.T, strict=True)
        distances = [np.abs(ecdf_gap(a, b)).max() for a, b in columns]
        return Errors(gaps / spread(reference), np.array(distances))


def spread(x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " d"]:
    """The standard deviation of each column, however heavy its tails.

    Where the tails are heavier than a Gaussian's, it is that of the Gaussian with the
    same central 90 %: a variance may not exist, and errors in units of a large number
    would look small.
    """
    deviation = np.std(x, axis=0)
    low, high = np.quantile(x, [0.05, 0.95], axis=0)
    central = (high - low) / _GAUSSIAN_RANGE
    scale = np.where(central > 0, np.minimum(central, deviation), deviation)
    return np.where(scale > 0, scale, 1.0)


def ecdf_gap(
    draws: Float[np.ndarray, " n"], reference: Float[np.ndarray, " m"]
) -> Float[np.ndarray, " m"]:
    """`F(x) - G(x)` at each reference draw: F of the draws, G of the reference.

    With `u = G(x)` it is the empirical distribution of the probability integral
    transform of the draws, less its expectation u.
    """
    at = np.sort(reference)
    below = np.searchsorted(np.sort(draws), at, side="right") / len(draws)
    # Of equal draws the last has the rank of all.
    rank = np.searchsorted(at, at, side="right") / len(at)
    return below - rank


def band(n: int, m: int, parameters: int) -> float:
    """How far two samples of one law stay apart, everywhere and in all parameters.

    Kolmogorov's law for samples of n and m, at the level 0.01 shared by the parameters:
    a simultaneous band, and the test of marginals of the verdict as a picture.
    """
    quantile = stats.kstwobign.isf(FALSE_ALARMS / parameters)
    return float(quantile * math.sqrt(1 / n + 1 / m))


def curve(
    draws: Float[np.ndarray, " n"], reference: Float[np.ndarray, " m"]
) -> Float[np.ndarray, "k"]:
    """`ecdf_gap` at some evenly spaced levels, of which `levels` are the first axis."""
    gap = ecdf_gap(draws, reference)
    return gap[np.linspace(0, len(gap) - 1, min(_POINTS, len(gap))).astype(int)]
