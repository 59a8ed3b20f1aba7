"""Figure 4, drawn from the result file of the second experiment."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from reproduction.common.plots import EXACT, OURS, draw_figures
from reproduction.common.results import Results
from reproduction.covertype.page import FIGURE_4
from reproduction.covertype.reference import FILE, Reference
from reproduction.covertype.settings import IN_PASSING, LABELS, REFERENCE

COLOURS = {"dft": OURS, "kl": "#3f8f4f", "dft_l2": "#a05fb0"}
STYLES = {"ours": "-", "paper": ":"}


def figures(results: Results, folder: Path) -> list[Path]:
    """Draws the figure into `folder`, if there are curves."""
    return draw_figures(results, folder, {FIGURE_4: training})


def training(results: Results) -> Figure | None:
    """Figure 4: accuracy over training, and the posterior error beside it."""
    shown = [
        (method, setting, cell["curve"])
        for method in COLOURS
        for setting in STYLES
        if "curve" in (cell := results.cells.get(f"{method}|{setting}", {}))
    ]
    if not shown:
        return None
    figure = Figure(figsize=(11.0, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for method, setting, curve in shown:
        rows = np.array(curve, float)
        done = rows[:, 0] / rows[-1, 0]
        label = f"{LABELS[method]}, {setting} ({int(rows[-1, 0]):,} steps)"
        style = {"color": COLOURS[method], "ls": STYLES[setting]}
        for panel, column, scale in ((left, 1, 100.0), (right, 3, 1.0)):
            mean, spread = scale * rows[:, column], scale * rows[:, column + 1]
            panel.plot(done, mean, label=label if panel is left else None, **style)
            # On the logarithmic axis the band is as wide below as above.
            log = panel is right
            low = mean**2 / (mean + spread) if log else mean - spread
            panel.fill_between(
                done, low, mean + spread, color=COLOURS[method], alpha=0.15
            )
    exact = results.find(method=REFERENCE.method, metric="accuracy")
    if exact is not None:
        left.axhline(
            100 * exact["value"], color=EXACT, ls="--", label="the exact posterior"
        )
    if (floor := _floor(results)) is not None:
        right.axhline(
            floor, color=EXACT, ls="--", label=f"{IN_PASSING:,} reference draws"
        )
        right.legend(fontsize=8)
    left.set(xlabel="share of training", ylabel="test accuracy of 100 draws, %")
    right.set(
        xlabel="share of training",
        ylabel="largest error of a posterior mean, in sds",
        yscale="log",
    )
    left.legend(fontsize=8)
    return figure


def _floor(results: Results) -> float | None:
    """What reference draws score, as many as are looked at during training.

    They are among those that made the reference's mean, and so a little nearer to it
    than fresh ones; by how much depends on how the chains mixed.
    """
    path = results.path.parent / FILE
    cell = results.cells.get(REFERENCE.name)
    if cell is None or not path.exists():
        return None
    reference = Reference.load(path, cell["sha256"])
    factor = np.asarray(reference.whitening.factor, np.float64)
    x = np.asarray(reference.whitening.centre, np.float64) + reference.draws @ factor.T
    rng = np.random.default_rng(0)
    picked = (rng.permutation(len(x))[:IN_PASSING] for _ in range(20))
    found = [reference.errors(x[some])["mean_error"] for some in picked]
    return float(np.mean(found))
