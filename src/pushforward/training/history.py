"""The table of what was measured during training."""

import io
from typing import Any

import numpy as np


class History:
    """Rows of numbers by name; a column is `history["loss"]`."""

    def __init__(self, rows: list[dict[str, Any]]):
        self.rows = tuple(rows)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns, in the order in which they first appear."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, column: str) -> np.ndarray:
        if column not in self.columns:
            raise KeyError(f"{column!r} is not one of {', '.join(self.columns)}")
        missing = "" if column == "stage" else np.nan
        return np.array([row.get(column, missing) for row in self.rows])

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table

        table = Table(*self.columns)
        for row in self.rows[:: max(len(self.rows) // 20, 1)]:
            cells = (row.get(name, "") for name in self.columns)
            table.add_row(
                *(f"{c:.5g}" if isinstance(c, float) else str(c) for c in cells)
            )
        text = io.StringIO()
        Console(file=text, width=120).print(table)
        return text.getvalue()
