"""Draws of a target from another library, as that library names its parameters."""

from typing import Any

import jax
import numpy as np

from pushforward.errors import UsageError
from pushforward.targets import AbstractTarget
from pushforward.targets.foreign import AbstractForeign


def constrain(target: AbstractTarget, draws: Any) -> dict[str, np.ndarray]:
    """Draws of `from_stan` and `from_pymc` as the parameters of the model.

    Args:
        target: What the bridge returned.
        draws: Draws of its sampler, with one leading axis.

    Returns:
        An array for each parameter of the model, by its own name: constrained, and with
        what the model computes of them.
    """
    (function, *_) = target.user_functions()
    if not isinstance(function.given, AbstractForeign):
        raise UsageError(
            "constrain is for targets of from_stan and from_pymc; draws of others are "
            "constrained already."
        )
    # The names of the coordinates are those of the bridge.
    target.structure.flatten_draws(draws)
    return function.given.constrain(jax.device_get(draws))
