"""The door of `fit`: errors that are certain keep a target out, doubts go with it."""

import jax
from jaxtyping import PRNGKeyArray

from pushforward.errors import DensityError
from pushforward.mcmc.tails import look_again
from pushforward.targets.base import AbstractTarget
from pushforward.targets.examine import FALLS, examine


def admit(
    key: PRNGKeyArray, target: AbstractTarget, *, throw: bool = True
) -> tuple[str, ...]:
    """Examines a target; what NUTS would sample comes in.

    Where the density does not seem to fall, a second look from its highest point
    decides whether it can be normalised.

    Args:
        key: random key.
        target: the target.
        throw: raise where the density cannot be normalised; otherwise that is a doubt.

    Returns:
        The doubts, a sentence for each.

    Raises:
        DensityError: The target cannot be used.
    """
    seen = examine(key, target)
    if seen.error is not None:
        raise seen.error
    if not seen.suspects:
        return seen.doubts
    look = look_again(jax.random.fold_in(key, 1), target, seen.suspects)
    if look.flat is None and not look.settled:
        return seen.doubts
    doubts = [c.sentence for c in seen.checks if c.is_doubt and c.name != FALLS]
    if look.flat is not None:
        doubts.append(look.sentence(target))
        if throw:
            raise DensityError(doubts[-1])
    return tuple(doubts)
