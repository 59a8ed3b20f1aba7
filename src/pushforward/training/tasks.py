"""`train`: the engine for whatever else is learnt from data, like an energy model."""

from pathlib import Path
from typing import Any

from jaxtyping import PRNGKeyArray

from pushforward.errors import UsageError
from pushforward.methods import AbstractMethod
from pushforward.methods.base import AbstractTask
from pushforward.targets.arguments import one_key
from pushforward.training import session
from pushforward.training.callback import Callback
from pushforward.training.config import describe_data, whole_number
from pushforward.training.history import History
from pushforward.training.status import Status, Trained


def train(
    key: PRNGKeyArray,
    data: Any,
    task: AbstractTask,
    *,
    steps: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    callback: Callback | None = None,
    callback_every: int = 1000,
    checkpoint_seconds: float = 60.0,
    watch: Any = None,
    watch_every: Any = None,
) -> Trained:
    """Trains `task` on `data` by the engine of `fit`.

    Args:
        key: random key.
        data: a tree of arrays, an argument of the compiled program.
        task: what is learnt, step by step.
        steps: replaces the task's number of steps.
        out: a directory for the run, which makes it resumable.
        resume: go on with the run in `out` (or start it, where there is none yet), on
            the same data; only a larger number of steps may differ.
        progress: show a progress bar.
        callback: as in `fit`; `event.result` is what has been learnt so far, and
            `event.target` the data.
        callback_every: after how many steps it is called.
        checkpoint_seconds: how often the run is saved.
        watch: what `callback` was called in version 0.1.
        watch_every: what `callback_every` was called in version 0.1.

    Returns:
        A `Trained`, with what was learnt, how it ended, the history and the config.
    """
    key = one_key(key)
    session.require_seconds(checkpoint_seconds)
    session.require_callback(callback, callback_every, watch, watch_every)
    if isinstance(task, AbstractMethod) or not isinstance(task, AbstractTask):
        raise UsageError(
            "task must be a task of your own, of a subclass of AbstractTask, not a "
            f"{type(task).__name__}; methods of samplers are for fit."
        )
    if steps is not None:
        steps = whole_number("steps", steps)
    with session.opened(out, resume=resume) as directory:
        task, config = session.prepare(
            key, data, task, steps, directory, lambda: describe_data(data)
        )
        (outcome,) = session.launch(
            key,
            data,
            task,
            directory,
            progress=progress,
            callback=callback,
            callback_every=callback_every,
            checkpoint_seconds=checkpoint_seconds,
        )
    broken = outcome.status is Status.NONFINITE
    trained = Trained(
        result=outcome.result,
        status=outcome.status,
        history=History(outcome.rows),
        config=config,
        steps=outcome.steps,
        planned=outcome.planned,
        nonfinite_steps=outcome.nonfinite_steps,
        seconds=outcome.seconds,
        reason="look at the data, or lower the learning rate" if broken else None,
        out=None if directory is None else directory.path,
    )
    session.report_ending(trained, throw=True)
    return trained
