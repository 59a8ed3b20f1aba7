"""The figures of the third experiment, drawn from its result file."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reproduction.common.plots import EXACT, OURS, draw_figures
from reproduction.common.results import Results
from reproduction.mnist.data import SIDE
from reproduction.mnist.images import grid, unpack
from reproduction.mnist.page import (
    FIGURE_3,
    FIGURE_5,
    FIGURE_ENERGIES,
    FIGURE_NEAREST,
    label,
    one_step,
    samplers,
)

COLOURS = {
    "dft_l2": OURS,
    "dft_minus": "#c98a2b",
    "dft": "#a05fb0",
    "kl": "#3f8f4f",
    "small": "#7f9fc8",
}
STYLES = {
    "ours": "-",
    "equal codes": "-.",
    "no codes": "--",
    "paper": ":",
}
_GREY = "#555555"


def figures(results: Results, folder: Path) -> list[Path]:
    """Draws the figures for which there is something to show into `folder`."""
    makers = {
        FIGURE_3: images,
        FIGURE_5: training,
        FIGURE_NEAREST: neighbours,
        FIGURE_ENERGIES: energies,
    }
    return draw_figures(results, folder, makers)


def _show(panel: Axes, page: np.ndarray, title: str) -> None:
    panel.imshow(page, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    panel.set_title(title, fontsize=9)
    panel.set_axis_off()


def images(results: Results) -> Figure | None:
    """Figure 3: the first images of every sampler, and real ones."""
    shown = [
        (label(name), results.cells[name]["images"]) for name, _ in samplers(results)
    ]
    if not shown:
        return None
    real = results.cells.get("classifier|ours")
    if real is not None:
        shown.insert(0, ("test images", real["images"]))
    columns = min(len(shown), 4)
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(2.8 * columns, 3.0 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels:
        panel.set_axis_off()
    for panel, (title, text) in zip(panels, shown, strict=False):
        _show(panel, grid(unpack(text, SIDE * SIDE), 6), title)
    return figure


def training(results: Results) -> Figure | None:
    """Figure 5: FID over training, with the lines of Langevin and of the floor."""
    shown = [n for n, _ in one_step(results) if results.cells[n].get("curve")]
    if not shown:
        return None
    figure = Figure(figsize=(9.5, 4.8), layout="constrained")
    panel = figure.subplots()
    for name in shown:
        method, setting = name.split("|")
        rows = np.array(results.cells[name]["curve"], float)
        (line,) = panel.plot(rows[:, 0], rows[:, 1], label=label(name))
        line.set(color=COLOURS[method], linestyle=STYLES[setting])
    for steps, style in ((200, "--"), (250, "-.")):
        rival = results.find(method="langevin", setting=f"{steps} steps", metric="fid")
        if rival is not None and rival["value"] is not None:
            words = f"Langevin, {steps} steps"
            panel.axhline(rival["value"], color=_GREY, ls=style, lw=1, label=words)
    floor = results.find(method="train", metric="fid")
    if floor is not None:
        panel.axhline(floor["value"], color=EXACT, ls="--", lw=1, label="the floor")
    panel.set(xlabel="training steps", ylabel="FID", yscale="log")
    _legend_beside(panel)
    return figure


def neighbours(results: Results) -> Figure | None:
    """Draws of every generator, and below each the training image nearest to it."""
    shown = [(n, results.cells[n]) for n, _ in one_step(results)]
    shown = [(name, cell) for name, cell in shown if "nearest" in cell]
    if not shown:
        return None
    figure = Figure(figsize=(6.0, 1.7 * len(shown)), layout="constrained")
    panels = figure.subplots(len(shown), 1, squeeze=False).ravel()
    for panel, (name, cell) in zip(panels, shown, strict=True):
        below = unpack(cell["nearest"], SIDE * SIDE)
        above = unpack(cell["images"], SIDE * SIDE)[: len(below)]
        _show(panel, grid(np.concatenate([above, below]), len(below)), label(name))
    return figure


def energies(results: Results) -> Figure | None:
    """Histograms of f: generators, the longest Langevin chains, test images."""
    generators = [name for name, _ in one_step(results)]
    chains = [n for n, _ in samplers(results) if n.startswith("langevin")]
    if not generators:
        return None
    figure = Figure(figsize=(9.5, 4.0), layout="constrained")
    panel = figure.subplots()
    lines = [(n, label(n), COLOURS[n.split("|")[0]], 1.3) for n in generators]
    lines += [(n, label(n), _GREY, 1.3) for n in chains[-1:]]
    lines.append(("energy|ours", "test images", EXACT, 2.0))
    for name, words, colour, width in lines:
        cell = results.cells.get(name, {})
        if "energies" in cell:
            edges, heights = cell["energies"]
            style = STYLES.get(name.split("|")[1], "-")
            panel.stairs(heights, edges, color=colour, lw=width, ls=style, label=words)
    panel.set(xlabel="f", ylabel="density", yticks=[])
    panel.spines[["top", "left", "right"]].set_visible(False)
    _legend_beside(panel)
    return figure


def _legend_beside(panel: Axes) -> None:
    """A legend to the right of the lines, which fill the panel."""
    panel.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
