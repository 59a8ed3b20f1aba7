"""What a user's function sees during training, and what it may answer."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import numpy as np

from pushforward._text import is_text, shown
from pushforward.errors import UsageError
from pushforward.sampler import Sampler
from pushforward.training.history import History


@dataclasses.dataclass(frozen=True, repr=False)
class Event:
    """Where a training stands when it calls `callback(event)`.

    Attributes:
        step: how many steps have been made.
        steps: how many are planned.
        metrics: the means of what the method measures, since the last row of them.
        target: the target (for `train`, the data).
        history: the rows so far.
        seed: which of the keys of `fit_many` this is.
    """

    step: int
    steps: int
    metrics: dict[str, float]
    target: Any
    history: History
    seed: int
    _result: Callable[[], Any]

    @property
    def result(self) -> Any:
        """What has been learnt so far, made when it is asked for."""
        return self._result()

    @property
    def sampler(self) -> Sampler:
        """The sampler as it is now, made when it is asked for."""
        return self._result()

    def __repr__(self) -> str:
        return f"<Event: step {self.step} of {self.steps}>"


Callback: TypeAlias = Callable[[Event], Mapping[str, Any] | bool | None]
# Columns of the history that a callback's numbers cannot be called.
_TAKEN = ("stage", "step", "skipped", "seconds")


def read_answer(answer: Any) -> tuple[dict[str, float], bool]:
    """The numbers in what a callback returned, and whether training should stop."""
    if answer is None:
        return {}, False
    if _is_bool(answer):
        return {}, bool(answer)
    if not isinstance(answer, Mapping):
        raise UsageError(
            "The callback must return None, a mapping of names to numbers, or True to "
            f"stop the training; it returned {shown(answer)}."
        )
    numbers = dict(answer)
    stop = numbers.pop("stop", False)
    if not _is_bool(stop):
        raise UsageError(
            f"'stop' in what the callback returned must be True or False, not "
            f"{shown(stop)}."
        )
    for name, value in numbers.items():
        if not is_text(name) or name in _TAKEN:
            raise UsageError(
                f"The callback cannot call a number {name!r}: the names "
                f"{', '.join(_TAKEN)} are those of other columns of the history."
            )
        try:
            numbers[name] = float(value)
        except (OverflowError, TypeError, ValueError):
            raise UsageError(
                f"{name!r} in what the callback returned must be a number, not "
                f"{shown(value)}."
            ) from None
    return numbers, bool(stop)


def _is_bool(value: Any) -> bool:
    if isinstance(value, np.ndarray | jax.Array):
        return value.shape == () and value.dtype == np.bool_
    return isinstance(value, bool | np.bool_)
