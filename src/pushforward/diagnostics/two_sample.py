"""Tests of whether draws and a reference follow one law."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats

from pushforward.diagnostics.permutations import sequential_p_value
from pushforward.diagnostics.wasserstein import quantile_steps, squared_w2_sorted

# The 98 % range of a Gaussian in units of its interquartile range.
_GAUSSIAN_RANGE = 3.449

# A range this much wider than that is a heavy tail.
_HEAVY = 1.4

# The interquartile range of a standard Gaussian.
_IQR = 1.349


@dataclasses.dataclass(frozen=True)
class RobustScaler:
    """Coordinates in which the distances of a test are taken.

    Each coordinate is centred at its median and divided by its spread (interquartile
    range / 1.349), so that none counts more than another. One with heavy tails is then
    bent by arcsinh: otherwise a handful of draws far out would make up the whole of a
    Wasserstein distance.

    Attributes:
        centre: The median of each coordinate.
        scale: The spread of each coordinate.
        bent: Which coordinates are bent.
    """

    centre: Float[np.ndarray, " d"]
    scale: Float[np.ndarray, " d"]
    bent: Bool[np.ndarray, " d"]

    @staticmethod
    def of(draws: Float[np.ndarray, "n d"]) -> "RobustScaler":
        """The scaler of a reference, or of draws where there is none."""
        levels = [0.01, 0.25, 0.5, 0.75, 0.99]
        low, q25, centre, q75, high = np.quantile(draws, levels, axis=0)
        scale = (q75 - q25) / _IQR
        deviation = np.std(draws, axis=0)
        scale = np.where(scale > 0, scale, np.where(deviation > 0, deviation, 1.0))
        bent = high - low > _HEAVY * _GAUSSIAN_RANGE * _IQR * scale
        return RobustScaler(centre, scale, bent)

    def __call__(self, draws: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """The draws in these coordinates."""
        standard = (draws - self.centre) / self.scale
        return np.where(self.bent, np.arcsinh(standard), standard)


@dataclasses.dataclass(frozen=True)
class MeanChange:
    """The mean change of a quantity from draws to where a chain moved them.

    Attributes:
        mean: The mean change.
        error: Its standard error.
        p_value: How often a chain that starts from its target would move as much.
    """

    mean: float
    error: float
    p_value: float

    @staticmethod
    def of(
        before: Float[np.ndarray, " n"], after: Float[np.ndarray, " n"]
    ) -> "MeanChange":
        """The mean of `after - before`, and whether it is zero.

        Under exchangeability the changes have a symmetric law around zero, and
        `mean / error` is close to standard normal, even with heavy tails.
        """
        change = after - before
        mean = float(np.mean(change))
        error = float(np.sqrt(np.mean(np.square(change)) / len(change)))
        if error == 0:
            return MeanChange(mean, error, 1.0)
        return MeanChange(mean, error, float(2 * stats.norm.sf(abs(mean) / error)))


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One statistic of two samples, and how often one law would give as large a one."""

    statistic: float
    p_value: float


class SlicedW2:
    """Sliced Wasserstein distances along one set of directions.

    The distance is that of `sliced_w2`, here along few directions and in single
    precision, since it is taken some hundred times over. Keeping the directions makes
    the distances of several pairs of samples comparable.
    """

    def __init__(self, rng: np.random.Generator, dim: int, projections: int = 32):
        directions = rng.standard_normal((dim, projections))
        self.rng = rng
        self.directions = directions / np.linalg.norm(directions, axis=0)

    def test(
        self,
        x: Float[np.ndarray, "n d"],
        y: Float[np.ndarray, "m d"],
        *,
        permutations: int,
        enough: int = 20,
    ) -> Comparison:
        """The distance with its p-value, by permuting the pooled draws.

        The p-value is sequential (`sequential_p_value`).
        """
        squared, actual = self._squared_distance(x, y)
        observed = squared(actual)
        exceeds = (
            squared(self.rng.permutation(actual)) >= observed
            for _ in range(permutations)
        )
        p_value = sequential_p_value(exceeds, enough)
        return Comparison(float(np.sqrt(observed)), p_value)

    def improvement_test(
        self,
        x: Float[np.ndarray, "n d"],
        y: Float[np.ndarray, "n d"],
        reference: Float[np.ndarray, "m d"],
        *,
        permutations: int,
        enough: int = 20,
    ) -> Comparison:
        """Whether `y` is nearer to a reference than `x` is, by more than chance.

        The statistic is `W2^2(x, reference) - W2^2(y, reference)`. Where `x_i` and
        `y_i` are exchangeable, swapping them at random gives its null distribution, for
        any reference. The p-value is sequential, as in `test`.
        """
        n = len(x)
        parts, _ = self._sorted_parts(x, y)
        levels = (np.arange(n) + 0.5) / n
        # The reference as n draws: its quantiles along each direction.
        aim = np.quantile(reference @ self.directions, levels, axis=0).T
        aim = (2 * aim).astype(np.float32)

        def gained(stay):
            a, b = parts(np.concatenate([stay, ~stay]))
            return np.mean((a - b) * (a + b - aim))

        observed = gained(np.ones(n, bool))
        swapped = (
            gained(self.rng.random(n) < 0.5) >= observed for _ in range(permutations)
        )
        return Comparison(float(observed), sequential_p_value(swapped, enough))

    def null_mean(
        self,
        x: Float[np.ndarray, "n d"],
        y: Float[np.ndarray, "m d"],
        permutations: int = 20,
    ) -> float:
        """The mean distance of two samples of one law, by permuting both together."""
        squared, actual = self._squared_distance(x, y)
        squares = [squared(self.rng.permutation(actual)) for _ in range(permutations)]
        return float(np.mean(np.sqrt(squares)))

    def _squared_distance(self, x, y):
        """The squared distance as a function of which pooled draws are in `x`."""
        steps = quantile_steps(len(x), len(y))
        parts, actual = self._sorted_parts(x, y)

        def squared(chosen):
            return np.mean(squared_w2_sorted(*parts(chosen), steps))

        return squared, actual

    def _sorted_parts(self, x, y):
        """Both samples, sorted along each direction, as functions of the same."""
        n, m = len(x), len(y)
        pooled = (np.concatenate([x, y]) @ self.directions).T
        order = np.argsort(pooled, axis=1)
        values = np.take_along_axis(pooled, order, axis=1).astype(np.float32).ravel()

        def parts(chosen):
            # Every direction has n members, so that rows stay sorted and aligned.
            inside = chosen.take(order).ravel()
            a = values.take(np.flatnonzero(inside)).reshape(-1, n)
            b = values.take(np.flatnonzero(~inside)).reshape(-1, m)
            return a, b

        return parts, np.arange(n + m) < n


def kolmogorov_smirnov(
    x: Float[np.ndarray, "n d"], y: Float[np.ndarray, "m d"], ess: float
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]:
    """Two-sample Kolmogorov-Smirnov tests, coordinate by coordinate.

    The statistic is `D = max_t |F(t) - G(t)|`, its p-value that of the one-sample
    statistic at `n m / (n + m)` draws.

    Args:
        x: Draws.
        y: Reference draws.
        ess: How many independent draws the reference is worth: the `m` above.

    Returns:
        The statistics and the p-values, not adjusted for their number.
    """
    n = len(x)
    size = max(1, round(n * ess / (n + ess)))
    distances = np.array([_distance(a, b) for a, b in zip(x.T, y.T, strict=True)])
    return distances, stats.kstwo.sf(distances, size)


def _distance(a, b):
    a, b = np.sort(a), np.sort(b)
    pooled = np.concatenate([a, b])
    below_a = np.searchsorted(a, pooled, side="right") / len(a)
    below_b = np.searchsorted(b, pooled, side="right") / len(b)
    return np.max(np.abs(below_a - below_b))


@dataclasses.dataclass(frozen=True)
class ScoreComparison:
    """The moment of two samples' normal scores that differs most clearly.

    Attributes:
        p_value: How often some moment would differ as clearly in samples of one law.
        what: "mean", "spread" or "correlation".
        coordinates: Of which coordinates; one twice but for a correlation.
        own: Its value for the draws.
        other: Its value for the reference.
    """

    p_value: float
    what: str
    coordinates: tuple[int, int]
    own: float
    other: float


def compare_scores(
    x: Float[np.ndarray, "n d"], y: Float[np.ndarray, "m d"], ess: float
) -> ScoreComparison:
    r"""Welch's tests of the first and second moments of normal scores.

    A normal score is $z = \Phi^{-1}(r / (n + m + 1))$, where $r$ is the rank among both
    samples: it has light tails, whatever the law. The means of $z_i$, of $z_i^2$ and of
    $z_i z_j$ are compared, each of the three families at a third of the level
    (Bonferroni). What Kolmogorov-Smirnov tests see late, a small shift, this sees
    early; and they see no correlation at all.

    Args:
        x: Draws.
        y: Reference draws.
        ess: How many independent draws the reference is worth.
    """
    n, (_, dim) = len(x), x.shape
    ranks = stats.rankdata(np.concatenate([x, y]), axis=0)
    scores = stats.norm.ppf(ranks / (len(ranks) + 1))
    firsts, seconds = [], []
    for part, size in ((scores[:n], n), (scores[n:], ess)):
        square = np.square(part)
        firsts.append((part.mean(axis=0), part.var(axis=0) / size))
        product = part.T @ part / len(part)
        variance = square.T @ square / len(part) - np.square(product)
        seconds.append((product, np.maximum(variance, 0.0) / size))
    every = np.arange(dim)
    families = [
        ("mean", firsts, every, every),
        ("spread", [(np.diag(a), np.diag(v)) for a, v in seconds], every, every),
    ]
    if dim > 1:
        pairs = np.triu_indices(dim, 1)
        families.append(
            ("correlation", [(a[pairs], v[pairs]) for a, v in seconds], *pairs)
        )
    found = []
    for what, ((own, own_variance), (other, variance)), i, j in families:
        error = np.sqrt(own_variance + variance)
        ratio = np.abs(own - other) / np.where(error > 0, error, np.inf)
        k = int(np.argmax(ratio))
        p_value = 2 * stats.norm.sf(ratio[k]) * len(ratio) * len(families)
        place = (int(i[k]), int(j[k]))
        found.append((float(p_value), what, place, float(own[k]), float(other[k])))
    p_value, *rest = min(found)
    return ScoreComparison(min(1.0, p_value), *rest)
