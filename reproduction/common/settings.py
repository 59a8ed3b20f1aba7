"""Choosing a scale and the methods of an experiment."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from pushforward.errors import UsageError
from pushforward.methods import AbstractMethod

Scale = TypeVar("Scale")


@runtime_checkable
class Named(Protocol):
    """A method in one of its settings."""

    @property
    def method(self) -> str:
        """The method's name, such as `dft`."""
        ...

    @property
    def name(self) -> str:
        """The method's and the setting's, such as `dft|paper`."""
        ...


Group = TypeVar("Group", bound=Named)


def choose_scale(scales: Mapping[str, Scale], name: str) -> Scale:
    """The scale of this name."""
    if name not in scales:
        raise UsageError(f"There is no scale {name!r}; there are {', '.join(scales)}.")
    return scales[name]


def choose_groups(only: Iterable[str], groups: Iterable[Group]) -> list[Group]:
    """Selects groups by method (`dft`) or by name (`dft|paper`); all by default."""
    asked, groups = set(only), list(groups)
    methods = sorted({group.method for group in groups})
    strange = sorted(asked - set(methods) - {group.name for group in groups})
    if strange:
        raise UsageError(
            f"There is no method {strange[0]!r} at this scale; there are "
            f"{', '.join(methods)}."
        )
    return [g for g in groups if not asked or {g.method, g.name} & asked]


def fitting(method: AbstractMethod, sizes: Mapping[str, Any] | None) -> AbstractMethod:
    """The method with those of the sizes that it or a part of it has."""
    return _resized(method, sizes or {})


Part = TypeVar("Part")


def _resized(part: Part, sizes: Mapping[str, Any]) -> Part:
    changes = {}
    for field in dataclasses.fields(cast(Any, part)):
        value = getattr(part, field.name)
        if field.name in sizes:
            changes[field.name] = sizes[field.name]
        elif field.name in ("network", "second", "training"):
            changes[field.name] = _resized(value, sizes)
    return dataclasses.replace(cast(Any, part), **changes)
