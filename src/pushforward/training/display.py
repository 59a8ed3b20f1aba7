"""What a person sees during a run: a progress bar, or lines without a terminal."""

import time
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

# Seconds between two plain lines.
_PLAIN_EVERY = 10.0


@runtime_checkable
class Display(Protocol):
    """What the engine tells about itself."""

    def say(self, sentence: str) -> None:
        """A sentence, once."""
        ...

    def stage(self, name: str, total: int, done: int) -> None:
        """A stage begins."""
        ...

    def update(self, done: int, metrics: Mapping[str, Any]) -> None:
        """The stage has got this far."""
        ...

    def close(self) -> None:
        """The run is over."""
        ...


class Silent:
    """Says nothing."""

    def say(self, sentence: str) -> None:
        pass

    def stage(self, name: str, total: int, done: int) -> None:
        pass

    def update(self, done: int, metrics: Mapping[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass


def _numbers(metrics: Mapping[str, Any]) -> str:
    return "  ".join(f"{name} {float(value):.4g}" for name, value in metrics.items())


class Bar:
    """A bar with rate, remaining time and the numbers that matter."""

    def __init__(self, console: Console):
        self._progress = Progress(
            # Names and numbers may be of one's own: they are no markup.
            TextColumn("{task.description:>9}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}", markup=False),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            console=console,
            refresh_per_second=4,
        )
        self._progress.start()
        self._task = None
        self._clock = _Clock()

    def say(self, sentence: str) -> None:
        self._progress.console.print(sentence, highlight=False, markup=False)

    def stage(self, name: str, total: int, done: int) -> None:
        self._clock.start(done)
        self._task = self._progress.add_task(
            name, total=total, completed=done, rate="", numbers=""
        )

    def update(self, done: int, metrics: Mapping[str, Any]) -> None:
        if self._task is None:
            return
        rate = f"{self._clock.rate(done):.0f} steps/s"
        numbers = _numbers(metrics)
        self._progress.update(self._task, completed=done, rate=rate, numbers=numbers)

    def close(self) -> None:
        self._progress.stop()


class Lines:
    """Plain lines, for logs and pipes."""

    def __init__(self, console: Console):
        self._console = console
        self._name, self._total, self._last = "", 0, 0.0
        self._clock = _Clock()

    def say(self, sentence: str) -> None:
        self._console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    def stage(self, name: str, total: int, done: int) -> None:
        self._name, self._total = name, total
        self._last = time.monotonic()
        self._clock.start(done)

    def update(self, done: int, metrics: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if now - self._last < _PLAIN_EVERY and done < self._total:
            return
        self._last = now
        rate = self._clock.rate(done)
        left = (self._total - done) / max(rate, 1e-9)
        self.say(
            f"{self._name} {done}/{self._total}, {rate:.0f} steps/s, {left:.0f} s left"
            f", {_numbers(metrics)}"
        )

    def close(self) -> None:
        pass


class _Clock:
    """Steps a second since the stage began."""

    def start(self, done: int) -> None:
        self._begun, self._done = time.monotonic(), done

    def rate(self, done: int) -> float:
        return (done - self._done) / max(time.monotonic() - self._begun, 1e-9)


def display(progress: bool) -> Display:
    """The display that suits where the output goes (standard error)."""
    if not progress:
        return Silent()
    console = Console(stderr=True)
    return Bar(console) if console.is_terminal else Lines(console)
