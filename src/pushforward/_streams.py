"""What the command line stands on: its streams, and the signals that end it."""

import codecs
import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

# What is printed and not every encoding has.
_PLAIN = {
    "✓": "+",
    "✗": "x",
    "…": "...",
    "–": "-",
    "—": "-",
    "−": "-",
    "×": "x",
    "±": "+-",
}


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Other characters for those that the encoding does not have."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(_PLAIN.get(c, "?") for c in lost), error.end


codecs.register_error("pushforward.plain", _plain)


def prepare() -> None:
    """Makes the standard streams usable: closed ones swallow what is written.

    A file that is opened later must not get the number of a stream that was closed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None or stream.closed:
            setattr(sys, name, io.TextIOWrapper(io.FileIO(os.devnull, "w")))
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="pushforward.plain")


def silence() -> None:
    """What Python would still write to stdout at its end goes nowhere."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Terminated(BaseException):
    """A signal asks the program to end."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number, self.name = number, signal.Signals(number).name
        # What to do next, where a command knows it.
        self.advice = ""


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)


@contextlib.contextmanager
def signals_as_exceptions() -> Iterator[None]:
    """SIGTERM and SIGHUP raise `Terminated`, unless they are ignored (`nohup`)."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, _terminate)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
