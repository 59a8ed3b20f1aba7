"""Rank statistics: whether posteriors are calibrated over many simulated data sets.

Where parameters are drawn from the prior, data from the model at these parameters, and
draws from the posterior of these data, the rank of the parameter among the draws is
uniform (Talts et al., 2018). The empirical distribution of the ranks is held against a
band that uniform ranks leave at no point, in no parameter, with the chosen probability
(Säilynoja, Bürkner and Vehtari, 2022).
"""

import dataclasses
import functools

import numpy as np
from jaxtyping import Float, Int
from scipy import stats

from pushforward.errors import UsageError

# Simulations of uniform ranks for the band, and the points it is looked at.
_SIMULATIONS, _POINTS = 20_000, 64
# With fewer ranks no band tells anything.
MIN_RANKS = 8


@dataclasses.dataclass(frozen=True)
class Ranks:
    """Ranks of parameters among draws of their posteriors.

    Attributes:
        ranks: For each number of the parameters, by its name, the rank in each data
            set: how many of the draws are below the parameter.
        num_draws: How many draws there are for each data set.
        level: The chance that calibrated posteriors leave the band anywhere.
    """

    ranks: dict[str, Int[np.ndarray, " n"]]
    num_draws: int
    level: float = 0.01

    def __post_init__(self):
        sizes = {len(ranks) for ranks in self.ranks.values()}
        if len(sizes) != 1 or min(sizes) < MIN_RANKS:
            raise UsageError(
                f"Rank statistics need at least {MIN_RANKS} data sets, the same for "
                f"all parameters, and got {sorted(sizes)}."
            )

    @property
    def num_data_sets(self) -> int:
        """How many data sets were simulated."""
        return len(next(iter(self.ranks.values())))

    @property
    def pit(self) -> dict[str, Float[np.ndarray, " n"]]:
        """The ranks as numbers between 0 and 1, for ArviZ's `plot_ecdf_pit`."""
        return {
            name: (ranks + 0.5) / (self.num_draws + 1)
            for name, ranks in self.ranks.items()
        }

    @property
    def outside(self) -> tuple[str, ...]:
        """The parameters whose ranks leave the band, the worst first."""
        points = _points(self.num_draws)
        worst = {
            name: float(_extreme(_counts(ranks, self.num_draws), len(ranks), points))
            for name, ranks in self.ranks.items()
        }
        least = _least(self.num_data_sets, self.num_draws, len(worst), self.level)
        return tuple(
            n for n in sorted(worst, key=lambda n: worst[n]) if worst[n] < least
        )

    @property
    def inside(self) -> bool:
        """Whether the ranks of all parameters are inside the band."""
        return not self.outside

    def __str__(self) -> str:
        head = (
            f"Ranks of {len(self.ranks)} parameters in {self.num_data_sets} data sets, "
            f"among {self.num_draws} draws each:\n  "
        )
        percent = f"{100 * (1 - self.level):g} % band"
        if self.inside:
            return head + f"all of them are inside the simultaneous {percent}"
        names = ", ".join(self.outside[:6]) + (" ..." if len(self.outside) > 6 else "")
        return head + f"{names}: outside the simultaneous {percent}"


def _points(num_draws: int) -> Float[np.ndarray, " k"]:
    """Chances at which the distribution of uniform ranks is looked at."""
    edges = _edges(num_draws)
    return edges / (num_draws + 1)


def _edges(num_draws: int) -> Int[np.ndarray, " k"]:
    """Ranks below these are counted."""
    count = min(_POINTS, num_draws)
    return np.unique(np.linspace(1, num_draws, count).round().astype(int))


def _counts(ranks: Int[np.ndarray, "... n"], num_draws: int):
    """How many of the ranks are below each edge."""
    edges = _edges(num_draws)
    return (np.asarray(ranks)[..., None] < edges).sum(axis=-2)


def _extreme(counts, n: int, points):
    """The least of twice the smaller tail of each count; small is far from uniform."""
    low, high = _tails(n, tuple(points.tolist()))
    columns = np.arange(len(points))
    tails = np.minimum(low[counts, columns], high[counts, columns])
    return (2 * tails).min(axis=-1)


@functools.cache
def _tails(n: int, points: tuple[float, ...]):
    counts = np.arange(n + 1)[:, None]
    chances = np.array(points)[None]
    below = stats.binom.cdf(counts, n, chances)
    above = stats.binom.sf(counts - 1, n, chances)
    return below, above


@functools.cache
def _least(n: int, num_draws: int, parameters: int, level: float) -> float:
    """What the extreme of calibrated ranks is below, in any parameter, at this level.

    As if the parameters were independent, which is the worst case.
    """
    rng, points = np.random.default_rng(0), _points(num_draws)
    extremes = []
    for _ in range(20):
        ranks = rng.integers(0, num_draws + 1, (_SIMULATIONS // 20, n))
        extremes.append(_extreme(_counts(ranks, num_draws), n, points))
    share = 1 - (1 - level) ** (1 / parameters)
    return float(np.quantile(np.concatenate(extremes), share))
