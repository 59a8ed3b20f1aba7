"""The page of the first experiment, rendered from its result file."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reproduction.common.results import Results
from reproduction.common.tables import (
    broken_down,
    not_run,
    number,
    plus_minus,
    remarks,
    table,
    where,
)
from reproduction.toy2d import settings

LABELS, TARGETS = settings.LABELS, settings.TARGETS
Record = dict[str, Any]
Cell = Callable[[Record], str]
FIGURE_1, FIGURE_2 = "toy2d_draws.png", "toy2d_gradients.png"


def page(results: Results) -> str:
    """`docs/results/toy2d.md`."""
    parts = [
        _head(results),
        _summary(results),
        _paper_table(results),
        swings(results),
        _classic_notes(results),
        last_iterates(results),
        sweep(results),
        broken_down(results, label),
        costs(results),
        remarks(results, label),
        _figures(results),
        _missing(results),
        where(results),
    ]
    return "\n".join(part for part in parts if part)


def _head(results: Results) -> str:
    exact = [results.find(target=t, metric="ksd_v", setting="ours") for t in TARGETS]
    theirs = [settings.paper("dft", "ours", t) for t in TARGETS]
    rows = [
        ["exact draws", *[exact_cell(r) for r in exact]],
        ["the paper's DFT-NS", *[plus_minus(*p) if p else "" for p in theirs]],
    ]
    return f"""# Every sampler of the paper on six densities in the plane

Rendered by `python -m reproduction report` from `results/toy2d.json` (scale
`{results.scale}`), which `python -m reproduction toy2d --scale {results.scale}`
wrote; no figure is typed.

## What the table means

**There is a floor.** The kernel Stein discrepancy (KSD) of 500 draws is not zero even
for exact draws, and the paper's best rows sit on that floor:

{table(["KSD, 500 draws", *TARGETS], rows)}

Below it there is nothing to win: the paper's figures lie slightly *under* exact
sampling because its protocol keeps the lowest of a hundred noisy evaluations. (SVGD
can lie far below, because its particles are not independent draws.)

**KSD does not see modes.** A sampler that has lost one of the two modes of `mog2`
scores like an exact one. So sliced W2 to exact draws and the weights of the modes
stand beside it.

**The funnel's score in the code behind the paper's table is wrong**: its second
component is ((y - 4)² - 9)/27 instead of -(y - 4)/9, the gradient of nothing that can
be normalised. Replays of LD and SVGD match the paper's funnel column with that score
(`{settings.REPLAY}` here) and not with the right one. Our `funnel` is the true density.
"""


def _paper_table(results: Results) -> str:
    def cell(record: Record) -> str:
        text = plus_minus(record["value"], record["sd"])
        if "paper" in record:
            text += f" ({number(record['paper'])})"
            if worse(record):
                text += " **+**"
        if record.get("still_falling"):
            text += " ↓"
        return text

    rows = [
        name + [cell(cells[t]) if t in cells else "" for t in TARGETS]
        for name, cells, cell in rows_of(
            results, "ksd_protocol", cell, shown=settings.is_shown
        )
    ]
    times = settings.scale(results.scale).repeats
    return f"""## By the paper's protocol

KSD of 500 draws, {times} times: mean ± sd, the paper's mean in brackets. For neural
samplers this is **the lowest mean over all evaluations during training**, as the paper
takes it, and so flatters; the last iterate stands further down. **+**: worse than the
paper's by more than two of its ±. ↓: still falling when training ended.

"paper": networks of four layers of 400 (three hidden), ELU, Adam at 2e-5 without decay,
batch 5000, no whitening; sigma, which the paper does not give, is .1. "ours": one
choice for all six targets, in whitened coordinates (`reproduction/toy2d/settings.py`).
Two methods are called Fisher-NS: one learns the sampler's score, and the paper's
figures stand beside it; the other, of Hu et al., has a critic.

{table(["sampler", *TARGETS], rows)}
"""


def _within(record: Record) -> bool:
    if record["value"] is None:
        return False
    gap = abs(record["value"] - record["paper"])
    return gap <= max(0.25 * record["paper"], 2 * record["paper_sd"])


def _classic_notes(results: Results) -> str:
    """Which classic rows agree with the paper's, and which do not."""

    def compared(record: Record) -> bool:
        # The paper's funnel column was made with the other score. HMC accepts by a
        # density, which that score does not have: its column is the true funnel's.
        wrong = "funnel" if record["method"] != "hmc" else settings.REPLAY
        return "paper" in record and record["target"] != wrong

    records = [
        record
        for kind in ("svgd", "ld", "hmc")
        for record in results.records(metric="ksd_protocol", method=kind)
        if compared(record)
    ]
    if not records:
        return ""
    outside = [
        [
            f"{LABELS[record['method']]}, {record['setting']}",
            f"`{record['target']}`",
            plus_minus(record["value"], record["sd"]),
            plus_minus(record["paper"], record["paper_sd"]),
        ]
        for record in records
        if not _within(record)
    ]
    header = ["sampler", "target", "ours", "paper"]
    listed = f"\n{table(header, outside)}\n" if outside else ""
    replay = [
        [*name, plus_minus(c["value"], c["sd"]), plus_minus(c["paper"], c["paper_sd"])]
        for name, cells, _ in rows_of(results, "ksd_protocol", str)
        if (c := cells.get(settings.REPLAY)) and "paper" in c
    ]
    times = settings.scale(results.scale).repeats
    return f"""### Do the classic rows replay?

500 particles from N(0, I), step .01, {times} repeats. HMC makes {settings.LEAPFROGS}
leapfrog steps, the number that fits the paper's rows best (it does not say its own), so
its agreement is a fit and no confirmation. Within the larger of 25 % and twice the
paper's ±, the funnel column of LD and SVGD with the score of the paper's code:
**{len(records) - len(outside)} of {len(records)}**.{" Not within:" if outside else ""}
{listed}
{settings.REPLAY_NOTES}

The funnel column with the score of the paper's code (`{settings.REPLAY}`):

{table(["sampler", "ours", "paper"], replay)}
"""


def floors(results: Results) -> dict[tuple[str, str], tuple[list[str], list[str]]]:
    """For every trained sampler, the targets where it is at the floor, and the others.

    At the floor in sliced W2 and in the U-statistic of the KSD.
    """
    found: dict[tuple[str, str], tuple[list[str], list[str]]] = {}
    for _, cells, _ in rows_of(results, "ksd_u", str):
        for target, record in cells.items():
            name = record["method"], record["setting"]
            if name[1] not in settings.NEURAL:
                continue
            where = {"method": name[0], "setting": name[1], "target": target}
            distance = results.find(metric="sliced_w2", **where)
            reached = record["at_floor"] and bool(distance and distance["at_floor"])
            found.setdefault(name, ([], []))[0 if reached else 1].append(target)
    return found


def _summary(results: Results) -> str:
    """Which samplers are at the floor, and where."""
    found = floors(results)
    if not found:
        return ""
    rows = [
        [
            f"{LABELS[method]}, {setting}",
            f"{len(reached)} of {len(reached) + len(missed)}",
            ", ".join(missed) or "none",
        ]
        for (method, setting), (reached, missed) in found.items()
    ]
    header = ["sampler", "at the floor in sliced W2 and KSD", "not on"]
    dft = len(found.get(("dft", "ours"), ([], []))[0])
    ahead = [
        method
        for (method, setting), (reached, _) in found.items()
        if setting == "ours" and len(reached) > dft
    ]
    sentence = ""
    if ahead:
        names = ", ".join(LABELS[method] for method in ahead)
        sentence = f"\nThe paper's own method is not ahead. Further than it: {names}"
        # What is known of these, and not of others that may get there.
        if set(ahead) <= {"recipe", "kl", "flow"}:
            sentence += ", by the reverse KL divergence, the more robust objective"
        sentence += ".\n"
    return f"""## Who reaches the floor

The last iterate, judged beside exact draws (the tables follow further down):

{table(header, rows)}
{sentence}"""


def _figures(results: Results) -> str:
    text = f"""## Figures

![Draws beside exact draws]({FIGURE_1})

Figure 1: 500 draws each on `donut` and `rosenbrock` over the density's contours.
"""
    if any(
        "curve" in cell and len(cell["curve"]) > 1 for cell in results.cells.values()
    ):
        text += f"""
![KSD over training on the funnel]({FIGURE_2})

Figure 2: KSD of 500 draws over training on `funnel`, full gradient (`w1 = 1`) and L2
alone (`w1 = 0`): the median over several seeds, with a band from the lowest to the
highest, and the floor of exact draws. What leaves the frame has run away.
"""
    return text


def _missing(results: Results) -> str:
    """The samplers of this scale that have not been run on every target."""
    groups = settings.groups(settings.scale(results.scale))
    left = [g for g in groups if not set(g.cells) <= set(results.cells)]
    return not_run([group.label for group in left])


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
