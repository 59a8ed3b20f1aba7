"""Renders docs/benchmarks.md and docs/verdict.md from the files in results/."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_HEAD = """# Benchmarks

Rendered by `python benchmarks/render.py` from the files in `results/`, each of which a
command in `benchmarks/` wrote. A test checks that this page and those files agree.
"""


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def benchmarks_page(results: Path) -> str:
    """The page `docs/benchmarks.md`, from whatever result files are there."""
    parts = [_HEAD]
    sections = (
        ("default_fit.json", default_fit),
        ("default_fit_wide.json", default_fit),
        ("default_fit_gpu.json", default_fit),
        ("by_name.json", by_name),
        ("fit_many.json", fit_many),
        ("engine.json", engine),
        ("hard.json", hard),
        ("energy_step.json", energy_step),
        (
            "benchmark_ksd.json",
            plain("The kernel Stein discrepancy", "benchmarks/ksd.py"),
        ),
        ("benchmark_stream.json", plain("Streaming draws", "benchmarks/stream.py")),
    )
    for name, render in sections:
        path = results / name
        if path.exists():
            parts.append(render(json.loads(path.read_text())))
    return "\n".join(parts)


def _where(result: dict[str, Any]) -> str:
    versions = ", ".join(f"{k} {v}" for k, v in result["versions"].items())
    cores = f", {result['cores']} cores" if "cores" in result else ""
    remark = f"; {result['remark']}" if "remark" in result else ""
    return f"{result['device']}{cores}; {versions}{remark}"


def _weights(first: float, exact: float) -> str:
    found = f"{first:.4f} / {1 - first:.4f}"
    return found if exact == 0.5 else f"{found} (exact {exact:g} / {1 - exact:g})"


def default_fit(result: dict[str, Any]) -> str:
    """The default `fit` on every target, beside exact draws."""
    rows = []
    for r in result["records"]:
        weight = r.get("weight_of_first_mode")
        rows.append(
            [
                f"`{r['target']}` ({r['dim']}-d)",
                f"{r['fit_seconds']:.0f}",
                f"{r['sliced_w2_ratio']:.3f} (bound {r['sliced_w2_bound_ratio']:.3f})",
                "yes" if r["sliced_w2_at_floor"] else "**no**",
                f"{r['ksd_u']:.5f} ± {r['ksd_u_error']:.5f}",
                f"{r['ksd_u_exact']:.5f} (bound {r['ksd_u_bound']:.5f})",
                "yes" if r["ksd_at_floor"] else "**no**",
                "DFT" if r["dft_chosen"] else "KL",
                "" if weight is None else _weights(weight, r.get("weight_exact", 0.5)),
            ]
        )
    header = [
        "target",
        "fit, s",
        "sliced W2, ratio to exact",
        "at the floor",
        "KSD U-statistic",
        "of exact draws",
        "at the floor",
        "kept",
        "mode weights",
    ]
    # Older files are of the nine built-in targets, and do not say so.
    seed, count = result["records"][0]["seed"], result.get("comparisons", 9)
    wide = all(r["dim"] > 32 for r in result["records"])
    where = ", in many dimensions" if wide else ""
    source = " on the densities of `benchmarks/densities.py`" if wide else ""
    return f"""## Default `fit`, no option, seed {seed}{where}, on {result["device"]}

`benchmarks/default_fit.py`{source}; {_where(result)}. Last iterate,
{result["sets"]} fresh sets of {result["draws"]} draws; beside them
{result["exact_sets"]} sets of exact draws of the same run. Sliced W2 is in units of the
target's standard deviations, as a ratio to exact draws against exact draws. "At the
floor": the mean lies inside the one-sided 99 % interval of exact draws' means,
Bonferroni over {count} targets. Seconds include compilation. Where the bound on the
U-statistic is large (funnels, whose score has heavy tails), KSD says little, and it
never sees modes: the sliced W2 and the weights do.

{table(header, rows)}
"""


def by_name(result: dict[str, Any]) -> str:
    """Methods with no argument, the worst seed of each target."""
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for r in result["rows"]:
        cells.setdefault((r["method"], r["target"]), []).append(r)
    rows = []
    for (method, target), runs in cells.items():
        worst = max(runs, key=lambda r: r["sliced_w2_ratio"])
        floor = sum(r["sliced_w2_at_floor"] for r in runs)
        least = max(runs, key=lambda r: r["ksd_u"])
        name = "weight_of_first_mode"
        weights = [r[name] for r in runs if name in r]
        rows.append(
            [
                f"`{method}`",
                f"`{target}`",
                ", ".join(str(r["seed"]) for r in runs),
                f"**{worst['sliced_w2_ratio']:.2f}** "
                f"(bound {worst['sliced_w2_bound_ratio']:.2f})",
                f"{floor} of {len(runs)}",
                f"{max(r['sliced_w2_ratio_start'] for r in runs):.2f}",
                f"{1e3 * least['ksd_u']:.2f} ± {1e3 * least['ksd_u_error']:.2f} "
                f"(bound {1e3 * least['ksd_u_bound']:.2f})",
                f"{1e3 * max(r['ksd_u_start'] for r in runs):.2f}",
                ", ".join(f"{w:.3f}" for w in weights),
                f"{max(r['seconds'] for r in runs):.0f}",
                f"{max(r['evaluations'] for r in runs) / 1e6:.1f}",
            ]
        )
    header = [
        "method",
        "target",
        "seeds",
        "sliced W2, ratio to exact: worst seed",
        "at the floor",
        "before training",
        "KSD U, thousandths: worst seed",
        "before training",
        "weight of the first mode (exact .5)",
        "fit, s, at most",
        "evaluations, millions",
    ]
    return f"""## Methods by name, no argument

`benchmarks/by_name.py`; {_where(result)}. Last iterate, {result["sets"]} fresh sets of
{result["draws"]} draws beside {result["exact_sets"]} sets of exact draws of the same
run. "Before training": the mixture that the method starts from, the worst seed too.
"At the floor": seeds whose mean sliced W2 lies inside the one-sided 99 % interval of
exact draws' means, Bonferroni over six targets. Seconds include compilation, and are of
a machine that did other work too.

{table(header, rows)}
"""


def hard(result: dict[str, Any]) -> str:
    """The default `fit` on hard densities, the worst seed of each first."""
    rows = []
    known_density = [r for r in result["rows"] if "ess" in r]
    for r in sorted(known_density, key=lambda r: r["ess"]):
        known = "" if r["log_z_known"] is None else f"{r['log_z_known']:.2f}"
        modes = "" if "modes" not in r else f"{r['modes']} of {r['modes_known']}"
        off = "" if "weights_worst" not in r else f"{r['weights_worst']:.4f}"
        in_sds = r.get("weights_worst_in_sds")
        rows.append(
            [
                f"`{r['target']}` ({r['dim']}-d)",
                str(r["seed"]),
                f"{r['ess']:.3f}",
                f"{r['pareto_k']:.2f}",
                f"{r['log_z']:.3f} ± {r['log_z_se']:.3f}",
                known,
                f"{r['elbo']:.3f}",
                f"{r['eubo']:.3f}" if "eubo" in r else "",
                modes,
                f"{r['entropy']:.4f}" if "entropy" in r else "",
                off if in_sds is None else f"{off} ({in_sds:.1f} sd)",
                f"{r['seconds']:.0f}",
                f"{r['evaluations'] / 1e6:.1f}",
                f"{r['steps']:,}",
                f"{r['device']}, {r['cores']} cores",
            ]
        )
    header = [
        "target",
        "seed",
        "ESS a draw",
        "Pareto k",
        "log Z",
        "known",
        "ELBO",
        "EUBO",
        "modes",
        "entropy",
        "worst weight off by",
        "fit, s",
        "evaluations, millions",
        "steps",
        "device",
    ]
    made = {json.dumps(r["versions"], sort_keys=True) for r in result["rows"]}
    versions = "; ".join(
        ", ".join(f"{k} {v}" for k, v in json.loads(each).items())
        for each in sorted(made)
    )
    return f"""## Default `fit` on hard densities

`benchmarks/hard.py` on the densities of `benchmarks/hard_densities.py`; {versions}.
10,000 fresh draws of the last iterate; the lowest effective sample size first. The EUBO
is from exact draws. "Worst weight off by": the weight of a mode (or the probability of
another event) that differs most from the exact one, and the same in standard deviations
of as many exact draws. Rows of other seeds, and densities that are not listed, have not
been run. Seconds are of machines that did other work too.

{table(header, rows)}
"""


def fit_many(result: dict[str, Any]) -> str:
    """Many seeds in one program."""
    n = result["seeds"]
    made = [f"{result[k]:,}" for k in ("steps_1", f"steps_{n}") if k in result]
    steps = f" Steps: {' and '.join(made)}." if made else ""
    return f"""## {n} seeds beside one

`benchmarks/fit_many.py`; {_where(result)}. The default recipe on `{result["target"]}`,
compiled beforehand: one seed {result["seconds_1"]} s, {n} seeds
{result[f"seconds_{n}"]} s, a ratio of **{result["ratio"]}**. With compilation:
{result["first_seconds_1"]} s and {result[f"first_seconds_{n}"]} s.{steps}
"""


def engine(result: dict[str, Any]) -> str:
    """The engine beside a bare scan."""
    rows = [
        [
            f"`{name}`",
            f"{r['seconds']['scan']:.2f}",
            f"{r['fit_over_scan']:.3f}",
            f"{r['fit_to_disk_over_scan']:.3f}",
        ]
        for name, r in result.items()
        if isinstance(r, dict) and "fit_over_scan" in r
    ]
    header = ["method", "bare scan, s", "`fit` / scan", "`fit` to disk / scan"]
    return f"""## The engine beside a bare `lax.scan`

`benchmarks/engine.py`; {_where(result)}. {result["steps"]} steps, medians of
{result["repeats"]} runs in turns, all compiled beforehand.

{table(header, rows)}
"""


def energy_step(result: dict[str, Any]) -> str:
    """A training step of the energy model, beside a bare one and a convolution."""
    step, large = result["batch_128"], result["batch_512"]
    rates = result["convolution_tflop_a_second"]
    rows = [
        ["a training step, batch 128", f"{step['tflop_a_second']:.0f}"],
        ["a training step, batch 512", f"{large['tflop_a_second']:.0f}"],
        ["a pass forward, batch 512", f"{result['forward_tflop_a_second']:.0f}"],
        *(
            [f"a 3x3 convolution, {name}", f"{rate:.0f}"]
            for name, rate in rates.items()
        ),
    ]
    share = result["share_of_best_convolution"]
    best = max(rates.values())
    own = [100 * rate / best for name, rate in rates.items() if "batch 128" in name]
    low, high = min(own), max(own)
    return f"""## A training step of the energy model

`benchmarks/energy.py`; {_where(result)}; {result["dtype"]}. The
network of `python -m reproduction mnist` at full scale, {result["steps"]} steps of
batch 128, compiled beforehand: {step["bare_ms_a_step"]:.2f} ms a step in a bare scan.
Through the engine a further step takes **{step["engine_step_over_bare"]:.2f} times** as
long, and the whole run, with what is paid once, {step["engine_over_bare"]:.2f} times.
The step runs at **{100 * share:.0f} %** of the rate of the fastest convolution that was
tried; convolutions of the network's own sizes, alone, run at {low:.0f} to {high:.0f} %.

{table(["what", "TFLOP/s"], rows)}
"""


_SYMBOLS = {"failed": "✗", "inconclusive": "?", "passed": "✓", None: "·"}


def verdict_page(result: dict[str, Any]) -> str:
    """The page `docs/verdict.md`: what `check` catches, and what exact draws get."""
    rows = result["rows"]
    exact = [r for r in rows if r["kind"] == "exact draws"]
    bad = [r for r in rows if r["kind"] != "exact draws"]
    sizes, main = sorted({r["n"] for r in bad}), 2000
    found = {(r["target"], r["kind"], r["n"], r["seed"]): r["outcome"] for r in bad}
    targets = list(dict.fromkeys(target for target, _ in result["counted"]))
    outcomes = ["failed", "inconclusive", "passed"]

    def tally(verdicts: Sequence[str | None]) -> list[str]:
        return [str(list(verdicts).count(name)) for name in outcomes]

    forty, missed = [], []
    for seed in sorted({r["seed"] for r in bad}):
        verdicts = {
            (target, kind): found[target, kind, main, seed]
            for target, kind in result["counted"]
            if (target, kind, main, seed) in found
        }
        forty.append([str(seed), str(len(verdicts)), *tally([*verdicts.values()])])
        missed += [
            f"{kind} of `{target}`, seed {seed} ({outcome})"
            for (target, kind), outcome in verdicts.items()
            if outcome != "failed"
        ]

    def cell(target: str, kind: str) -> str:
        return " ".join(_SYMBOLS[found.get((target, kind, n, 0))] for n in sizes)

    alike = [[k, *(cell(t, k) for t in targets)] for k in result["alike"]]
    own = [
        [f"`{target}`", kind, cell(target, kind)]
        for target, kind in result["counted"]
        if kind not in result["alike"]
    ]
    by_size = [
        [f"{n:,}", *tally([r["outcome"] for r in bad if (r["n"], r["seed"]) == (n, 0)])]
        for n in sizes
    ]
    at_main = [r["failed"] for r in bad if (r["n"], r["seed"]) == (main, 0)]
    tests = [
        [
            name,
            str(sum(name in failed for failed in at_main)),
            str(sum(failed == [name] for failed in at_main)),
            str(sum(name in r["failed"] for r in exact)),
        ]
        for name in dict.fromkeys(name for r in rows for name in r["p_values"])
    ]
    shown = ", ".join(f"{n:,}" for n in sizes)
    seconds = sorted(r["seconds"] for r in rows)[len(rows) // 2]
    return f"""# What the verdict catches

Rendered by `python benchmarks/render.py` from `results/power.json`, which
`benchmarks/power.py` wrote; {_where(rows[0])}. A row is
one call of `pf.check` on given draws. The reference is {result["reference"]:,} exact
draws, made once a target and shared. A verdict took {seconds:.1f} s in the median, on a
machine that did other work too.

## Forty bad samplers, {main:,} draws

They were chosen from those below before any was tested. Two of the first twelve, tails
cut at 99.5 % and a correlation off by .2, passed at first: then the test of moments was
added, and the test of extremes gives more of its level to tails that are missing all
around. Draws of the second seed had no part in that.

{table(["seed", "tested", *outcomes], forty)}

Not failed: {"; ".join(missed) if missed else "none"}.

## Exact draws

{len(exact)} sets of {main:,} exact draws, over {len(targets)} targets. At most 1 %
should fail.

{table(outcomes, [tally([r["outcome"] for r in exact])])}

## Every fault, target and size

One set of draws each: ✗ failed, ? inconclusive, ✓ passed, · not run; from left to right
with {shown} draws.

{table(["fault", *(f"`{t}`" for t in targets)], alike)}

{table(["target", "fault of its own", "verdict"], own)}

{table(["draws", *outcomes], by_size)}

## Which test says so

Of the faults with {main:,} draws, first seed, and of the sets of exact draws.

{table(["test", "fails", "alone", "fails exact draws"], tests)}
"""


def plain(title: str, script: str):
    """A section that lists a result file's figures by name."""

    def render(result: dict[str, Any]) -> str:
        rows = [[f"`{k}`", f"{v}"] for k, v in _flat(result)]
        return f"## {title}\n\n`{script}`\n\n{table(['figure', 'value'], rows)}\n"

    return render


def _flat(tree: dict[Any, Any], prefix: str = ""):
    for name, value in tree.items():
        if isinstance(value, list):
            value = dict(enumerate(value, start=1))
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield (
                f"{prefix}{name}",
                f"{value:.6g}" if isinstance(value, float) else value,
            )


if __name__ == "__main__":
    root = Path(__file__).parents[1]
    page = root / "docs" / "benchmarks.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text(benchmarks_page(root / "results"))
    print(page)
    page = root / "docs" / "verdict.md"
    page.write_text(
        verdict_page(json.loads((root / "results" / "power.json").read_text("utf-8")))
    )
    print(page)
