"""The tables of the first experiment that judge the last iterate, and its costs."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pushforward.experiments import toy2d_settings as settings
from pushforward.experiments.results import Results
from pushforward.report.tables import number, plus_minus, table

LABELS, TARGETS = settings.LABELS, settings.TARGETS
Record = dict[str, Any]
Cell = Callable[[Record], str]


def label(name: str) -> str:
    """What people call a `method|setting`."""
    method, setting = name.split("|")
    return f"{LABELS[method]}, {setting}"


def exact_cell(record: Record | None) -> str:
    """What exact draws score beside a record."""
    if record is None:
        return ""
    return plus_minus(record["exact"], record["exact_sd"])


def worse(record: Record) -> bool:
    """Worse than the paper's figure by more than two of its ±."""
    value = record["value"]
    return value is None or value > record["paper"] + 2 * record["paper_sd"]


def cell_of(results: Results, record: Record) -> dict[str, Any]:
    """The cell that a record stands in."""
    return results.cells["|".join(record[k] for k in ("method", "setting", "target"))]


def rows_of(
    results: Results,
    metric: str,
    cell: Cell,
    shown: Callable[[str], bool] = lambda setting: True,
):
    """One row for each sampler and setting shown that has the metric."""
    seen: dict[tuple[str, str], dict[str, Record]] = {}
    for record in results.records(metric=metric):
        if not shown(record["setting"]):
            continue
        name = record["method"], record["setting"]
        seen.setdefault(name, {})[record["target"]] = record
    order = list(LABELS)

    def place(name: tuple[str, str]):
        method, setting = name
        count = int(setting.split()[0]) if setting.endswith("steps") else 0
        return order.index(method), count, setting

    for name in sorted(seen, key=place):
        method, setting = name
        yield [f"{LABELS[method]}, {setting}"], seen[name], cell


def _floor_cell(text: str, record: Record) -> str:
    return f"**{text}**" if record["at_floor"] else text


def last_iterates(results: Results) -> str:
    """Sliced W2, U- and V-statistics and mode weights of the last iterates."""

    def ratio(record: Record) -> str:
        value = record["value"]
        share = None if value is None else value / record["exact"]
        return _floor_cell(number(share, 2), record)

    def statistic(record: Record) -> str:
        if record["value"] is None:
            return "not finite"
        error = record["sd"] / record["repeats"] ** 0.5
        text = f"{1e3 * record['value']:.2f} ± {1e3 * error:.2f}"
        return _floor_cell(text, record)

    def plain(record: Record) -> str:
        return plus_minus(record["value"], record["sd"])

    def exact_row(metric: str, render: Callable[[Record], str]) -> list[str]:
        found = [results.find(metric=metric, target=t, setting="ours") for t in TARGETS]
        return ["exact draws", *[render(r) if r else "" for r in found]]

    def bound(record: Record) -> str:
        return f"1 (bound {record['bound'] / record['exact']:.2f})"

    def bound_u(record: Record) -> str:
        return f"{1e3 * record['exact']:.2f} (bound {1e3 * record['bound']:.2f})"

    def body(metric: str, cell: Cell) -> list[list[str]]:
        return [
            name + [render(cells[t]) if t in cells else "" for t in TARGETS]
            for name, cells, render in rows_of(
                results, metric, cell, shown=settings.is_shown
            )
        ]

    header = ["sampler", *TARGETS]
    one = results.find(metric="ksd_u", setting="ours")
    two = results.find(metric="sliced_w2", setting="ours")
    if one is None or two is None:
        return ""
    weights = [
        [f"{LABELS[r['method']]}, {r['setting']}", number(r["value"], 4)]
        for r in results.records(metric="mode_weight")
    ]
    return f"""## The last iterate, beside exact draws

The sampler at the end of training, on fresh draws, one seed fixed beforehand: the mean
over {one["repeats"]} sets. **Bold: at the floor**, inside the one-sided 99 % interval
of exact draws' means in the same run (Bonferroni over the six targets).

### Sliced W2 to exact draws, as a multiple of exact draws against exact draws

{two["n"]} draws; the classic samplers 500 (their 500 particles), against exact draws of
the same size.

{table(header, [exact_row("sliced_w2", bound), *body("sliced_w2", ratio)])}

### KSD, U-statistic, in thousandths

{one["n"]} draws; exact draws have mean 0. A sampler that has run away to where the
score is tiny passes here: read it beside the sliced W2.

{table(header, [exact_row("ksd_u", bound_u), *body("ksd_u", statistic)])}

### KSD, V-statistic, 500 draws

{table(header, [exact_row("ksd_v", exact_cell), *body("ksd_v", plain)])}

### `mog2`: the weight of the first mode (exact: .5)

{table(["sampler", "weight"], weights)}
"""


# How many of the last evaluations `swings` looks at.
_LAST = 20


def _range(curve: list[Any]) -> str:
    """The lowest and the highest KSD of these evaluations."""
    values = [value for _, value, _ in curve if value is not None]
    if not values or len(values) < len(curve):
        return number(None)
    return f"{number(min(values), 2)} to {number(max(values), 2)}"


def swings(results: Results) -> str:
    """How far the KSD goes up and down at the end of training as in the paper."""

    def ends(record: Record) -> str:
        return _range(cell_of(results, record)["curve"][0][-_LAST:])

    found = list(
        rows_of(
            results, "ksd_protocol", str, shown=lambda name: name.startswith("paper")
        )
    )
    if not found:
        return ""
    rows = [
        name + [ends(cells[t]) if t in cells else "" for t in TARGETS]
        for name, cells, _ in found
    ]
    # DFT-NS* has no figures in the paper.
    known = [
        (name[0], any(worse(r) for r in cells.values()))
        for name, cells, _ in found
        if all("paper" in r for r in cells.values())
    ]
    near = "; ".join(name for name, far in known if not far) or "none"
    far = "; ".join(name for name, far in known if far) or "none"
    return f"""### The paper's settings

Within two of the paper's ± of its figures, or better, on all targets: {near}. Not on
all: {far}. {settings.PAPER_NOTES}
{_collapse(results)}
{table([f"KSD, the last {_LAST} evaluations", *TARGETS], rows)}
{_score_steps(results)}"""


def _score_steps(results: Results) -> str:
    """What one and five steps of the score make of DFT, everything else being equal."""
    last = settings.FIVE_STEPS
    first = last * 4 // 5
    compared = ("paper", settings.FIVE)
    curves = {}
    for name in [(s, t) for s in compared for t in TARGETS]:
        cell = results.cells.get("|".join(("dft", *name)))
        if cell is None:
            return ""
        curves[name] = cell["curve"][0]
    # They are not evaluated at the same steps: the lowest of more is lower.
    common = set.intersection(*({e[0] for e in curve} for curve in curves.values()))
    steps = sorted(step for step in common if first <= step <= last)
    rows, weights, replays = [], [], []
    for setting in compared:
        own = [[e for e in curves[setting, t] if e[0] in steps] for t in TARGETS]
        rows.append([label(f"dft|{setting}"), *map(_range, own)])
        found = results.find(metric="mode_weight", method="dft", setting=setting)
        weights.append(found and found["value"])
        scores = results.records(metric="ksd_protocol", method="dft", setting=setting)
        replays.append(not any(worse(r) for r in scores))
    modes = " and ".join(number(weight, 4) for weight in weights)
    decides = (
        """So it is the number of score steps that decides whether DFT with these
settings gives the paper's figures.
"""
        if replays == [False, True]
        else ""
    )
    return f"""
Up to step {last:,} one and five steps of the score differ in nothing else but random
numbers. Side by side at the end of that time:

{table([f"KSD, {len(steps)} evaluations from {first:,} on", *TARGETS], rows)}

{decides}KSD does not see modes: the weights of the first mode of `mog2` (.5) are
{modes} at the end of training.
"""


def _collapse(results: Results) -> str:
    """What became of KSD-NS on the donut, if it is in the middle of it."""
    cell = results.cells.get("ksd|paper|donut")
    if cell is None:
        return ""
    far = float(np.median(np.linalg.norm(np.asarray(cell["cloud"]), axis=1)))
    # The ring's own radius is some hundred times that.
    if not far < 0.05:
        return ""
    return f"""
KSD-NS sits in the middle of the donut (the median distance of its draws from it:
{far:.1g}), where the scores, which point outwards all around, cancel in the KSD.
"""


def sweep(results: Results) -> str:
    """DFT at other weights of its first term."""
    wanted = {r["setting"] for r in results.records() if r["setting"].startswith("w1")}
    if not wanted:
        return ""
    names = [("dft_l2", "ours", 0.0), ("dft", "ours", 1.0)]
    names += [("dft", setting, float(setting.split()[-1])) for setting in wanted]
    rows = []
    for method, setting, w1 in sorted(names, key=lambda name: name[2]):
        row = [f"{w1:g}"]
        for target in ("donut", "squiggle"):
            where = {"method": method, "setting": setting, "target": target}
            w = results.find(metric="sliced_w2", **where)
            u = results.find(metric="ksd_u", **where)
            if w is None or u is None:
                row += ["", ""]
                continue
            share = None if w["value"] is None else w["value"] / w["exact"]
            row += [
                _floor_cell(number(share, 2), w),
                _floor_cell(f"{1e3 * (u['value'] or float('nan')):.2f}", u),
            ]
        rows.append(row)
    header = ["w1", "donut: W2", "donut: U", "squiggle: W2", "squiggle: U"]
    return f"""## Balancing the two gradients

The loss is `w1 L1 + L2`; 1 is the full gradient, 0 the paper's DFT-NS*. Sliced W2 as a
multiple of exact draws', U-statistic in thousandths; bold: at the floor.

{table(header, rows)}
"""


def costs(results: Results) -> str:
    """Evaluations and seconds."""
    rows = []
    for name, cells, _ in rows_of(results, "draw_seconds", str):
        any_cell = next(iter(cells.values()))
        counts = [
            r["value"]
            for r in results.records(
                metric="evaluations",
                method=any_cell["method"],
                setting=any_cell["setting"],
            )
        ]
        neural = "together" in any_cell
        compile_seconds = any_cell.get("compile_seconds")
        training = (
            f"{any_cell['seconds']:.1f} for {any_cell['together']} "
            f"({compile_seconds:.1f})"
            if neural
            else ""
        )
        draw = [r["value"] for r in cells.values()]
        # Seconds that were not measured alone.
        mark = "*" if "remark" in cell_of(results, any_cell) else ""
        rows.append(
            [
                *name,
                f"{min(counts):.3g} to {max(counts):.3g}",
                training + mark,
                f"{1e3 * sum(draw) / len(draw):.3g}{mark}",
                any_cell["device"],
            ]
        )
    if not rows:
        return ""
    header = [
        "sampler",
        "target evaluations",
        "training, s (compiling)",
        "500 draws, ms",
        "device",
    ]
    return f"""## What it costs

Neural samplers train on all targets in one program: the seconds are those of all of
them together, in brackets the part that was lowering and compiling. Evaluations are
scores of the target, the first look at it included; for a classic sampler, those of one
set of 500 particles, which have to be paid again for the next. *: see the remarks.

{table(header, rows)}
"""
