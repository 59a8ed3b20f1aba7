"""To and from other libraries, which are imported when they are first needed."""

import importlib
from typing import TYPE_CHECKING, Any

from pushforward._user_errors import register_hint

if TYPE_CHECKING:
    from pushforward.bridges.arviz import to_arviz
    from pushforward.bridges.numpyro import from_numpyro

__all__ = ["from_numpyro", "to_arviz"]

_HOME = {"from_numpyro": "numpyro", "to_arviz": "arviz"}

register_hint(
    "numpyro",
    "a NumPyro model becomes a target by pushforward.bridges.from_numpyro(model, "
    "data).",
)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
