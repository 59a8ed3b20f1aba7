"""What was tried, what went wrong, and guards against hanging and swelling."""

import collections
import contextlib
import dataclasses
import resource
import signal
import threading
import time
import traceback
from collections.abc import Iterator

# The first failures are kept in full.
EXAMPLES = 20
LONGEST_SECONDS = 5.0
MOST_MEMORY = 2**30


class Hung(BaseException):
    """A try took longer than it may."""


@dataclasses.dataclass
class Tally:
    """The tries of a campaign by their kind, and the failures among them."""

    tries: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    failures: collections.Counter = dataclasses.field(
        default_factory=collections.Counter
    )
    examples: list[str] = dataclasses.field(default_factory=list)
    # What else is worth telling: numbers by their name.
    numbers: dict[str, float] = dataclasses.field(default_factory=dict)

    def passed(self, kind: str) -> None:
        self.tries[kind] += 1

    def failed(self, kind: str, what: str) -> None:
        self.tries[kind] += 1
        self.failures[kind] += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"{kind}: {' '.join(what.split())[:500]}")

    def expect(self, kind: str, fine: bool, what: str) -> None:
        self.passed(kind) if fine else self.failed(kind, what)

    def largest(self, name: str, value: float) -> None:
        self.numbers[name] = max(self.numbers.get(name, 0.0), value)

    @contextlib.contextmanager
    def guarded(
        self, kind: str, *allowed: type[BaseException], seconds=LONGEST_SECONDS
    ) -> Iterator[None]:
        """One try: it may end well, or with what is allowed, in time and in memory."""
        begun, before = time.monotonic(), peak_memory()
        try:
            with alarm(seconds):
                yield
        except allowed:
            pass
        except (Exception, Hung, SystemExit) as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            self.failed(
                kind,
                f"{type(error).__name__}: {error} ({place.name}, line {place.lineno})",
            )
            return
        self.largest("longest try, seconds", time.monotonic() - begun)
        grown = peak_memory() - before
        self.largest("largest growth of memory in a try, MB", grown / 2**20)
        self.expect(kind, grown < MOST_MEMORY, f"memory grew by {grown:,} bytes")


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raises `Hung` after so many seconds, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number, frame):
        raise Hung(f"longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def peak_memory() -> int:
    """The most bytes this process has held (Linux counts in kilobytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
