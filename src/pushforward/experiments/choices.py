"""What every experiment is asked for in the same words: a scale, some of its cells."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pushforward.errors import UsageError
from pushforward.methods.base import AbstractMethod, replace

Scale = TypeVar("Scale")


def choose_scale(scales: Mapping[str, Scale], name: str) -> Scale:
    """The scale of this name."""
    if name not in scales:
        raise UsageError(f"There is no scale {name!r}; there are {', '.join(scales)}.")
    return scales[name]


def choose_methods(
    only: Iterable[str], known: Iterable[str], also: Iterable[str] = ()
) -> set[str]:
    """The names asked for, each a method's or one of those that are known as well."""
    asked, methods = set(only), sorted(set(known))
    strange = sorted(asked - set(methods) - set(also))
    if strange:
        raise UsageError(
            f"There is no method {strange[0]!r} at this scale; there are "
            f"{', '.join(methods)}."
        )
    return asked


def fitting(method: AbstractMethod, fields: Mapping[str, Any] | None) -> AbstractMethod:
    """The method with those of the fields that it has."""
    own = {k: v for k, v in (fields or {}).items() if hasattr(method, k)}
    return replace(method, **own)
