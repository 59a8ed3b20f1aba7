"""The figures of the first experiment, drawn from its result file."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import pushforward as pf
from pushforward.reporting.plot import density_contours
from reproduction.common.plots import CONTOUR, EXACT, OURS, draw_figures
from reproduction.common.results import Results, endings
from reproduction.toy2d.page import FIGURE_1, FIGURE_2
from reproduction.toy2d.settings import LABELS, PICTURED

SECOND = "#3f8f4f"
# Figure 2 ends here: what is higher has run away, and leaves the frame.
_HIGHEST, _BEYOND = 10.0, 100.0
# What Figure 1 shows, from left to right.
PANELS = (
    ("dft", "ours"),
    ("recipe", "ours"),
    ("svgd", "50 steps"),
    ("svgd", "100 steps"),
    ("svgd", "200 steps"),
)


def figures(results: Results, folder: Path) -> list[Path]:
    """Draws both figures into `folder`, as far as the results go."""
    return draw_figures(results, folder, {FIGURE_1: clouds, FIGURE_2: gradients})


def clouds(results: Results) -> Figure | None:
    """Figure 1: draws over contours of the density."""
    rows = PICTURED
    shown = [
        (method, setting)
        for method, setting in PANELS
        if all(f"{method}|{setting}|{t}" in results.cells for t in rows)
    ]
    if not shown:
        return None
    columns = len(shown) + 1
    figure = Figure(figsize=(2.5 * columns, 6.0), layout="constrained")
    panels = figure.subplots(len(rows), columns, squeeze=False, sharex="row",
                             sharey="row")  # fmt: skip
    for row, name in zip(panels, rows, strict=True):
        target: pf.AbstractTarget = pf.targets.get(name)
        exact = np.asarray(target.sample_flat(jax.random.key(0), 500))
        many = np.asarray(target.sample_flat(jax.random.key(1), 20_000))
        sets: list[tuple[str, Any, str]] = [
            (
                f"{LABELS[method]}" + ("" if setting == "ours" else f", {setting}"),
                results.cells[f"{method}|{setting}|{name}"]["cloud"],
                OURS if setting == "ours" else SECOND,
            )
            for method, setting in shown
        ]
        sets.append(("exact draws", exact, EXACT))
        every = np.concatenate([np.array(draws, float) for _, draws, _ in sets])
        low, high = np.quantile(every, [0.001, 0.999], axis=0)
        limits = [(float(a), float(b)) for a, b in zip(low, high, strict=True)]
        grid = density_contours(target, many, limits)
        for panel, (label, draws, colour) in zip(row, sets, strict=True):
            points = np.array(draws, float)
            panel.scatter(*points.T, s=5, color=colour, alpha=0.6, linewidths=0)
            if grid is not None:
                panel.contour(*grid, colors=CONTOUR, linewidths=0.6, linestyles="solid")
            panel.set(xlim=limits[0], ylim=limits[1])
            panel.set_title(f"{name}: {label}", fontsize=8)
            panel.set_xlabel("x")
        row[0].set_ylabel("y")
    legend = [
        Line2D([], [], color=c, marker="o", ls="", label=text)
        for c, text in (
            (OURS, "one network pass"),
            (SECOND, "SVGD"),
            (EXACT, "exact"),
        )
    ]
    legend.append(
        Line2D([], [], color=CONTOUR, lw=0.8, label="density: 50, 80, 95 % inside")
    )
    figure.legend(handles=legend, loc="outside lower center", ncols=4, fontsize=9)
    figure.suptitle("500 draws each", fontsize=11)
    return figure


def gradients(results: Results) -> Figure | None:
    """Figure 2: KSD over training on the funnel, full gradient and L2 alone."""
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    panel = figure.subplots()
    floor = None
    for method, colour in (("dft", OURS), ("dft_l2", SECOND)):
        for name, cell in results.cells.items():
            own, setting, target = name.split("|")
            if (own, target) != (method, "funnel") or not setting.endswith("seeds"):
                continue
            curves = np.array(cell["curve"], float)
            steps, values = curves[0, :, 0], curves[:, :, 1]
            record = cell["records"][0]
            floor = record["exact"], record["exact_sd"]
            text = "full gradient" if method == "dft" else "L2 alone"
            text = f"{LABELS[method]}, {text}: median of {len(values)} seeds"
            broken = sum(each["status"] != "finished" for each in endings(cell))
            text += f" ({broken} broke down)" if broken else ""
            # A sampler that has run away has no KSD: it counts as the highest.
            values = np.where(np.isfinite(values), values, np.inf).clip(max=_BEYOND)
            panel.plot(steps, np.median(values, axis=0), color=colour, label=text)
            panel.fill_between(
                steps, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.2
            )
    if floor is None:
        return None
    panel.axhline(floor[0], color=EXACT, label="exact draws (± sd of one set)")
    panel.axhspan(floor[0] - floor[1], floor[0] + floor[1], color=EXACT, alpha=0.15)
    panel.set(yscale="log", xlabel="training steps", ylabel="KSD of 500 draws")
    panel.set_ylim(top=min(panel.get_ylim()[1], _HIGHEST))
    panel.set_title("funnel: band from the lowest to the highest seed", fontsize=10)
    panel.legend(fontsize=9)
    return figure
