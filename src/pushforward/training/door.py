"""The door of `fit`: errors that are certain keep a target out, doubts go with it."""

import jax
from jaxtyping import PRNGKeyArray

from pushforward.errors import DensityError
from pushforward.mcmc.tails import look_again
from pushforward.targets.base import AbstractTarget
from pushforward.targets.examine import FALLS, Examination, examine
from pushforward.targets.foreign import AbstractForeign


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
    return _remarks(target) + _doubts(key, target, seen, throw)


def _remarks(target: AbstractTarget) -> tuple[str, ...]:
    """What another library that computes the density costs."""
    given = [function.given for function in target.user_functions()]
    found = [each.remark() for each in given if isinstance(each, AbstractForeign)]
    return tuple(remark for remark in found if remark is not None)


def _doubts(
    key: PRNGKeyArray, target: AbstractTarget, seen: Examination, throw: bool
) -> tuple[str, ...]:
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
