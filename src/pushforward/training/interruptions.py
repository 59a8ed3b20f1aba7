"""Ctrl-C as an event that a run looks at between its chunks."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def interruptions() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets; the second Ctrl-C interrupts as usual."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(number, frame):
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    signal.signal(signal.SIGINT, handle)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)
