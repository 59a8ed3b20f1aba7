"""Markdown tables."""

from collections.abc import Sequence


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
    """`value ± spread`."""
    return f"{number(value, digits)} ± {number(spread, digits)}"


def not_run(labels: Sequence[str]) -> str:
    """The section on what a result file does not hold yet; none if it is whole."""
    return f"## Not run yet\n\n{', '.join(labels)}.\n" if labels else ""
