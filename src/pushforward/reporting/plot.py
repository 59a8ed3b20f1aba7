"""Pictures of a fit, each beside the exact or reference answer (the extra `plots`).

Every function returns its axes, so that a picture can be changed, joined with others
and saved: `plot.draws(target, fit.sampler)[0].figure.savefig("draws.png")`.
"""

import io
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from pushforward import _files
from pushforward.diagnostics.weights import ImportanceSample
from pushforward.draws import column_names
from pushforward.errors import MissingDependencyError, UsageError
from pushforward.reporting import marginals as compared
from pushforward.sampler import Sampler
from pushforward.targets.base import AbstractTarget
from pushforward.training.history import History
from pushforward.training.status import AbstractTrained

try:
    import matplotlib
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D
except ImportError as error:
    raise MissingDependencyError(
        "Plots need matplotlib: pip install 'pushforward[plots]'"
    ) from error

__all__ = [
    "density_contours",
    "draws",
    "ecdf",
    "marginals",
    "pairs",
    "training",
    "weights",
]

# Dots in a panel: more only make it black. Panels in a figure: more cannot be read.
MAX_DOTS, MAX_MARGINALS, MAX_PAIRS = 5000, 12, 5
OURS, REFERENCE, CONTOUR = "#1f5fa8", "#d1782b", "#555555"
# Contours enclose these shares of the distribution.
SHARES = (0.5, 0.8, 0.95)
# Draws of a sampler, and of a target that has exact ones, where none are given.
_DRAWN = 5000
_NO_CURVE = ("stage", "step", "seconds", "skipped", "kept")

Panels = np.ndarray


def draws(
    target: AbstractTarget, draws: Any, reference: Any = None, *, label: str = ""
) -> Panels:
    """Draws beside exact or reference draws.

    In two dimensions: two panels of dots on the same axes, over contours of the density
    that enclose 50, 80 and 95 % of the reference. In one, or in more than two:
    `marginals`.

    Args:
        target: what was sampled from.
        draws: the draws in the user's own tree, or a `Sampler`.
        reference: draws to compare with, in the same tree; None is exact draws, where
            the target has them.
        label: what to call the reference.

    Returns:
        An array of the axes.
    """
    if target.dim != 2:
        return marginals(target, draws, reference, label=label)
    ours, theirs, label = _both(target, draws, reference, label)
    return _plane(target, ours, theirs, label)


def marginals(
    target: AbstractTarget,
    draws: Any,
    reference: Any = None,
    *,
    label: str = "",
    most: int = MAX_MARGINALS,
) -> Panels:
    """Histograms of the parameters, over those of the reference.

    Args:
        target: as for `plot.draws`.
        draws: as for `plot.draws`.
        reference: as for `plot.draws`.
        label: as for `plot.draws`.
        most: how many parameters are shown: the first.

    Returns:
        An array of the axes.
    """
    ours, theirs, label = _both(target, draws, reference, label)
    return _marginals(target, ours, theirs, label, most)


def ecdf(
    target: AbstractTarget, draws: Any, reference: Any = None, *, most: int = 6
) -> Panels:
    """The probability integral transform of the draws, for the worst parameters.

    Shown is its empirical distribution less the uniform one, with a band that exact
    draws stay inside everywhere, in all parameters at once, in 99 % of cases. The
    draws of the reference are taken as independent.

    Args:
        target: as for `plot.draws`.
        draws: as for `plot.draws`.
        reference: as for `plot.draws`.
        most: how many parameters are shown: those that leave the line furthest.

    Returns:
        An array of the axes.
    """
    ours, theirs, _ = _both(target, draws, reference, "")
    one, other = _table(ours), _table(theirs)
    names = column_names(target.structure)
    near, far = other[::2], other[1::2]
    width = compared.band(len(one), len(near), len(names))
    distances = compared.Errors.of(one, near).distances
    worst = np.argsort(-distances, kind="stable")[:most]
    panels = _grid(len(worst), 3, (3.4, 2.6))
    for panel, i in zip(panels, worst, strict=True):
        panel.axhspan(-width, width, color=CONTOUR, alpha=0.15, lw=0, label="99 % band")
        for points, colour, what in (
            (far[:, i], REFERENCE, "reference"),
            (one[:, i], OURS, "pushforward"),
        ):
            gap = compared.ecdf_gap(points, near[:, i])
            panel.plot(np.linspace(0, 1, len(gap)), gap, color=colour, label=what)
        panel.set_title(names[i], fontsize=10)
        panel.set(xlim=(0, 1), xlabel="quantile of the reference")
    panels[0].legend(fontsize=8)
    return panels


def pairs(
    target: AbstractTarget,
    draws: Any,
    reference: Any = None,
    *,
    label: str = "",
    most: int = MAX_PAIRS,
) -> Panels:
    """Every pair of the worst parameters as dots, over those of the reference.

    Args:
        target: as for `plot.draws`.
        draws: as for `plot.draws`.
        reference: as for `plot.draws`.
        label: as for `plot.draws`.
        most: how many parameters are shown: those furthest from the reference.

    Returns:
        A square array of axes; what is above the diagonal is empty.
    """
    ours, theirs, label = _both(target, draws, reference, label)
    one, other = _table(ours), _table(theirs)
    names = column_names(target.structure)
    order = np.argsort(-compared.Errors.of(one, other).errors, kind="stable")[:most]
    size = len(order)
    side = max(2.0 * size, 3.5)
    panels = plt.figure(figsize=(side, side), layout="constrained").subplots(
        size, size, squeeze=False, sharex="col"
    )
    limits = {i: _limits(other[:, i], one[:, i]) for i in order}
    for row, i in enumerate(order):
        for column, j in enumerate(order):
            panel = panels[row, column]
            if column > row:
                panel.set_axis_off()
                continue
            if i == j:
                _marginal(panel, one[:, i], other[:, i], label)
            else:
                for table, colour in ((other, REFERENCE), (one, OURS)):
                    dots = table[:MAX_DOTS, [j, i]].T
                    panel.scatter(*dots, s=3, color=colour, alpha=0.35, linewidths=0)
                panel.set(ylim=limits[i])
            panel.set(xlim=limits[j])
            if row == size - 1:
                panel.set_xlabel(names[j])
            if column == 0 and row:
                panel.set_ylabel(names[i])
    panels[0, 0].figure.legend(
        *panels[0, 0].get_legend_handles_labels(), loc="upper right", fontsize=8
    )
    return panels


def training(trained: Any, *, log_normaliser: float | None = None) -> Panels:
    """What was measured during training, a panel for each column of the history.

    The bounds of log Z (ELBO from draws, EUBO from particles) share a panel: the exact
    value lies between them.

    Args:
        trained: what `fit` or `train` returned, or its `history`.
        log_normaliser: the exact log Z, where it is known.

    Returns:
        An array of the axes.
    """
    history = trained.history if isinstance(trained, AbstractTrained) else trained
    if not isinstance(history, History) or not len(history):
        raise UsageError(
            "plot.training needs what fit returned, or a history with rows in it, and "
            f"was given a {type(trained).__name__}."
        )
    bounds = [name for name in ("elbo", "eubo") if name in history.columns]
    left = [n for n in history.columns if n not in (*_NO_CURVE, *bounds)]
    groups = [*([bounds] if bounds else []), *([name] for name in left)]
    panels = _grid(len(groups), 3, (3.4, 2.4))
    for panel, names in zip(panels, groups, strict=True):
        for name, colour in zip(names, (OURS, REFERENCE), strict=False):
            rows = [r for r in history.rows if name in r]
            at = [r.get("step", i) for i, r in enumerate(rows)]
            panel.plot(at, [r[name] for r in rows], color=colour, label=name)
        if names is bounds and log_normaliser is not None:
            panel.axhline(log_normaliser, color=CONTOUR, ls="--", label="exact log Z")
        title = "bounds of log Z" if names is bounds else names[0].replace("_", " ")
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("step")
        if names is bounds:
            panel.legend(fontsize=8)
    return panels


def weights(weighed: ImportanceSample, *, label: str = "pushforward") -> Axes:
    """The tail of the importance weights, beside those of an exact sampler, all 1.

    Args:
        weighed: what `weigh` returned.
        label: what to call the sampler.

    Returns:
        The axes.
    """
    n = len(weighed.weights)
    ordered = np.sort(weighed.weights)[::-1] * n
    panel = plt.figure(figsize=(5, 3.6), layout="constrained").subplots()
    shown = ordered > 0
    k = f"{label}: k = {weighed.pareto_k:.2f}, ESS {weighed.ess / n:.0%}"
    panel.loglog(ordered[shown], (np.arange(1, n + 1) / n)[shown], color=OURS, label=k)
    panel.axvline(1.0, color=REFERENCE, ls="--", label="exact draws: all 1")
    panel.set(xlabel="weight, its mean being 1", ylabel="share of draws above")
    panel.set_title(
        f"log Z = {weighed.log_normaliser:.5g} ± {weighed.log_normaliser_se:.1g}",
        fontsize=10,
    )
    panel.legend(fontsize=8)
    return panel


def draws_figure(
    target: AbstractTarget,
    draws: Any,
    reference: Any,
    path: str | Path,
    *,
    title: str,
    exact_label: str = "exact draws",
) -> Path:
    """Writes the picture of `plot.draws` to a file.

    Args:
        target: what was sampled from.
        draws: the sampler's draws, in the user's own tree.
        reference: draws to compare with, in the same tree.
        path: where the picture goes; its suffix (`.png`, `.pdf`, `.svg`) says how.
        title: stands above the picture.
        exact_label: what to call the reference.

    Returns:
        `path`.
    """
    path = Path(path)
    show = _plane if target.dim == 2 else _marginals
    figure = show(target, draws, reference, exact_label)[0].figure
    figure.suptitle(title, fontsize=12)
    picture = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "pushforward"}):
        figure.savefig(picture, format=path.suffix.removeprefix(".") or "png", dpi=150)
    plt.close(figure)
    _files.write_bytes(path, picture.getvalue())
    return path


def _both(
    target: AbstractTarget, draws: Any, reference: Any, label: str
) -> tuple[Any, Any, str]:
    """Draws, what they are compared with, and what that is called."""
    if isinstance(draws, Sampler):
        draws = draws.sample(jax.random.key(0), _DRAWN)
    if isinstance(reference, Sampler):
        reference = reference.sample(jax.random.key(1), _DRAWN)
    if reference is None:
        if not target.can_sample:
            raise UsageError(
                "This target has no exact draws to compare with; give reference=, such "
                "as draws of NUTS or of pushforward.explore(key, target)."
            )
        reference, label = target.sample(jax.random.key(1), _DRAWN), label or "exact"
    for tree in (draws, reference):
        target.structure.batched(tree)
    return draws, reference, label or "reference"


def _grid(count: int, columns: int, size: tuple[float, float]) -> Panels:
    """So many panels; those that are left over in the last row are gone."""
    columns = min(count, columns)
    rows = -(-count // columns)
    figure = plt.figure(
        figsize=(size[0] * columns, size[1] * rows), layout="constrained"
    )
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels[count:]:
        panel.remove()
    return panels[:count]


def _plane(target: AbstractTarget, draws: Any, reference: Any, label: str) -> Panels:
    flatten = target.structure.flatten_draws
    ours, theirs = np.asarray(flatten(draws)), np.asarray(flatten(reference))
    limits = [_limits(theirs[:, i], ours[:, i]) for i in range(2)]
    figure = plt.figure(figsize=(9, 5.7), layout="compressed")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    contours = density_contours(target, theirs, limits)
    free = not target.structure.is_linear
    names = [f"{name} (unconstrained)" if free else name for name in target.names]
    handles = []
    for panel, points, colour, what in (
        (panels[0], ours, OURS, "pushforward"),
        (panels[1], theirs, REFERENCE, label),
    ):
        dots = points[:MAX_DOTS]
        panel.scatter(*dots.T, s=4, color=colour, alpha=0.4, linewidths=0)
        handles.append(Line2D([], [], color=colour, marker="o", ls="", label=what))
        if contours is not None:
            panel.contour(*contours, colors=CONTOUR, linewidths=0.8, linestyles="solid")
        panel.set_title(f"{what}: {_count(dots, points)}", fontsize=10)
        panel.set_xlabel(names[0])
        panel.set(xlim=limits[0], ylim=limits[1])
        if _similar(limits):
            panel.set_aspect("equal")
    panels[0].set_ylabel(names[1])
    if contours is not None:
        shares = ", ".join(f"{100 * share:.0f}" for share in SHARES)
        line = Line2D(
            [], [], color=CONTOUR, lw=0.8, label=f"density: {shares} % inside"
        )
        handles.append(line)
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=9)
    return panels


def _count(shown: np.ndarray, points: np.ndarray) -> str:
    if len(shown) == len(points):
        return f"{len(points):,} draws"
    return f"{len(shown):,} of {len(points):,} draws"


def _limits(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """An interval that shows nearly all of both, and is not ruled by a far outlier."""
    both = [values[np.isfinite(values)] for values in (first, second)]
    low = min(np.quantile(values, 0.005) for values in both if len(values))
    high = max(np.quantile(values, 0.995) for values in both if len(values))
    margin = 0.15 * (high - low) or 1.0
    return float(low - margin), float(high + margin)


def _similar(limits: list[tuple[float, float]]) -> bool:
    width, height = (high - low for low, high in limits)
    return 0.5 < width / height < 2


def density_contours(
    target: AbstractTarget,
    reference: Float[np.ndarray, "n 2"],
    limits: list[tuple[float, float]],
) -> (
    tuple[
        Float[np.ndarray, " w"],
        Float[np.ndarray, " h"],
        Float[np.ndarray, "h w"],
        Float[np.ndarray, " l"],
    ]
    | None
):
    """The log density on a grid, for contours that enclose shares of the reference.

    Args:
        target: a target of two coordinates.
        reference: exact or reference draws, whose log densities give the levels.
        limits: the lowest and the highest value of each coordinate.

    Returns:
        The grid along both coordinates, the log density on it, and the levels; None
        where there is no density.
    """
    if target.why_no_density() is not None:
        return None
    x, y = (np.linspace(low, high, 200) for low, high in limits)
    grid = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    log_density = jax.jit(lambda points: target.map(target.log_density, points))
    # The reference says at which level a share of the distribution lies inside.
    inside = log_density(jnp.asarray(reference[:MAX_DOTS], float))
    levels = np.unique(np.quantile(np.asarray(inside), [1 - s for s in SHARES]))
    heights = np.asarray(log_density(jnp.asarray(grid, float))).reshape(len(y), len(x))
    return x, y, np.where(np.isfinite(heights), heights, heights.min()), levels


def _marginals(
    target: AbstractTarget,
    draws: Any,
    reference: Any,
    label: str,
    most: int = MAX_MARGINALS,
) -> Panels:
    ours, theirs = _table(draws), _table(reference)
    names = column_names(target.structure)
    shown = min(len(names), most)
    panels = _grid(shown, 4, (2.6 if shown > 1 else 5, 2.5))
    for i, panel in enumerate(panels):
        _marginal(panel, ours[:, i], theirs[:, i], label)
        panel.set_xlabel(names[i])
    handles, labels = panels[0].get_legend_handles_labels()
    counted = [f"{labels[0]}: {len(theirs):,}", f"{labels[1]}: {len(ours):,} draws"]
    note = f"; the first {shown} of {len(names)}" if shown < len(names) else ""
    panels[0].figure.legend(
        handles, counted, loc="outside lower center", ncols=2, fontsize=9,
        title="marginal densities" + note, title_fontsize=9,
    )  # fmt: skip
    return panels


def _marginal(panel: Axes, ours: np.ndarray, theirs: np.ndarray, label: str) -> None:
    limits = _limits(theirs, ours)
    bins = int(np.clip(np.sqrt(min(len(ours), len(theirs))), 15, 50))
    edges = np.linspace(*limits, bins + 1).tolist()
    panel.hist(theirs, edges, density=True, color=REFERENCE, alpha=0.45, label=label)
    panel.hist(
        ours, edges, density=True, color=OURS, histtype="step", linewidth=1.3,
        label="pushforward",
    )  # fmt: skip
    panel.set(xlim=limits, yticks=[])
    panel.spines[["top", "left", "right"]].set_visible(False)


def _table(draws: Any) -> Float[np.ndarray, "n columns"]:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(draws)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)
