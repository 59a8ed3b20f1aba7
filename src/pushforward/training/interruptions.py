"""Ctrl-C as an event that a run looks at between its chunks."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class _Handler:
    """Sets its event at the first Ctrl-C; the second interrupts as usual."""

    def __init__(self):
        self.event = threading.Event()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.event.is_set():
            raise KeyboardInterrupt
        self.event.set()


@contextlib.contextmanager
def interruptions() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets; the second Ctrl-C interrupts as usual.

    A run within the callback of another one passes its Ctrl-C on when it ends.
    """
    own = _Handler()
    if threading.current_thread() is not threading.main_thread():
        yield own.event
        return
    before = signal.signal(signal.SIGINT, own)
    try:
        yield own.event
    finally:
        signal.signal(signal.SIGINT, before)
        if own.event.is_set() and isinstance(before, _Handler):
            before.event.set()
