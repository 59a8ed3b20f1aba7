# ruff: noqa: E501  (a paragraph of the page is one line)
"""Renders docs/reliability.md from results/faults.json."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULT, PAGE = ROOT / "results" / "faults.json", ROOT / "docs" / "reliability.md"

_HEAD = """# Reliability

Rendered by `python -m tests.faults.render` from `results/faults.json`, which `make faults`
writes; a test checks that this page and that file agree. What loading a file promises, and
what it does not, is in `SECURITY.md`.

## Exit statuses
| status | what it says |
|---|---|
| 0 | done; of `check` and `demo`: the verdict is "passed" |
| 1 | the verdict is "failed" |
| 2 | what was asked for cannot be done: one line on stderr says what, where, and what to do |
| 3 | the verdict is "inconclusive" |
| 4 | a mistake of pushforward's own: the line says how to report it |
| 128 + n | signal n ended the command: 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM |

## What is kept
- **A file is written whole or not at all**: under a temporary name, then moved. What a killed process left of one is removed when the file is written again, or when its run goes on.
- **A run that was killed at any moment and goes on ends with the bits of one that was not.** Ctrl-C, SIGTERM and SIGHUP leave a checkpoint; SIGTERM and SIGHUP then end the program as usual, and are left alone where they are ignored (`nohup`).
- **What a run has learnt is not written over**: a directory that holds a state, metrics or a sampler without the config of a run is refused.
- **One process at a time trains in a run directory.** The lock is the operating system's: it ends with the process, however that ends, and there is none on file systems without locks.
- **A damaged file is refused**: samplers, networks, states and configs hold a checksum over their content. It is there against damage, not against people: whoever makes a file can make its checksum. A damaged `metrics.jsonl` does not keep a run from going on; what cannot be read is left out, told, and kept aside.
- **Memory**: the compiled programs of the latest few densities are kept, and those of earlier ones are let go of.

## The campaign
Each campaign is a program with a seed (`tests/faults/`). A try fails if it raises anything but an error of pushforward's (of a call, also a plain `TypeError`), hangs, takes more than 1 GB, leaves a file behind, changes a result without a word, or answers with an undocumented status.
"""

# What each campaign is, in the order of the page.
_TITLES = {
    "files": "Damaged and crafted files",
    "pages": "Pages of runs that a stranger wrote",
    "kills": "Processes that are killed",
    "signals": "Processes that are asked to end",
    "writes": "Writes that are cut off",
    "experiments": "Experiments of the paper that are killed",
    "disks": "Disks that fail, directories that vanish",
    "races": "Several processes at once",
    "densities": "Densities that nobody wrote by hand",
    "calls": "Calls with whatever may be passed",
    "words": "The command line with any words",
    "environments": "Settings of the environment",
    "memory": "Memory",
}


def page(result: dict[str, Any]) -> str:
    """The page, from what the campaigns found."""
    found = result["campaigns"]
    rows = ["| campaign | tries | failures | seed | seconds |", "|---|---|---|---|---|"]
    for name, title in _TITLES.items():
        if name in found:
            one = found[name]
            tries, lost = (sum(one[k].values()) for k in ("tries", "failures"))
            rows.append(
                f"| {title} (`{name}`) | {tries:,} | {lost or 'none'} | {one['seed']} | "
                f"{one['seconds']:,.0f} |"
            )
    missing = [name for name in _TITLES if name not in found]
    parts = [_HEAD, "\n".join(rows), ""]
    if missing:
        parts.append(f"Not run yet: {', '.join(missing)}.\n")
    for name, title in _TITLES.items():
        if name in found:
            parts.append(_section(name, title, found[name]))
    return "\n".join(parts)


def _section(name: str, title: str, one: dict[str, Any]) -> str:
    versions = ", ".join(f"{k} {v}" for k, v in one["versions"].items())
    lines = [f"### {title}", f"`python -m tests.faults {name} --seed {one['seed']} "]
    lines[-1] += f"--count {one['count']}`; {one['device']}; {versions}."
    if sum(one["tries"].values()) < one["count"]:
        lines[-1] += " It was ended early."
    lines += ["", "| what was tried | tries | failures |", "|---|---|---|"]
    for kind, tries in one["tries"].items():
        lines.append(f"| {kind} | {tries:,} | {one['failures'].get(kind, 'none')} |")
    if one["numbers"]:
        lines.append("")
        lines += [f"- {k}: {v:,.4g}" for k, v in one["numbers"].items()]
    if one["examples"]:
        lines += ["", f"The first {len(one['examples'])} failures:", ""]
        lines += [f"- `{example.replace('`', '')}`" for example in one["examples"]]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(json.loads(RESULT.read_text())))
