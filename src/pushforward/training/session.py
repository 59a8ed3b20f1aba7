"""The one way into the engine, for `fit`, `fit_many` and `train`."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jaxtyping import Array, Key

from pushforward.errors import FileError, TrainingError, UnfinishedWarning, UsageError
from pushforward.methods.base import AbstractMethod, AbstractTask
from pushforward.training import config as configs
from pushforward.training.callback import Callback
from pushforward.training.display import display
from pushforward.training.rundir import RunDirectory
from pushforward.training.runner import Outcome, run
from pushforward.training.status import AbstractTrained, Status


@contextlib.contextmanager
def opened(out: str | Path | None, *, resume: bool) -> Iterator[RunDirectory | None]:
    """The directory of a run, locked as long as it is open.

    Refuses one that is taken, unless the run goes on. A new one is made, and locked,
    by `prepare`.
    """
    if out is None:
        if resume:
            raise UsageError(
                "resume=True needs out=, the directory of the run to go on with."
            )
        yield None
        return
    directory = RunDirectory(out)
    try:
        if directory.exists():
            if not resume:
                raise FileError(
                    f"{directory.path} already holds a run; pass resume=True "
                    "(--resume) to go on with it, or choose another directory."
                )
            directory.lock()
        yield directory
    finally:
        directory.release()


def prepare(
    key: Key[Array, ""],
    data: Any,
    learner: AbstractTask,
    steps: int | None,
    directory: RunDirectory | None,
    describe: Callable[[], configs.Config],
    max_evaluations: int | None = None,
) -> tuple[AbstractTask, configs.Config]:
    """The resolved learner and the config of a run, which is begun on disk.

    Args:
        key: the key of the run.
        data: its target, or its data.
        learner: what is trained.
        steps: how many steps, if not those of the learner.
        directory: where the run is kept; if it holds one already, that goes on.
        describe: gives the entry `target` of the config.
        max_evaluations: a bound of the evaluations of the target, for a method.
    """
    target = describe()
    if directory is not None and directory.exists():
        stored = directory.read_config()
        budget = configs.same_budget(stored, max_evaluations)
        learner = within(learner, budget)
        learner, config = configs.reconcile(stored, learner, steps, key, data, target)
        if config != stored:
            directory.write_config(config)
        return learner, config
    learner = within(learner, max_evaluations).resolve(data)
    longer = learner.with_sizes(steps=steps)
    config = configs.new_config(learner, longer.steps, key, target, max_evaluations)
    if directory is not None:
        directory.create(config)
    return longer, config


def within(learner: AbstractTask, max_evaluations: int | None) -> AbstractTask:
    """A method whose start leaves half of a budget to its steps."""
    if max_evaluations is None:
        return learner
    assert isinstance(learner, AbstractMethod)
    return learner.within(max_evaluations)


def launch(
    key: Key[Array, "..."],
    data: Any,
    learner: AbstractTask,
    directory: RunDirectory | None,
    *,
    progress: bool,
    callback: Callback | None,
    callback_every: int,
    checkpoint_seconds: float = 20.0,
    afford: Callable[[Any], int] | None = None,
) -> list[Outcome]:
    """Runs a resolved learner, and shows it."""
    shown = display(progress)
    try:
        return run(
            key,
            data,
            learner,
            directory,
            shown,
            checkpoint_seconds=checkpoint_seconds,
            callback=callback,
            callback_every=callback_every,
            afford=afford,
        )
    finally:
        shown.close()


def require_callback(
    callback: Any, callback_every: Any, watch: Any, watch_every: Any
) -> None:
    """Refuses what cannot be called, and the words of version 0.1."""
    if watch is not None or watch_every is not None:
        raise UsageError(
            "watch= and watch_every= are now callback= and callback_every=: a function "
            "of one event, with event.step, event.sampler and event.target."
        )
    configs.whole_number("callback_every", callback_every)
    if callback is not None and not callable(callback):
        raise UsageError(
            f"callback must be a function of one event, not a "
            f"{type(callback).__name__}."
        )


def require_seconds(seconds: Any) -> None:
    """Refuses an invalid time between checkpoints; infinity means none are made."""
    if not isinstance(seconds, int | float) or not seconds >= 0:
        raise UsageError(
            f"checkpoint_seconds must be a number of at least 0, not {seconds!r}."
        )


def report_ending(trained: AbstractTrained, *, throw: bool) -> None:
    """Raises if training broke down, and warns if it was interrupted."""
    broken = (Status.NONFINITE, Status.NONFINITE_DRAWS)
    if trained.status in broken and throw:
        raise TrainingError(trained.message)
    if trained.status is Status.INTERRUPTED:
        # The level of whoever called `fit` or `train`.
        warnings.warn(trained.message, UnfinishedWarning, stacklevel=3)
