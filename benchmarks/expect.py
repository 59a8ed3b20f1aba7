"""Renders the table of the README that says what to expect of the default `fit`.

    PYTHONPATH=. python benchmarks/expect.py

Every figure is from `results/hard.json` or `results/posteriors.json`; where there are
several seeds, the worst is shown.
"""

import json
from pathlib import Path
from typing import Any

from render import table

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "README.md", ROOT / "results"
BEGIN, END = "<!-- expect: begin -->", "<!-- expect: end -->"

WHAT = {
    "gaussians40_2d": "40 Gaussians of equal weight",
    "gaussians40_10d": "40 Gaussians of equal weight",
    "gaussians40_50d": "40 Gaussians of equal weight",
    "gaussians40_2d_unequal": "40 Gaussians of unequal weights",
    "gaussians40_10d_unequal": "40 Gaussians of unequal weights",
    "many_well_32": "65,536 wells",
    "many_well_64": "4 billion wells",
    "dw4": "four particles with a double well between each two",
    "lj4": "four Lennard-Jones atoms, left- and right-handed",
    "funnel10": "Neal's funnel",
    "rings": "four rings around each other",
    "cox": "a log-Gaussian Cox process, centred",
    "cox_whitened": "a log-Gaussian Cox process, whitened",
    "sonar": "logistic regression (sonar)",
    "ionosphere": "logistic regression (ionosphere)",
    "german_credit": "logistic regression (German credit)",
    "brownian": "Brownian motion",
    "phi4_disordered": "a phi^4 lattice, disordered",
    "phi4_critical": "a phi^4 lattice near the transition",
    "phi4_ordered": "a phi^4 lattice, ordered",
}


def expectations(results: Path) -> str:
    """The table, from whatever result files are there."""
    rows: list[list[str]] = []
    hard = _read(results / "hard.json")
    for name in WHAT:
        part = [r for r in hard if r["target"] == name]
        if part:
            rows.append(_hard(WHAT[name], part))
    families: dict[str, list[dict[str, Any]]] = {}
    for r in _read(results / "posteriors.json"):
        families.setdefault(r["family"], []).append(r)
    rows += [_family(name, part) for name, part in families.items()]
    header = ["density", "d", "seeds", "ESS a draw", "what else", "fit, s"]
    return table(header, rows)


def with_expectations(page: str, found: str) -> str:
    """The page with this table between its marks."""
    head, rest = page.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n{found}\n{END}{tail}"


def _read(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text("utf-8"))["rows"] if path.exists() else []


def _hard(what: str, part: list[dict[str, Any]]) -> list[str]:
    worst = min(part, key=lambda r: r["ess"])
    said = []
    if "modes" in worst:
        said.append(f"{min(r['modes'] for r in part)} of {worst['modes_known']} modes")
    if "weights_worst" in worst:
        off = max(r["weights_worst"] for r in part)
        said.append(f"weights off by at most {off:.3f}")
    if worst["log_z_known"] is not None:
        off = max((r["log_z"] - r["log_z_known"] for r in part), key=abs)
        said.append(f"log Z off by {off:+.3f}")
    return [
        what,
        str(worst["dim"]),
        str(len(part)),
        f"{worst['ess']:.2f}",
        ", ".join(said),
        f"{max(r['seconds'] for r in part):.0f}",
    ]


def _family(name: str, part: list[dict[str, Any]]) -> list[str]:
    worst = max(part, key=lambda r: r["sliced_w2_ratio"])
    count = len({r["posterior"] for r in part})
    dims = sorted({r["dim"] for r in part})
    said = f"sliced W2 at most {worst['sliced_w2_ratio']:.2f} times the reference's own"
    passed = sum(r["verdict"] == "passed" for r in part)
    return [
        f"posteriordb, {name}: {count}",
        f"{dims[0]} to {dims[-1]}" if len(dims) > 1 else str(dims[0]),
        str(max(sum(r["posterior"] == p["posterior"] for p in part) for r in part)),
        f"{min(r['ess'] for r in part):.2f}",
        f"{said}; `check`, blind, passed {passed} of {len(part)}",
        f"{max(r['seconds'] for r in part):.0f}",
    ]


if __name__ == "__main__":
    page = PAGE.read_text("utf-8")
    PAGE.write_text(with_expectations(page, expectations(RESULTS)), "utf-8")
    print(PAGE)
