"""Whether draws are copies of each other, or nearly."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import stats

from pushforward.diagnostics.permutations import sequential_p_value
from pushforward.diagnostics.two_sample import RobustScaler

# A close pair is one much closer than the k-th neighbour is: the second shows pairs of
# copies, the others groups of up to as many. A narrow mode is not taken for a group
# unless it holds less than this share of the draws.
_RANKS = (2, 10, 50)
_LARGEST = 1 / 8

# How much closer, on the scales on which this is asked.
_RATIOS = 10.0 ** np.arange(-7, 0)

# The share of repeated draws that does no harm: what a Markov chain leaves that rejects
# a move now and then.
TOLERATED = 0.005

# Of more draws a part is looked at, since all pairs are tried.
_MOST, _BLOCK = 5000, 256

# 32-bit numbers of size one differ by this; closer draws may be a rounding apart.
_ROUNDING = 4 * float(np.finfo(np.float32).eps)


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """The nearest neighbour of each draw, and how it compares with those further off.

    Attributes:
        nearest: The row of the nearest.
        ratios: Its distance, in those of the k-th nearest, for each k of `_RANKS`.
    """

    nearest: Int[np.ndarray, " n"]
    ratios: Float[np.ndarray, "n k"]

    @staticmethod
    def of(scaler: RobustScaler, draws: Float[np.ndarray, "n d"]) -> "Neighbours":
        """The neighbours among the draws, in the coordinates of a scaler."""
        # Nothing that is squared overflows.
        x = np.clip(scaler(draws), -1e100, 1e100)
        n = len(x)
        size = np.maximum(np.abs(draws - scaler.centre), np.abs(draws))
        # What 32-bit numbers can tell apart; the bend of a scaler makes nothing larger.
        rounding = _ROUNDING * np.linalg.norm(
            np.maximum(size / scaler.scale, 1.0), axis=1
        )
        last = min(max(_RANKS), n - 1)
        squares = np.sum(x**2, axis=1)
        nearest, distances = np.empty(n, int), np.empty((n, len(_RANKS)))
        first = np.empty(n)
        for start in range(0, n, _BLOCK):
            rows = np.arange(start, min(start + _BLOCK, n))
            away = squares[rows, None] + squares - 2 * x[rows] @ x.T
            away[np.arange(len(rows)), rows] = np.inf
            near = np.argpartition(away, last - 1, axis=1)[:, :last]
            # Again without the cancellation of the above.
            exact = np.linalg.norm(x[near] - x[rows, None], axis=2)
            nearest[rows] = near[np.arange(len(rows)), np.argmin(exact, axis=1)]
            exact = np.sort(exact, axis=1)
            first[rows] = exact[:, 0]
            distances[rows] = exact[:, [min(k, last) - 1 for k in _RANKS]]
        floor = rounding[:, None]
        ratios = np.maximum(first[:, None], floor) / np.maximum(distances, floor)
        return Neighbours(nearest, ratios)

    def close(self, rank: int, ratio: float) -> Int[np.ndarray, "p 2"]:
        """The pairs much closer than the further neighbour, each once."""
        rows = np.flatnonzero(self.ratios[:, rank] < ratio)
        return np.unique(np.sort(np.stack([rows, self.nearest[rows]], 1), 1), axis=0)

    def share(self, rank: int, ratio: float) -> float:
        """The share of the draws that are one of a close pair."""
        return len(np.unique(self.close(rank, ratio))) / len(self.nearest)

    def scan(self) -> tuple[float, int, float]:
        r"""The p-value of the number of close pairs, with the rank and the ratio.

        With $F$ the law of the distance from a draw to another, $F(r_1) / F(r_k)$ is
        distributed like the smallest of $k - 1$ uniform numbers. Where $F(r) / r$ does
        not fall, as for a density that is smooth on the scale of $r_k$, in any number
        of dimensions,

        $$P(r_1 < t r_k) \le 1 - (1 - t)^{k - 1} \le (k - 1) t,  \qquad (1)$$

        and the number of close pairs is at most a Poisson number with the mean
        $n ((k - 1) t + c)$, $c$ being the share of copies that is tolerated.
        Bonferroni's correction is for the number of $k$ and $t$.
        """
        n = len(self.nearest)
        found = [
            (float(stats.poisson.sf(len(self.close(i, t)) - 1, n * mean)), i, -t)
            for i, k in enumerate(_RANKS)
            for t in _RATIOS
            if k == 2 or k <= _LARGEST * n
            if (mean := (k - 1) * t + TOLERATED) < 1
        ]
        # Of several that are equally clear, pairs before groups, and most of them.
        p_value, rank, ratio = min(found)
        return min(1.0, len(found) * p_value), rank, -ratio


@dataclasses.dataclass(frozen=True)
class Repetition:
    """How many draws repeat others.

    Attributes:
        p_value: How often exact draws would repeat as many.
        closeness: How many times as close a draw of a close pair is to the other one as
            to a further neighbour, in the median; 1 where there is no such pair.
        share: The share of the draws that are one of such a pair.
        other_share: The same of the others, where there are any.
    """

    p_value: float
    closeness: float
    share: float
    other_share: float | None


def repetition(
    rng: np.random.Generator,
    scaler: RobustScaler,
    draws: Float[np.ndarray, "n d"],
    others: Float[np.ndarray, "m d"] | None,
    *,
    level: float,
    permutations: int,
) -> Repetition:
    """Whether draws repeat each other more than a density allows, and than others do.

    Where they do the former (`Neighbours.scan`), they may still be right: a law may
    have lumps, or numbers that it takes again and again. Then draws are as close to
    other draws of the law as to each other, and the p-value is the larger of that one
    and that of close pairs among both samples together: how often as many of these
    would be pairs of draws if the labels were permuted.

    Args:
        rng: A generator.
        scaler: Coordinates in which distances are taken.
        draws: The draws.
        others: Draws of the target, nearly independent, where there are any.
        level: A first p-value above this is not looked at again.
        permutations: How many permutations.
    """
    draws = _part(rng, draws)
    found = Neighbours.of(scaler, draws)
    p_value, rank, ratio = found.scan()
    share, other_share = found.share(rank, ratio), None
    if others is not None:
        others = _part(rng, others)
        other_share = Neighbours.of(scaler, others).share(rank, ratio)
    if p_value <= level and others is not None:
        pooled = Neighbours.of(scaler, np.concatenate([draws, others]))
        is_own = np.arange(len(draws) + len(others)) < len(draws)
        _, rank_of_both, ratio_of_both = pooled.scan()
        close = pooled.close(rank_of_both, ratio_of_both)
        among = _pairs_inside(close, is_own)
        replicates = (
            _pairs_inside(close, rng.permutation(is_own)) >= among
            for _ in range(permutations)
        )
        p_value = max(p_value, sequential_p_value(replicates))
    close = found.ratios[found.ratios[:, rank] < ratio, rank]
    closeness = 1 / float(np.median(close)) if len(close) else 1.0
    return Repetition(p_value, closeness, share, other_share)


def _pairs_inside(pairs: Int[np.ndarray, "p 2"], inside: Bool[np.ndarray, " n"]) -> int:
    return int(np.sum(inside[pairs].all(axis=1)))


def _part(rng, draws):
    if len(draws) <= _MOST:
        return draws
    return draws[rng.choice(len(draws), _MOST, replace=False)]
