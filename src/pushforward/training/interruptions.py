"""Ctrl-C and other ends as an event that a run looks at between its chunks."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

# What asks a process to end: a supervisor does so, and a terminal that is closed.
_ENDS = ("SIGTERM", "SIGHUP")


class _Handler:
    """Sets its event at the first signal; the second does as it usually does."""

    def __init__(self):
        self.event = threading.Event()
        self.number = signal.SIGINT
        self.before: dict[int, object] = {}

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.event.is_set():
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            self.restore()
            signal.raise_signal(number)
            return
        self.number = number
        self.event.set()

    def restore(self) -> None:
        """Puts the handlers back that there were before."""
        for number, handler in self.before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]
        self.before = {}


@contextlib.contextmanager
def interruptions() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets; the second Ctrl-C interrupts as usual.

    SIGTERM and SIGHUP set it too, unless they are ignored (as under `nohup`). They end
    the program as usual once the event was seen and the run is saved. A run within the
    callback of another one passes its Ctrl-C on when it ends.
    """
    own = _Handler()
    if threading.current_thread() is not threading.main_thread():
        yield own.event
        return
    before = signal.signal(signal.SIGINT, own)
    own.before = {signal.SIGINT: before}
    for name in _ENDS:
        number = getattr(signal, name, None)
        # None is a handler that is not Python's, and could not be put back.
        if number is not None and signal.getsignal(number) not in (
            None,
            signal.SIG_IGN,
        ):
            own.before[number] = signal.signal(number, own)
    try:
        yield own.event
    finally:
        own.restore()
        if own.event.is_set() and own.number != signal.SIGINT:
            signal.raise_signal(own.number)
        elif own.event.is_set() and isinstance(before, _Handler):
            before.event.set()
