"""What to sample from: kinds of target, constraints, the built-in densities.

The names and descriptions of the built-in targets can be read without loading
JAX; everything else is imported when it is first used.
"""

from typing import TYPE_CHECKING

from pushforward._lazy import lazily

if TYPE_CHECKING:
    from pushforward.targets import constraints, symmetries
    from pushforward.targets.base import (
        AbstractTarget,
        NoiseConditionalTarget,
        ScoreTarget,
        Target,
        constrained,
    )
    from pushforward.targets.catalogue import get, names
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
    "symmetries",
]

_HOME = {
    "AbstractTarget": "base",
    "MinibatchTarget": "minibatch",
    "NoiseConditionalTarget": "base",
    "ScoreTarget": "base",
    "Target": "base",
    "constrained": "base",
    "get": "catalogue",
    "names": "catalogue",
}

__getattr__, __dir__ = lazily(globals(), _HOME, ("constraints", "symmetries"))
