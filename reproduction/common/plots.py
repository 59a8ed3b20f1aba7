"""The colours of figures, and writing them."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path

from matplotlib.figure import Figure

from reproduction.common.files import write_bytes
from reproduction.common.results import Results

# Of a sampler trained here, of exact or reference draws, and of contours.
OURS, EXACT, CONTOUR = "#1f5fa8", "#d1782b", "#555555"


def draw_figures(
    results: Results,
    folder: Path,
    makers: Mapping[str, Callable[[Results], Figure | None]],
) -> list[Path]:
    """Draws the figures, by name of file, for which the results have something."""
    drawn = []
    for name, make in makers.items():
        figure = make(results)
        if figure is None:
            continue
        picture = io.BytesIO()
        # No date or version inside: the same results give the same file.
        figure.savefig(picture, format="png", dpi=110, metadata={"Software": None})
        write_bytes(folder / name, picture.getvalue())
        drawn.append(folder / name)
    return drawn
