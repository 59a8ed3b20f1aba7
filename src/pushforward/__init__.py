"""Turn a log-density into a sampler that costs one network pass per draw.

Names are imported when they are first used, so that `import pushforward` is
instant and a program that needs no JAX does not load it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from pushforward._version import __version__

if TYPE_CHECKING:
    from pushforward import bridges, diagnostics, mcmc, methods, networks, targets
    from pushforward.diagnostics import Verdict, Weighed, check, weigh
    from pushforward.mcmc import refine
    from pushforward.sampler import Sampler, load
    from pushforward.targets import (
        AbstractTarget,
        MinibatchTarget,
        NoiseConditionalTarget,
        ScoreTarget,
        Target,
        constrained,
    )
    from pushforward.training import Fit, Trained, fit, fit_many, train

__all__ = [
    "AbstractTarget",
    "Fit",
    "MinibatchTarget",
    "NoiseConditionalTarget",
    "Sampler",
    "ScoreTarget",
    "Target",
    "Trained",
    "Verdict",
    "Weighed",
    "__version__",
    "bridges",
    "check",
    "constrained",
    "diagnostics",
    "fit",
    "fit_many",
    "load",
    "mcmc",
    "methods",
    "networks",
    "refine",
    "targets",
    "train",
    "weigh",
]

_ROOMS = ("bridges", "diagnostics", "mcmc", "methods", "networks", "targets")
_HOME = {
    "AbstractTarget": "targets",
    "Fit": "training",
    "MinibatchTarget": "targets",
    "NoiseConditionalTarget": "targets",
    "Sampler": "sampler",
    "ScoreTarget": "targets",
    "Target": "targets",
    "Trained": "training",
    "Verdict": "diagnostics",
    "Weighed": "diagnostics",
    "check": "diagnostics",
    "constrained": "targets",
    "fit": "training",
    "fit_many": "training",
    "load": "sampler",
    "refine": "mcmc",
    "train": "training",
    "weigh": "diagnostics",
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _HOME:
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
