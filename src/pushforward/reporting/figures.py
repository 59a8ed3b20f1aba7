"""The pictures of a page, from its contents."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pushforward.reporting.svg import Panel, span

# Classes of the style sheet.
OURS, REFERENCE, MOVED = "ours", "reference", "moved"
_LOG_RATIO = 100


def ecdfs(found: dict[str, Any]) -> list[str]:
    """`F - u` of the worst parameters, and the band that exact draws stay in."""
    width = found["band"]
    made = []
    for curve in found["curves"]:
        ends = span([*curve["draws"], *curve["reference"], -width, width])
        panel = Panel((0, 1), ends, curve["name"], "quantile of the reference")
        panel.area([(0, -width), (1, -width), (1, width), (0, width)], "band")
        for kind in (REFERENCE, OURS):
            values = curve["draws" if kind == OURS else "reference"]
            levels = np.linspace(0, 1, len(values)).tolist()
            panel.line(zip(levels, values, strict=True), kind)
        outside = max(map(abs, curve["draws"])) > width
        said = f"{curve['name']}: {'leaves' if outside else 'stays in'} the band"
        made.append(panel.render(said))
    return made


def modes(found: dict[str, Any]) -> str:
    """The share of each mode in the draws and in the reference, with intervals."""
    rows = found["rows"]
    most = max(row[side][2] for row in rows for side in ("draws", "reference"))
    panel = Panel(
        (0, most * 1.05),
        (-len(rows) + 0.4, 0.6),
        label="share of the draws, with a 95 % interval",
        width=480,
        height=70 + 26 * len(rows),
        ticks=True,
        names=[point(row["centre"]) for row in rows],
    )
    for i, row in enumerate(rows):
        for side, kind, y in (("reference", REFERENCE, 0.13), ("draws", OURS, -0.13)):
            low, at, high = row[side]
            panel.whisker(low, at, high, y - i, kind)
    return panel.render("weights of the modes")


def point(centre: Sequence[Any]) -> str:
    """The first numbers of a point."""
    return f"({', '.join(f'{v + 0.0:.3g}' for v in centre)})"


def pairs(found: dict[str, Any]) -> tuple[list[list[str]], int]:
    """Rows of a table of panels: histograms on the diagonal, draws below it."""
    names, ours = found["names"], np.asarray(found["draws"], float)
    theirs = found["reference"]
    theirs = None if theirs is None else np.asarray(theirs, float)
    both = ours if theirs is None else np.concatenate([ours, theirs])
    ends = [_ends(both[:, i]) for i in range(len(names))]
    rows = []
    for i, name in enumerate(names):
        row = []
        for j in range(i + 1):
            if i == j:
                row.append(_histogram(name, ends[i], ours[:, i], theirs, i))
                continue
            panel = Panel(ends[j], ends[i], width=160, height=160, ticks=False)
            if theirs is not None:
                panel.dots(theirs[:, [j, i]].tolist(), REFERENCE)
            panel.dots(ours[:, [j, i]].tolist(), OURS)
            row.append(panel.render(f"{names[j]} and {name}"))
        rows.append(row)
    return rows, len(names)


def _histogram(name, ends, ours, theirs, i) -> str:
    edges = np.linspace(ends[0], ends[1], 25)
    heights = {OURS: np.histogram(ours, edges)[0] / max(len(ours), 1)}
    if theirs is not None:
        heights[REFERENCE] = np.histogram(theirs[:, i], edges)[0] / len(theirs)
    high = max(h.max() for h in heights.values()) or 1.0
    panel = Panel(ends, (0, high * 1.1), name, width=160, height=160, ticks=False)
    if theirs is not None:
        panel.steps(edges.tolist(), heights[REFERENCE].tolist(), f"filled {REFERENCE}")
    panel.steps(edges.tolist(), heights[OURS].tolist(), OURS)
    return panel.render(f"distribution of {name}")


def _ends(values: np.ndarray) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    low, high = np.quantile(finite, [0.005, 0.995]) if len(finite) else (0.0, 1.0)
    room = 0.1 * (high - low) or 1.0
    return float(low - room), float(high + room)


def log_densities(found: dict[str, Any]) -> str:
    """Histograms of the log density: reference, draws, and draws that were moved."""
    edges, shares = found["edges"], found["shares"]
    high = max(max(s) for s in shares.values())
    panel = Panel(
        (edges[0], edges[-1]), (0, high * 1.08), "share of the draws",
        "log density (un-normalised)", 480, 240,
    )  # fmt: skip
    if "reference" in shares:
        panel.steps(edges, shares["reference"], f"filled {REFERENCE}")
    if "moved" in shares:
        panel.steps(edges, shares["moved"], MOVED)
    panel.steps(edges, shares["draws"], OURS)
    return panel.render("histograms of log densities")


def weights(found: dict[str, Any]) -> str:
    """The share of draws whose weight exceeds each value, on logarithmic axes."""
    tail = [(b, a) for a, b in found["tail"]]
    x = span([*(p[0] for p in tail), 0.0])
    y = span(p[1] for p in tail)
    panel = Panel(
        x, y, "share of draws with a weight above", "weight, its mean being 1",
        480, 240, powers=(True, True),
    )  # fmt: skip
    if x[0] < 0 < x[1]:
        panel.line([(0.0, y[0]), (0.0, y[1])], "exact")
    panel.line(tail, OURS)
    return panel.render("tail of the importance weights")


def training(found: dict[str, Any]) -> list[str]:
    """One panel for each column of the history; bounds of log Z share one."""
    made = []
    for stage in found["stages"]:
        curves = dict(stage["curves"])
        groups = []
        if {"elbo", "eubo"} <= curves.keys():
            groups.append(("bounds of log Z", [curves.pop("elbo"), curves.pop("eubo")]))
            curves.pop("log_normaliser", None)
        groups += [(name, [curve]) for name, curve in curves.items()]
        several = len(found["stages"]) > 1 and stage["name"]
        for name, lines in groups:
            title = f"{stage['name']}: {name}" if several else name
            made.append(_curve(title.replace("_", " "), lines))
    return made


def _curve(title: str, lines: Sequence[Any]) -> str:
    """Lines over steps, on a logarithmic axis where they span powers of ten."""
    kept = [[(s, v) for s, v in line if v is not None] for line in lines]
    values = np.array([v for line in kept for _, v in line] or [0.0])
    powers = bool(values.min() > 0 and values.max() / values.min() > _LOG_RATIO)
    if powers:
        kept = [[(s, float(np.log10(v))) for s, v in line] for line in kept]
        ends = span(v for line in kept for _, v in line)
    else:
        # The first values may be far from all others: they are drawn at the edge.
        settled = values[len(values) // 10 :]
        ends = span(np.quantile(settled, [0.005, 0.995]).tolist(), 0.15)
    last = max((s for line in kept for s, _ in line), default=1)
    panel = Panel((0, last), ends, title, "step", powers=(False, powers))
    for line, kind in zip(kept, (OURS, REFERENCE), strict=False):
        panel.line(line, kind)
    return panel.render(title)
