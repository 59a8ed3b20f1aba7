"""What every experiment is asked for in the same words: a scale, some of its cells."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

from pushforward.errors import UsageError
from pushforward.methods.base import AbstractMethod, replace

Scale = TypeVar("Scale")


@runtime_checkable
class Named(Protocol):
    """What an experiment runs in one go: a setting of a method."""

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
    """Those asked for, by method (`dft`) or one by one (`dft|paper`); else all."""
    asked, groups = set(only), list(groups)
    methods = sorted({group.method for group in groups})
    strange = sorted(asked - set(methods) - {group.name for group in groups})
    if strange:
        raise UsageError(
            f"There is no method {strange[0]!r} at this scale; there are "
            f"{', '.join(methods)}."
        )
    return [g for g in groups if not asked or {g.method, g.name} & asked]


def fitting(method: AbstractMethod, fields: Mapping[str, Any] | None) -> AbstractMethod:
    """The method with those of the fields that it has."""
    own = {k: v for k, v in (fields or {}).items() if hasattr(method, k)}
    return replace(method, **own)
