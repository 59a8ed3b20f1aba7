"""Draws modulo a symmetry: those of all copies become draws of one."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from pushforward import _programs
from pushforward.mcmc.copies import divide
from pushforward.targets.base import AbstractTarget
from pushforward.targets.one_copy import OneCopy

# One key: all that is compared with one another must be of one copy.
COPY = 0x636F7079


def one_copy(target: AbstractTarget) -> tuple[OneCopy, int]:
    """The copy of a target that draws are compared in, and what it cost to find."""
    one, spent = _divide(jax.random.key(COPY), target)
    return one, int(spent)


_divide = _programs.compiled(divide)


def in_one_copy(
    key: PRNGKeyArray, one: OneCopy, draws: Float[np.ndarray, "n d"]
) -> Float[np.ndarray, "n k"]:
    """The canonical coordinates of draws, each moved into the copy."""
    if not len(draws):
        return np.zeros((0, one.dim))
    return np.asarray(_bring(key, one, jnp.asarray(draws, float)), np.float64)


@_programs.compiled
def _bring(key, one, draws):
    return one.bring(key, draws)
