"""Checks of single arguments: each refuses with one sentence."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from pushforward._text import shown
from pushforward.errors import UsageError


def whole_number(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """A whole number of at least `least`, and at most `most`."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least:
        raise UsageError(
            f"{name} must be a whole number of at least {least}, not {shown(value)}."
        )
    if most is not None and value > most:
        raise UsageError(f"{name} must be at most {most}, not {shown(value)}.")
    return int(value)


def positive(name: str, value: Any) -> float:
    """A finite number above 0."""
    if not _is_number(value) or not value > 0:
        raise UsageError(f"{name} must be a number above 0, not {shown(value)}.")
    return float(value)


def at_least(name: str, value: Any, least: int | float) -> Any:
    """A number of at least `least`, which may be infinite."""
    number = isinstance(value, int | float | np.integer | np.floating)
    if not number or isinstance(value, bool) or not value >= least:
        raise UsageError(
            f"{name} must be a number of at least {least:g}, not {shown(value)}."
        )
    return value


def share(name: str, value: Any) -> float:
    """A number from 0 to 1, without 1 itself."""
    if not _is_number(value) or not 0 <= value < 1:
        raise UsageError(
            f"{name} must be at least 0 and less than 1, not {shown(value)}."
        )
    return float(value)


def finite(name: str, value: Any) -> float:
    """Any finite number."""
    if not _is_number(value):
        raise UsageError(f"{name} must be a finite number, not {shown(value)}.")
    return float(value)


def one_of(name: str, value: Any, options: Iterable[str]) -> str:
    """One of several words."""
    options = tuple(options)
    if not isinstance(value, str) or value not in options:
        raise UsageError(
            f"{name} must be one of {', '.join(options)}, not {shown(value)}."
        )
    return value


def flag(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise UsageError(f"{name} must be True or False, not {shown(value)}.")
    return value


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float | np.integer | np.floating)
    if not number or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        # A whole number beyond all floats.
        return False
