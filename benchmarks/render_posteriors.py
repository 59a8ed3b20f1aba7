"""Renders docs/posteriors.md from results/posteriors.json."""

import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from render import table

ROOT = Path(__file__).parents[1]
PAGE, RESULT = ROOT / "docs" / "posteriors.md", ROOT / "results" / "posteriors.json"
VERDICTS = "passed", "inconclusive", "failed"

_HEAD = """# The default on real posteriors

Rendered by `python benchmarks/render_posteriors.py` from `results/posteriors.json`,
which `python benchmarks/posteriors.py` writes. The posteriors are the thirty of
posteriordb that come with reference draws (ten chains of 1,000); `fit` is given the
target and nothing else. Twenty-four of the thirty are linear regressions, so read by
family.

Ratios are means over twenty sets of 2,000 draws against the rest of the reference,
divided by what 2,000 draws of the reference itself score. *Bad* is a ratio of sliced
W2 above 1.5, a mean off by more than .2 sd, or an sd by more than 15 %. `check` did not
see the reference. Where a posterior has several rows, the worst seed is shown.
"""


def posteriors_page(result: dict[str, Any]) -> str:
    """The page, from the result file."""
    rows = result["rows"]
    parts = [_HEAD, _made_by(rows), _confusion(rows)]
    parts.append(_families(rows))
    worst = sorted(_worst(rows), key=lambda r: -r["sliced_w2_ratio"])
    parts.append("## Every posterior, the worst first\n\n" + _each(worst) + "\n")
    return "\n".join(parts)


def _made_by(rows: list[dict[str, Any]]) -> str:
    made = {
        f"{r['device']}, {r['cores']} cores; "
        + ", ".join(f"{k} {v}" for k, v in r["versions"].items())
        for r in rows
    }
    seeds = sorted({r["seed"] for r in rows})
    count = len({r["posterior"] for r in rows})
    return (
        f"{count} posteriors, seeds {', '.join(map(str, seeds))}: {'; '.join(made)}.\n"
    )


def _confusion(rows: list[dict[str, Any]]) -> str:
    lines = []
    for name, bad in (("bad", True), ("not bad", False)):
        part = [r["verdict"] for r in rows if r["bad"] is bad]
        lines.append([name, *(str(part.count(v)) for v in VERDICTS), str(len(part))])
    found = table(["truth", *VERDICTS, "rows"], lines)
    return f"## The blind verdict against the truth\n\n{found}\n"


def _worst(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for r in rows:
        other = found.get(r["posterior"])
        if other is None or r["sliced_w2_ratio"] > other["sliced_w2_ratio"]:
            found[r["posterior"]] = r
    return list(found.values())


def _families(rows: list[dict[str, Any]]) -> str:
    families: dict[str, list[dict[str, Any]]] = {}
    for r in rows:
        families.setdefault(r["family"], []).append(r)
    lines = []
    for name, part in families.items():
        ratios = [r["sliced_w2_ratio"] for r in part]
        lines.append(
            [
                name,
                str(len(part)),
                f"{statistics.median(ratios):.2f}",
                f"{max(ratios):.2f}",
                str(sum(r["bad"] for r in part)),
                f"{statistics.median(r['seconds'] for r in part):.0f}",
            ]
        )
    header = ["family", "rows", "median ratio", "worst ratio", "bad", "median fit, s"]
    within = sum(r["sliced_w2_ratio"] <= 1.3 for r in rows)
    said = f"Of {len(rows)} rows, {within} have a ratio of sliced W2 of at most 1.3."
    return f"## By family\n\n{table(header, lines)}\n\n{said}\n"


def _each(rows: list[dict[str, Any]]) -> str:
    header = ["posterior", "d", "sliced W2", "marginal W1", "worst mean, sds"]
    header += ["worst sd", "k", "ESS a draw", "log Z", "`check`", "fit, s"]
    header += ["evaluations of fit / check"]
    lines = [
        [
            f"`{r['posterior']}`" + (" **bad**" if r["bad"] else ""),
            str(r["dim"]),
            f"{r['sliced_w2_ratio']:.2f}",
            f"{r['marginal_w1_ratio']:.2f}",
            f"{r['mean_error']:.3f} ({r['mean_error_of']})",
            f"{100 * r['sd_error']:.1f} % ({r['sd_error_of']})",
            f"{r['pareto_k']:.2f}",
            f"{r['ess']:.3f}",
            f"{r['log_z']:.2f} ± {r['log_z_se']:.3f}",
            r["verdict"],
            f"{r['seconds']:.0f}",
            f"{r['evaluations'] / 1e6:.1f}M / {r['check_evaluations'] / 1e6:.1f}M",
        ]
        for r in rows
    ]
    return table(header, lines)


if __name__ == "__main__":
    PAGE.write_text(posteriors_page(json.loads(RESULT.read_text("utf-8"))), "utf-8")
    print(PAGE)
