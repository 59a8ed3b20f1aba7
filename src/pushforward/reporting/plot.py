"""Pictures of draws beside exact or reference draws."""

import io
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from pushforward import _files
from pushforward.draws import column_names
from pushforward.errors import MissingDependencyError
from pushforward.targets.base import AbstractTarget

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
except ImportError as error:
    raise MissingDependencyError(
        "Plots need matplotlib: pip install 'pushforward[plots]'"
    ) from error

# Dots in a panel: more only make it black. Marginals in a figure: more cannot be read.
MAX_DOTS, MAX_MARGINALS = 5000, 12
OURS, REFERENCE, CONTOUR = "#1f5fa8", "#d1782b", "#555555"
# Contours enclose these shares of the distribution.
SHARES = (0.5, 0.8, 0.95)


def draws_figure(
    target: AbstractTarget,
    draws: Any,
    reference: Any,
    path: str | Path,
    *,
    title: str,
    exact_label: str = "exact draws",
) -> Path:
    """Draws a picture of a sampler's draws beside exact or reference draws.

    In two dimensions: two panels of dots on the same axes, over contours of the density
    that enclose 50, 80 and 95 % of the reference. In one, or in more than two: the
    marginal distributions of up to 12 coordinates, one over the other.

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
    if target.dim == 2:
        figure = _plane(target, draws, reference, exact_label)
    else:
        figure = _marginals(target, draws, reference, exact_label)
    figure.suptitle(title, fontsize=12)
    picture = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "pushforward"}):
        figure.savefig(picture, format=path.suffix.removeprefix(".") or "png", dpi=150)
    _files.write_bytes(path, picture.getvalue())
    return path


def _plane(target: AbstractTarget, draws: Any, reference: Any, label: str) -> Figure:
    flatten = target.structure.flatten_draws
    ours, theirs = np.asarray(flatten(draws)), np.asarray(flatten(reference))
    limits = [_limits(theirs[:, i], ours[:, i]) for i in range(2)]
    figure = Figure(figsize=(9, 5.7), layout="compressed")
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
    return figure


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
    """Grid, log density on it, and the levels; None where there is no density."""
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
    target: AbstractTarget, draws: Any, reference: Any, label: str
) -> Figure:
    ours, theirs = _table(draws), _table(reference)
    names = column_names(target.structure)
    shown = min(len(names), MAX_MARGINALS)
    columns = min(shown, 4)
    rows = -(-shown // columns)
    figure = Figure(
        figsize=(max(2.6 * columns, 5), 2.2 * rows + 0.9), layout="constrained"
    )
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for i, panel in enumerate(panels):
        if i < shown:
            _marginal(panel, ours[:, i], theirs[:, i], label)
            panel.set_xlabel(names[i])
        else:
            panel.set_axis_off()
    handles, labels = panels[0].get_legend_handles_labels()
    counted = [f"{labels[0]}: {len(theirs):,}", f"{labels[1]}: {len(ours):,} draws"]
    note = f"; the first {shown} of {len(names)}" if shown < len(names) else ""
    figure.legend(
        handles, counted, loc="outside lower center", ncols=2, fontsize=9,
        title="marginal densities" + note, title_fontsize=9,
    )  # fmt: skip
    return figure


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
