"""The table of what was measured during training."""

from collections.abc import Sequence
from typing import Any

import numpy as np

# The width that a table keeps to, and how many of its rows are shown at either end.
_WIDTH, _FIRST, _LAST = 88, 2, 3


class History:
    """Rows of numbers by name; a column is `history["loss"]`.

    Printed, it is one short table for each kind of row: a stage of training has columns
    of its own, and so have the numbers of a callback.
    """

    def __init__(self, rows: list[dict[str, Any]]):
        self.rows = tuple(rows)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns, in the order in which they first appear."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row))

    @property
    def steps(self) -> int:
        """How many steps were made, over all stages, when the last row was written."""
        last = {row.get("stage"): row["step"] for row in self.rows if "step" in row}
        return sum(last.values())

    @property
    def last(self) -> list[tuple[str, float]]:
        """The names and numbers of the last report of a method."""
        reports = [row for row in self.rows if "seconds" in row]
        beside = ("stage", "step", "skipped", "seconds")
        row = reports[-1] if reports else {}
        return [(name, value) for name, value in row.items() if name not in beside]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, column: str) -> np.ndarray:
        if column not in self.columns:
            raise KeyError(f"{column!r} is not one of {', '.join(self.columns)}")
        missing = "" if column == "stage" else np.nan
        return np.array([row.get(column, missing) for row in self.rows])

    def __repr__(self) -> str:
        stages = dict.fromkeys(row.get("stage", "") for row in self.rows)
        of = ", ".join(filter(None, stages))
        return f"<History of {_count(self.rows)}{of and f' ({of})'}; print it>"

    def __str__(self) -> str:
        kinds: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for row in self.rows:
            kinds.setdefault((row.get("stage", ""), *row), []).append(row)
        tables = []
        for (stage, *names), rows in kinds.items():
            title = f"{stage}, {_count(rows)}" if stage else _count(rows)
            shown = [name for name in names if name != "stage"]
            tables.append("\n".join([title, *_lines(rows, shown)]))
        end = f"{_count(self.rows)}; all are in history.rows"
        end += ", a column is history['step']." if "step" in self.columns else "."
        return "\n\n".join([*tables, end])


def _count(rows: Sequence[Any]) -> str:
    return f"{len(rows)} row" if len(rows) == 1 else f"{len(rows)} rows"


def _lines(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    """The first and the last rows; columns that do not fit stand below the others."""
    cut = len(rows) > _FIRST + _LAST + 1
    ends = [*rows[:_FIRST], *rows[-_LAST:]] if cut else rows
    columns = []
    for name in names:
        cells = [name, *(_cell(row[name]) for row in ends)]
        if cut:
            cells.insert(1 + _FIRST, "...")
        width = max(map(len, cells))
        columns.append([cell.rjust(width) for cell in cells])
    lines: list[str] = []
    while columns:
        fit = 1
        while fit < len(columns) and _across(columns[: fit + 1]) <= _WIDTH:
            fit += 1
        lines += ["  " + "  ".join(line) for line in zip(*columns[:fit], strict=True)]
        columns = columns[fit:]
    return lines


def _across(columns: Sequence[list[str]]) -> int:
    return sum(2 + len(column[0]) for column in columns)


def _cell(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
