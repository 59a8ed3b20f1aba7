"""Markdown tables, and the sections that every page of results has."""

from collections.abc import Callable, Sequence

from reproduction.common.results import Results, endings


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float | None, digits: int = 3) -> str:
    """Formats a number with `digits` decimals and without a leading zero."""
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
    """The section that lists what has not been run; empty if everything has."""
    return f"## Not run yet\n\n{', '.join(labels)}.\n" if labels else ""


def broken_down(results: Results, label: Callable[[str], str]) -> str:
    """The section on training that stopped early; empty if all training finished.

    Args:
        results: whose cells are called `method|setting` or `method|setting|target`.
        label: the display name of a `method|setting`.
    """
    found: dict[str, list[str]] = {}
    for name, cell in results.cells.items():
        every = endings(cell)
        early = [each for each in every if each["status"] != "finished"]
        if not early:
            continue
        method, setting, *target = name.split("|")
        made = early[0].get("steps")
        words = "before the end" if made is None else f"after {made:,} steps"
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
    """The section of the remarks stored with the cells."""
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
