"""The few lines of HTML with which a notebook shows an object."""

import html
from collections.abc import Iterable, Sequence

# Left to the notebook are fonts and colours, light or dark.
_CELL = "text-align:left;vertical-align:top"


def heading(word: str, sentence: str) -> str:
    """A word that stands out, and a sentence."""
    return f"<p><b>{html.escape(word)}</b>: {html.escape(sentence)}</p>"


def table(rows: Iterable[Sequence[str]], columns: Sequence[str] = ()) -> str:
    """A table of plain words."""
    rows = [_row(row, "td") for row in rows]
    if columns:
        rows.insert(0, _row(columns, "th"))
    return f"<table>{''.join(rows)}</table>"


def _row(cells: Iterable[str], tag: str) -> str:
    inner = "".join(
        f'<{tag} style="{_CELL}">{html.escape(str(cell))}</{tag}>' for cell in cells
    )
    return f"<tr>{inner}</tr>"
