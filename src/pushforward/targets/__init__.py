"""What to sample from: kinds of target, constraints, the built-in densities.

The names and descriptions of the built-in targets can be read without loading
JAX; everything else is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pushforward.targets import constraints
    from pushforward.targets.base import (
        AbstractTarget,
        NoiseConditionalTarget,
        ScoreTarget,
        Target,
    )
    from pushforward.targets.catalogue import get, names
    from pushforward.targets.constraints import constrained
    from pushforward.targets.minibatch import MinibatchTarget

__all__ = [
    "AbstractTarget",
    "MinibatchTarget",
    "NoiseConditionalTarget",
    "ScoreTarget",
    "Target",
    "constrained",
    "constraints",
    "get",
    "names",
]

_HOME = {
    "AbstractTarget": "base",
    "MinibatchTarget": "minibatch",
    "NoiseConditionalTarget": "base",
    "ScoreTarget": "base",
    "Target": "base",
    "constrained": "constraints",
    "get": "catalogue",
    "names": "catalogue",
}


def __getattr__(name: str) -> Any:
    if name == "constraints":
        return importlib.import_module(f"{__name__}.constraints")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
