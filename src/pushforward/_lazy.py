"""Names of a package that are imported when they are first used."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazily(
    namespace: dict[str, Any],
    homes: Mapping[str, str],
    modules: Sequence[str] = (),
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` of a package.

    Args:
        namespace: `globals()` of the package.
        homes: the public names, each with the module of the package that defines it.
        modules: modules of the package that are public themselves.
    """
    package = namespace["__name__"]

    def find(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        namespace[name] = value
        return value

    def names() -> list[str]:
        return sorted({*namespace, *namespace["__all__"]})

    return find, names
