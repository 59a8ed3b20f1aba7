"""Markdown tables, and the sections that every page of results has."""

import re
from collections.abc import Callable, Sequence

from pushforward.experiments.results import Results


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many digits after the point, without a leading zero."""
    if value is None:
        return "not finite"
    text = f"{value:.{digits}f}"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def plus_minus(value: float | None, spread: float | None, digits: int = 3) -> str:
    """`value ± spread`; where there is no value, there is no spread."""
    if value is None:
        return number(None)
    return f"{number(value, digits)} ± {number(spread, digits)}"


def not_run(labels: Sequence[str]) -> str:
    """The section on what a result file does not hold yet; none if it is whole."""
    return f"## Not run yet\n\n{', '.join(labels)}.\n" if labels else ""


def broken_down(results: Results, label: Callable[[str], str]) -> str:
    """The section on training that stopped early; none if all of it finished.

    Args:
        results: whose cells are called `method|setting` or `method|setting|target`.
        label: what people call a `method|setting`.
    """
    found: dict[str, list[str]] = {}
    for name, cell in results.cells.items():
        every = cell.get("statuses") or [cell.get("status", "Finished")]
        early = [status for status in every if not status.startswith("Finished")]
        if not early:
            continue
        method, setting, *target = name.split("|")
        # Skipped steps are not quoted: in older files, a status has the count of the
        # worst of the samplers that trained together.
        made = re.search(r"after (\d+)", early[0])
        words = f"after {int(made[1]):,} steps" if made else "before the end"
        words += "".join(f" on `{where}`" for where in target)
        if len(every) > 1:
            words += f" ({len(early)} of {len(every)})"
        found.setdefault(label(f"{method}|{setting}"), []).append(words)
    if not found:
        return ""
    listed = "\n".join(f"- {k}: frozen {', '.join(v)}." for k, v in found.items())
    return f"""## Where training broke down

A step that is not finite is skipped. Where too many came in a row, the sampler was
frozen where it stood; the tables judge what was left of it.

{listed}
"""


def remarks(results: Results, label: Callable[[str], str]) -> str:
    """The section on what whoever put a cell into the file has to say of it."""
    found: dict[str, list[str]] = {}
    for name, cell in sorted(results.cells.items()):
        if "remark" in cell:
            who = label("|".join(name.split("|")[:2]))
            said = found.setdefault(cell["remark"], [])
            said += [] if who in said else [who]
    lines = [f"- {'; '.join(who)}: {remark}" for remark, who in found.items()]
    return "## Remarks\n\n" + "\n".join(lines) + "\n" if lines else ""


def where(results: Results) -> str:
    """The section on devices and versions."""
    lines = {
        (r["device"], ", ".join(f"{k} {v}" for k, v in r["versions"].items()))
        for r in results.records()
    }
    listed = "\n".join(f"- {device}; {versions}" for device, versions in sorted(lines))
    return f"## Where it was run\n\n{listed}\n"
