"""Whether as many draws lie far out as should, whatever their bulk looks like."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from scipy.special import betainc

from pushforward.diagnostics.permutations import sequential_p_value
from pushforward.diagnostics.two_sample import RobustScaler

# Of both samples together the outermost 5 % are looked at, and at most so many.
_SHARE, _MOST = 0.05, 500

# The handicap of what is less telling than tails that are missing all around, or that
# reach beyond all of the reference: a line with points of both samples beyond it, and
# all coordinates together.
_BOTH, _COORDINATES = 20.0, 20.0


@dataclasses.dataclass(frozen=True)
class Directions:
    """Numbers that are large where a point is far out, one a column.

    Attributes:
        values: The numbers, one row a point.
        names: Where a point with a large number lies, in words.
        handicaps: By what the p-values of each are multiplied.
    """

    values: Float[np.ndarray, "n k"]
    names: tuple[str, ...]
    handicaps: Float[np.ndarray, " k"]

    @staticmethod
    def of(
        scaler: RobustScaler,
        names: Sequence[str],
        draws: Float[np.ndarray, "n d"],
        further: Mapping[str, Float[np.ndarray, " n"] | None],
    ) -> "Directions":
        """Distance from the centre, each coordinate both ways, and further numbers.

        Args:
            scaler: Coordinates in which distances are taken.
            names: The names of the coordinates.
            draws: The points.
            further: Numbers that are small far out, by name; None is left out.
        """
        x = np.clip(scaler(draws), -1e100, 1e100)
        given = {k: v for k, v in further.items() if v is not None}
        # What is not a number is as far out as can be.
        columns = [np.nan_to_num(-v, nan=np.inf, posinf=np.inf) for v in given.values()]
        values = [*columns, np.linalg.norm(x, axis=1), *(-x).T, *x.T]
        words = [f"{name} is low" for name in given]
        words.append("the distance from the centre is large")
        words += [f"'{name}' is low" for name in names]
        words += [f"'{name}' is high" for name in names]
        dim = x.shape[1]
        handicaps = np.repeat([1.0, _COORDINATES * dim], [len(given) + 1, 2 * dim])
        return Directions(np.column_stack(values), tuple(words), handicaps)


@dataclasses.dataclass(frozen=True)
class TailComparison:
    """Where the tails of two samples differ most.

    Attributes:
        p_value: How often samples of one law would differ as much.
        where: Where that is, in words.
        share: The share of the draws beyond that place.
        reference: The share of the reference beyond it.
    """

    p_value: float
    where: str
    share: float
    reference: float


def compare_extremes(
    rng: np.random.Generator,
    own: Directions,
    other: Directions,
    weights: Float[np.ndarray, " m"],
    *,
    permutations: int,
) -> TailComparison:
    r"""Whether draws and a reference have as much in their tails.

    Both are pooled and ranked, direction by direction. Of the points beyond a line let
    $a$ be draws, and $r$ the number of independent draws that the others are worth.
    Were the laws the same, each would be a draw with the probability $p = n / (n + m)$,
    where $n$ is the number of draws and $m$ what the whole reference is worth, and

    $$\min\{P(B \le a), P(B \ge a)\}, \quad B \sim \mathrm{Bin}(a + r, p),  \qquad (1)$$

    is small only where they differ. The statistic is the least of these numbers, each
    times its handicap, over all directions and lines, among them those just beyond the
    outermost draw and the outermost point of the reference. Its null distribution is
    that under permutation of the labels of $n + m$ independent points; where even
    Bonferroni's bound is less than permutations can show, that is the p-value.

    Args:
        rng: A generator.
        own: The directions of the draws.
        other: The same of the reference.
        weights: How many independent draws each point of the reference is worth.
        permutations: How many permutations.
    """
    n, m = len(own.values), max(1, round(float(np.sum(weights))))
    depth = int(min(max(20, _SHARE * (n + m)), _MOST, n + m - 1))
    handicaps = own.handicaps[:, None]

    # What is shuffled before it is ranked has its ties broken at random.
    shuffled = rng.permutation(n + len(weights))
    is_own = shuffled < n
    pooled = np.concatenate([own.values, other.values])[shuffled]
    order = np.argsort(-pooled, axis=0, kind="stable").T
    worth = np.concatenate([np.zeros(n), weights])[shuffled]
    lines = _lines(order.shape[1])
    a = np.cumsum(is_own[order], axis=1)[:, lines].astype(float)
    r = np.cumsum(worth[order], axis=1)[:, lines]
    scores = np.where(a + r <= depth, _score(a, r, n / (n + m)) * handicaps, np.inf)
    observed = np.min(scores)
    k, line = np.unravel_index(np.argmin(scores), scores.shape)

    lines = _lines(depth)
    # Two chances at each line: too few beyond it, or too many.
    p_value = float(2 * observed * np.sum(1 / handicaps) * len(lines))
    if p_value * (1 + permutations) > 1:
        # As many points of the reference as it is worth stand for it.
        lots = rng.exponential(size=len(weights)) / np.maximum(weights, 1e-300)
        kept = np.concatenate([np.ones(n, bool), lots <= np.sort(lots)[m - 1]])
        kept = kept[shuffled]
        top = np.stack([row[kept[row]][:depth] for row in order])
        # Of all labels only those of points far out are needed.
        used, top = np.unique(top, return_inverse=True)
        top = top.reshape(len(handicaps), depth)
        starts = np.concatenate([[0], lines[:-1] + 1])
        counted = np.arange(depth + 1.0)
        table = _score(counted[:, None], counted, n / (n + m))

        def permuted():
            among = rng.hypergeometric(n, m, len(used))
            labels = rng.permutation(np.arange(len(used)) < among)
            counts = np.add.reduceat(labels[top], starts, axis=1, dtype=int)
            counts = np.cumsum(counts, axis=1)
            return np.min(table[counts, lines + 1 - counts] * handicaps)

        p_value = sequential_p_value(
            permuted() <= observed for _ in range(permutations)
        )
    return TailComparison(
        p_value=p_value,
        where=own.names[k],
        share=float(a[k, line] / n),
        reference=float(r[k, line] / m),
    )


def _lines(depth):
    """After how many of the outermost points a line is drawn, less one."""
    every = 40 * max(1.0, np.log10(depth))
    return np.unique(np.round(np.geomspace(1, depth, int(every))).astype(int)) - 1


def _score(a, r, share):
    """Equation (1) with its handicap, for numbers that need not be whole."""
    few = np.where(r > 0, betainc(np.maximum(r, 1e-9), a + 1, 1 - share), 1.0)
    many = np.where(a > 0, betainc(np.maximum(a, 1e-9), r + 1, share), 1.0)
    return np.where((a > 0) & (r > 0), _BOTH, 1.0) * np.minimum(few, many)
