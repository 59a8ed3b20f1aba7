"""Modes: finding them in a reference sample, and weighing them in draws."""

import itertools
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.spatial import KDTree
from scipy.stats import binom, fisher_exact

# Neighbours that make the density estimate and the graph. With fewer, chance gaps in a
# row of draws begin to cut it; with more, small modes are swallowed by large ones.
_NEIGHBOURS = 24

# Ball sizes, in draws, at which the density of a peak is compared with its saddle.
_SCALES = np.array([24, 32, 48, 64, 96, 128, 192, 256])

# The chance of an invented mode, divided among the comparisons. Found with 2000 draws,
# 1000 times: on a line, the worst case, 4 times; on a ring once, on a funnel never.
_FALSE_MODES = 1e-2

# Larger references are thinned for the search, whose cost in many coordinates is that
# of trying all pairs.
_FEW_COORDINATES = 8
_MAX_SEARCHED = {True: 20_000, False: 4_000}


class Modes(eqx.Module):
    """The modes of a reference sample, the heaviest first.

    Attributes:
        centres: Where each mode is densest.
        labels: The mode of each reference draw.
        reference_weights: The share of the reference draws in each mode.
        metric: The matrix that maps draws to coordinates of equal spread.
        points: The reference draws that were searched, in those coordinates.
        point_labels: The mode of each of them.
    """

    centres: Float[np.ndarray, "k d"]
    labels: Int[np.ndarray, " n"]
    reference_weights: Float[np.ndarray, " k"]
    metric: Float[np.ndarray, "d d"]
    points: Float[np.ndarray, "m d"]
    point_labels: Int[np.ndarray, " m"]

    def assign(
        self, draws: Float[Array, "n d"] | Float[np.ndarray, "n d"]
    ) -> Int[np.ndarray, " n"]:
        """The mode of each draw: the one of the nearest reference draw.

        A mode may thus have any shape. The draws of a ring belong to the ring, wherever
        on it the centre lies.

        Args:
            draws: Draws of the space of the reference.

        Returns:
            For each draw an index into `centres`.

        Raises:
            ValueError: The draws are not finite, or of another space.
        """
        draws = _matrix("Modes.assign", "draws", draws)
        if draws.shape[1] != len(self.metric):
            raise ValueError(
                f"Modes.assign: draws have {draws.shape[1]} coordinates but the "
                f"reference has {len(self.metric)}; give draws of the same space."
            )
        return _nearest_labels(self.points, self.point_labels, draws @ self.metric)

    def counts(
        self, draws: Float[Array, "n d"] | Float[np.ndarray, "n d"]
    ) -> Int[np.ndarray, " k"]:
        """The number of draws in each mode."""
        return np.bincount(self.assign(draws), minlength=len(self.centres))

    def weights(
        self, draws: Float[Array, "n d"] | Float[np.ndarray, "n d"]
    ) -> Float[np.ndarray, " k"]:
        """The share of draws in each mode."""
        return self.counts(draws) / len(draws)


class ModeComparison(eqx.Module):
    """Mode weights of a reference and of draws, side by side.

    Attributes:
        reference_weights: The share of the reference draws in each mode.
        draw_weights: The share of the draws in each mode.
        p_values: For each mode, how often two samples of one law would differ at least
            as much in any mode.
    """

    reference_weights: Float[np.ndarray, " k"]
    draw_weights: Float[np.ndarray, " k"]
    p_values: Float[np.ndarray, " k"]


def mode_weights(
    draws: Float[Array, "n d"],
    modes: Float[Array, "k d"],
    *,
    covariance: Float[Array, "d d"] | Float[Array, "k d d"] | None = None,
) -> Float[Array, " k"]:
    """The share of draws nearest each of some known modes.

    Nearest in `(x - m)^T C^-1 (x - m)`, with one covariance for all modes or one for
    each; without any, in plain distance.

    Args:
        draws: Draws.
        modes: The points that stand for the modes.
        covariance: The shape of all modes, or of each.

    Returns:
        Shares that sum to one.

    Raises:
        ValueError: The shapes do not fit together.
    """
    draws, modes = jnp.asarray(draws), jnp.asarray(modes)
    if draws.ndim != 2 or modes.ndim != 2 or draws.shape[1] != modes.shape[1]:
        raise ValueError(
            f"mode_weights: draws of shape {draws.shape} and modes of shape "
            f"{modes.shape} do not fit; give an (n, d) and a (k, d) array."
        )
    count, dim = modes.shape
    covariance = jnp.eye(dim) if covariance is None else jnp.asarray(covariance)
    if covariance.shape not in ((dim, dim), (count, dim, dim)):
        raise ValueError(
            f"mode_weights: covariance has shape {covariance.shape}; give "
            f"{(dim, dim)} for all modes or {(count, dim, dim)} for each."
        )
    # With C = L L^T the distance is |L^-1 (x - m)|^2.
    scale = jnp.linalg.inv(jnp.linalg.cholesky(covariance.astype(draws.dtype)))
    scale = jnp.broadcast_to(scale, (count, dim, dim))
    differences = draws[:, None] - modes.astype(draws.dtype)[None]
    standard = jnp.einsum("kij,nkj->nki", scale, differences, precision="highest")
    nearest = jnp.argmin(jnp.sum(jnp.square(standard), axis=-1), axis=1)
    return jnp.bincount(nearest, length=count).astype(draws.dtype) / len(draws)


def find_modes(reference: Float[Array, "n d"] | Float[np.ndarray, "n d"]) -> Modes:
    """The modes of a sample: regions of high density with valleys between them.

    Topological mode analysis (ToMATo; Chazal, Guibas, Oudot and Skraba 2013): the
    draws, joined to their nearest neighbours, are visited by falling density, which is
    judged by the distance to the k-th neighbour. A draw without higher neighbours
    starts a peak; one that touches two peaks is a saddle, and there the lower peak is
    absorbed by the higher unless the valley between them cannot be sampling noise.

    It cannot if, for some radius, a ball at the saddle (or half-way along an edge that
    meets there, since a valley may be empty) holds too few draws: `c`, against `K` in
    equal balls around both peaks. Were the density level, `c` of `K + c` would be
    binomial with probability 1/2; the valley is real if the chance of so few is below
    `0.01 (k/n)^2`, the square being the number of pairs of separate balls. Counts in
    equal balls need no dimension, so that a curve in the plane is judged as the line
    that it is. A slope is never taken for a valley, however steep.

    Distances are taken in a metric of the modes' own shape (`local_metric`). The draws
    should be roughly independent; repeated ones, as a Metropolis chain leaves them,
    count once. Of 2000 draws, modes closer than about four standard deviations or of
    fewer than about 50 draws are merged, and in ten dimensions those closer than about
    seven.

    Args:
        reference: Draws known to follow the target.

    Returns:
        The modes; at least one.

    Raises:
        ValueError: The reference is not a finite (n, d) array.
    """
    reference = _matrix("find_modes", "reference", reference)
    distinct = np.unique(reference, axis=0)
    distinct = _thin(distinct, _MAX_SEARCHED[reference.shape[1] <= _FEW_COORDINATES])
    metric = local_metric(distinct)
    points = distinct @ metric
    roots = _climb(points)
    # Heaviest first, judged by all draws and not only by those that were searched.
    peaks, point_labels = np.unique(roots, return_inverse=True)
    labels = _nearest_labels(points, point_labels, reference @ metric)
    counts = np.bincount(labels, minlength=len(peaks))
    falling = np.argsort(-counts, kind="stable")
    position = np.argsort(falling)
    # The mean of the draws around the highest one, which itself is high by chance.
    around = min(_NEIGHBOURS, len(points))
    nearest: Any = KDTree(points)
    _, near = nearest.query(points[peaks[falling]], k=[*range(1, around + 1)])
    return Modes(
        centres=distinct[near].mean(axis=1),
        labels=position[labels],
        reference_weights=counts[falling] / len(reference),
        metric=metric,
        points=points,
        point_labels=position[point_labels],
    )


def compare_modes(
    reference_counts: Int[np.ndarray, " k"] | Int[Array, " k"],
    draw_counts: Int[np.ndarray, " k"] | Int[Array, " k"],
) -> ModeComparison:
    """Tests, mode by mode, whether draws fall into it as often as reference draws do.

    Fisher's exact test of two proportions, so that empty modes need no special care,
    times the number of modes (Bonferroni). Two modes are one question, since one
    weight determines the other.

    Args:
        reference_counts: The number of reference draws in each mode.
        draw_counts: The number of draws in each mode.

    Returns:
        Weights and p-values.

    Raises:
        ValueError: The counts do not fit together, or one sample is empty.
    """
    counts = np.asarray(reference_counts), np.asarray(draw_counts)
    if counts[0].ndim != 1 or counts[0].shape != counts[1].shape:
        raise ValueError(
            f"compare_modes: reference counts of shape {counts[0].shape} and draw "
            f"counts of shape {counts[1].shape} do not fit; give one for each mode."
        )
    totals = counts[0].sum(), counts[1].sum()
    if min(counts[0].min(initial=0), counts[1].min(initial=0)) < 0 or 0 in totals:
        raise ValueError(
            "compare_modes: counts must not be negative or all zero; give the numbers "
            "of reference draws and of draws in each mode."
        )
    p_values = np.array(
        [
            fisher_exact([[a, totals[0] - a], [b, totals[1] - b]])[1]
            for a, b in zip(*counts, strict=True)
        ]
    )
    questions = len(p_values) if len(p_values) > 2 else 1
    return ModeComparison(
        reference_weights=counts[0] / totals[0],
        draw_weights=counts[1] / totals[1],
        p_values=np.minimum(1.0, questions * p_values),
    )


def local_metric(draws: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "d d"]:
    """A linear map after which neighbouring draws differ equally in all directions.

    Whitening by the covariance of the whole sample would shrink just the directions
    that separate modes. Differences of nearest neighbours lie within a mode and carry
    its shape (Art, Gnanadesikan and Kettenring 1982); they enter with length one, so
    that draws far out in a tail count no more than others (Tyler 1987).

    Args:
        draws: Different draws.

    Returns:
        The matrix to multiply draws with, from the right.
    """
    draws = _thin(draws, 2000)
    metric = _whitener(
        np.cov(draws, rowvar=False, ddof=0).reshape((draws.shape[1],) * 2)
    )
    for _ in range(3):
        points = draws @ metric
        _, neighbours = KDTree(points).query(points, k=min(2, len(points)))
        steps = points - points[neighbours.reshape(len(points), -1)[:, -1]]
        lengths = np.linalg.norm(steps, axis=1, keepdims=True)
        steps = steps / np.where(lengths == 0, 1, lengths)
        metric = metric @ _whitener(steps.T @ steps / len(steps))
    return metric


def _whitener(covariance):
    values, vectors = np.linalg.eigh(covariance)
    # A direction in which nothing varies keeps a finite scale.
    values = np.maximum(values, 1e-12 * values.max())
    return vectors / np.sqrt(np.where(values == 0, 1, values))


def _climb(points):
    """The peak that each point belongs to, as the index of that point."""
    n = len(points)
    if n <= _NEIGHBOURS:
        return np.zeros(n, int)
    tree: Any = KDTree(points)
    # The nearest neighbour of a point is itself.
    distances, neighbours = tree.query(points, k=_NEIGHBOURS + 1, workers=-1)
    order = np.argsort(distances[:, -1], kind="stable")
    rank = np.argsort(order)
    higher = _higher_neighbours(rank, neighbours[:, 1:])
    level = _FALSE_MODES * (_NEIGHBOURS / n) ** 2
    root = np.arange(n)
    separate = set()
    for i in order:
        if not len(higher[i]):
            continue
        roots = root[higher[i]]
        touched = np.unique(roots)
        for a, b in itertools.combinations(touched[np.argsort(rank[touched])], 2):
            high, low = sorted((root[a], root[b]), key=rank.__getitem__)
            if high == low or (high, low) in separate:
                continue
            ends = [_nearest(points, i, higher[i][roots == side]) for side in (a, b)]
            sites = np.stack([points[i], *((points[i] + end) / 2 for end in ends)])
            size = np.count_nonzero(root == low)
            if _separated(tree, points[[high, low]], sites, size, level):
                separate.add((high, low))
            else:
                root[root == low] = high
        root[i] = root[higher[i][0]]
    return root


def _separated(tree, peaks, sites, size, level):
    """Whether fewer draws lie around some site than chance allows between two peaks."""
    scales = _SCALES[size >= _SCALES]
    if not len(scales):
        return False
    radii, _ = tree.query(peaks[1], k=scales + 1)
    # Both sides must be higher at the same scale: otherwise a wide ball, which blurs a
    # narrow ridge, would take a slope for a valley.
    higher = np.array(
        [tree.query_ball_point(peaks, r, return_length=True) for r in radii]
    )
    around = higher.min(axis=1) - 1
    between = np.array(
        [tree.query_ball_point(sites, r, return_length=True).min() for r in radii]
    )
    return bool((binom.cdf(between, around + between, 0.5) < level).any())


def _higher_neighbours(rank, neighbours):
    """For each point those of higher density it has an edge with, highest first."""
    n, k = neighbours.shape
    one, other = np.repeat(np.arange(n), k), neighbours.ravel()
    lower = np.where(rank[one] > rank[other], one, other)
    higher = one + other - lower
    by_point = np.lexsort((rank[higher], lower))
    ends = np.cumsum(np.bincount(lower, minlength=n))
    return np.split(higher[by_point], ends[:-1])


def _nearest(points, i, candidates):
    squared = np.square(points[candidates] - points[i]).sum(axis=1)
    return points[candidates[np.argmin(squared)]]


def _nearest_labels(points, labels, draws):
    return labels[KDTree(points).query(draws, workers=-1)[1]]


def _thin(draws, count):
    if len(draws) <= count:
        return draws
    return draws[np.linspace(0, len(draws) - 1, count).astype(int)]


def _matrix(where, name, draws):
    draws = np.asarray(draws, np.float64)
    if draws.ndim != 2 or 0 in draws.shape:
        raise ValueError(
            f"{where}: {name} must be an (n, d) array, but the shape is {draws.shape}; "
            "reshape it so that each row is one draw."
        )
    finite = np.isfinite(draws).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"{where}: {np.sum(~finite)} of {len(draws)} {name} are not finite, the "
            f"first in row {np.argmin(finite)}; remove them first."
        )
    return draws
