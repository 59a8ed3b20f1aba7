"""Small pictures as SVG, whose colours the page's style sheet decides."""

import dataclasses
import html
import math
from collections.abc import Iterable, Sequence

Number = int | float
Point = Sequence[Number]
# Room for numbers and names around the frame of a panel, in units of the picture.
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 8, 22, 34


@dataclasses.dataclass
class Panel:
    """One pair of axes; what is drawn later lies above.

    Attributes:
        x: the ends of the horizontal axis.
        y: the ends of the vertical axis.
        title: stands above it.
        label: stands below it.
        width: of the picture.
        height: of the picture.
        ticks: whether the axes have numbers.
        powers: whether the numbers of the axes are powers of ten.
        names: what stands at 0, -1, -2 and so on, instead of the numbers of the
            vertical axis.
    """

    x: Point
    y: Point
    title: str = ""
    label: str = ""
    width: int = 320
    height: int = 200
    ticks: bool = True
    powers: tuple[bool, bool] = (False, False)
    names: Sequence[str] = ()
    marks: list[str] = dataclasses.field(default_factory=list)

    def line(self, points: Iterable[Point], kind: str) -> None:
        """A line through points; it is broken where a number is not finite."""
        path, pen = [], "M"
        for point in points:
            if all(map(math.isfinite, point)):
                path.append(f"{pen}{self._at(point)}")
                pen = "L"
            else:
                pen = "M"
        self._path("".join(path), f"line {kind}")

    def area(self, points: Sequence[Point], kind: str) -> None:
        """A filled outline."""
        path = "M" + "L".join(map(self._at, points)) + "Z" if points else ""
        self._path(path, f"area {kind}")

    def dots(self, points: Iterable[Point], kind: str) -> None:
        """A dot at each point: lines of no length with round ends."""
        inside = (p for p in points if self._holds(p))
        self._path("".join(f"M{self._at(p)}h0" for p in inside), f"dots {kind}")

    def steps(
        self, edges: Sequence[Number], heights: Sequence[Number], kind: str
    ) -> None:
        """The outline of a histogram."""
        points = [(edges[0], 0.0)]
        for left, right, height in zip(edges, edges[1:], heights, strict=False):
            points += [(left, height), (right, height)]
        points.append((edges[-1], 0.0))
        if kind.startswith("filled"):
            self.area(points, kind.removeprefix("filled "))
        else:
            self.line(points, kind)

    def whisker(
        self, low: Number, at: Number, high: Number, y: Number, kind: str
    ) -> None:
        """An interval that lies flat, and a dot in it."""
        self.line([(low, y), (high, y)], kind)
        self._path(f"M{self._at((at, y))}h0", f"knob {kind}")

    def text(self, x: Number, y: Number, words: str, anchor: str = "start") -> None:
        """Words inside the frame."""
        a, b = self._pair((x, y))
        self.marks.append(_words(a, b, words, anchor))

    def render(self, name: str = "") -> str:
        """The picture; `name` is what it is called where it cannot be seen."""
        parts = []
        left, right, top, bottom = self._frame()
        if self.ticks:
            for value in _ticks(self.x, 4):
                a = self._pair((value, self.y[0]))[0]
                parts.append(_rule(a, top, a, bottom))
                text = _tick(value, self.powers[0])
                parts.append(_words(a, bottom + 12, text, "middle"))
            for i, name in enumerate(self.names):
                b = self._pair((self.x[0], -float(i)))[1]
                parts.append(_words(left - 4, b + 3.5, name, "end"))
            for value in () if self.names else _ticks(self.y, 4):
                b = self._pair((self.x[0], value))[1]
                parts.append(_rule(left, b, right, b))
                text = _tick(value, self.powers[1])
                parts.append(_words(left - 4, b + 3.5, text, "end"))
        parts += self.marks
        parts.append(
            f'<rect class="frame" x="{left}" y="{top}" width="{right - left}" '
            f'height="{bottom - top}"/>'
        )
        if self.title:
            parts.append(_words(left, top - 8, self.title, "start", "title"))
        if self.label:
            middle = (left + right) / 2
            parts.append(_words(middle, self.height - 4, self.label, "middle"))
        said = html.escape(name or self.title, quote=True)
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" '
            f'aria-label="{said}">{"".join(parts)}</svg>'
        )

    def _frame(self) -> tuple[Number, Number, Number, Number]:
        if not self.ticks:
            return 1, self.width - 1, 16 if self.title else 1, self.height - 1
        bottom = _BOTTOM if self.label else _BOTTOM - 14
        top = _TOP if self.title else 8
        left = _LEFT + 6 * max([0, *(len(name) - 6 for name in self.names)])
        return left, self.width - _RIGHT, top, self.height - bottom

    def _pair(self, point: Point) -> tuple[Number, Number]:
        left, right, top, bottom = self._frame()
        a = (point[0] - self.x[0]) / ((self.x[1] - self.x[0]) or 1.0)
        b = (point[1] - self.y[0]) / ((self.y[1] - self.y[0]) or 1.0)
        # What lies far outside is drawn at the edge, not off the page.
        a, b = min(max(a, -0.02), 1.02), min(max(b, -0.02), 1.02)
        return left + a * (right - left), bottom - b * (bottom - top)

    def _at(self, point: Point) -> str:
        a, b = self._pair(point)
        return f"{a:.1f} {b:.1f}"

    def _holds(self, point: Point) -> bool:
        ends = zip(point, (self.x, self.y), strict=True)
        return all(low <= value <= high for value, (low, high) in ends)

    def _path(self, path: str, kind: str) -> None:
        if path:
            self.marks.append(f'<path class="{kind}" d="{path}"/>')


def span(values: Iterable[Number], margin: float = 0.05) -> tuple[Number, Number]:
    """An interval that holds all finite values, and a margin on both sides."""
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return 0.0, 1.0
    low, high = min(finite), max(finite)
    room = margin * (high - low) or 0.5 * max(abs(high), 1e-3)
    return low - room, high + room


def _ticks(ends: Point, about: int) -> list[Number]:
    low, high = ends
    width = high - low
    if not width > 0 or not math.isfinite(width):
        return []
    step = 10.0 ** math.floor(math.log10(width / about))
    step *= next(f for f in (1, 2, 5, 10) if width / (f * step) <= about)
    first = math.ceil(low / step - 1e-9)
    return [(first + i) * step for i in range(about + 2) if (first + i) * step <= high]


def _tick(value: Number, power: bool) -> str:
    if power:
        return f"{10.0**value:.2g}"
    return f"{value + 0.0:.4g}" if abs(value) > 1e-12 else "0"


def _rule(a: Number, b: Number, c: Number, d: Number) -> str:
    return f'<path class="rule" d="M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}"/>'


def _words(a: Number, b: Number, words: str, anchor: str, kind: str = "") -> str:
    which = f' class="{kind}"' if kind else ""
    return (
        f'<text{which} x="{a:.1f}" y="{b:.1f}" text-anchor="{anchor}">'
        f"{html.escape(words)}</text>"
    )
