"""Turn a log-density into a sampler that costs one network pass per draw.

Names are imported when they are first used, so that `import pushforward` is
instant and a program that needs no JAX does not load it.
"""

from typing import TYPE_CHECKING

from pushforward import bridges
from pushforward._lazy import lazily
from pushforward._version import __version__

if TYPE_CHECKING:
    from pushforward import (
        diagnostics,
        errors,
        mcmc,
        methods,
        networks,
        objectives,
        targets,
    )
    from pushforward._cache import cache_programs
    from pushforward.diagnostics import ImportanceSample, Verdict, check, weigh
    from pushforward.draws import read_draws
    from pushforward.mcmc import Exploration, explore, refine, smooth
    from pushforward.reporting import plot, report
    from pushforward.sampler import Sampler, load, load_network, save_network
    from pushforward.targets import (
        AbstractTarget,
        MinibatchTarget,
        NoiseConditionalTarget,
        ScoreTarget,
        Target,
        constrained,
        constraints,
        symmetries,
    )
    from pushforward.training import (
        Calibration,
        Event,
        Fit,
        Status,
        Trained,
        calibrate,
        fit,
        fit_many,
        train,
    )

__all__ = [
    "AbstractTarget",
    "Calibration",
    "Event",
    "Exploration",
    "Fit",
    "ImportanceSample",
    "MinibatchTarget",
    "NoiseConditionalTarget",
    "Sampler",
    "ScoreTarget",
    "Status",
    "Target",
    "Trained",
    "Verdict",
    "__version__",
    "bridges",
    "cache_programs",
    "calibrate",
    "check",
    "constrained",
    "constraints",
    "diagnostics",
    "errors",
    "explore",
    "fit",
    "fit_many",
    "load",
    "load_network",
    "mcmc",
    "methods",
    "networks",
    "objectives",
    "plot",
    "read_draws",
    "refine",
    "report",
    "save_network",
    "smooth",
    "symmetries",
    "targets",
    "train",
    "weigh",
]

_ROOMS = (
    "bridges",
    "diagnostics",
    "errors",
    "mcmc",
    "methods",
    "networks",
    "objectives",
    "targets",
)
_HOME = {
    "AbstractTarget": "targets",
    "Calibration": "training",
    "Event": "training",
    "Exploration": "mcmc",
    "Fit": "training",
    "ImportanceSample": "diagnostics",
    "MinibatchTarget": "targets",
    "NoiseConditionalTarget": "targets",
    "Sampler": "sampler",
    "ScoreTarget": "targets",
    "Status": "training",
    "Target": "targets",
    "Trained": "training",
    "Verdict": "diagnostics",
    "cache_programs": "_cache",
    "calibrate": "training",
    "check": "diagnostics",
    "constrained": "targets",
    "constraints": "targets",
    "explore": "mcmc",
    "fit": "training",
    "fit_many": "training",
    "load": "sampler",
    "load_network": "sampler",
    "plot": "reporting",
    "read_draws": "draws",
    "refine": "mcmc",
    "report": "reporting",
    "save_network": "sampler",
    "smooth": "mcmc",
    "symmetries": "targets",
    "train": "training",
    "weigh": "diagnostics",
}


__getattr__, __dir__ = lazily(globals(), _HOME, _ROOMS)
