"""`train`: the engine for whatever else is learnt from data, like an energy model."""

import dataclasses
import zlib
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from pushforward._version import __version__
from pushforward.errors import FileError, TrainingError, UsageError
from pushforward.methods.base import AbstractTask, fill_in, replace
from pushforward.sampler import FORMAT
from pushforward.targets.arguments import as_key
from pushforward.training import config as configs
from pushforward.training.display import display
from pushforward.training.history import History
from pushforward.training.rundir import RunDirectory
from pushforward.training.runner import Watch, run, warn_if_interrupted


@dataclasses.dataclass(frozen=True)
class Trained:
    """What training gives.

    Attributes:
        result: what was learnt.
        status: how training ended, a sentence.
        history: a table of what was measured during training.
        config: plain names and numbers that say exactly what was run.
        finished: whether training came to its end.
        seconds: how long training took, compilation included.
        interrupted: whether Ctrl-C ended it.
    """

    result: Any
    status: str
    history: History
    config: dict[str, Any]
    finished: bool
    seconds: float
    interrupted: bool = False


def train(
    key: PRNGKeyArray,
    data: Any,
    task: AbstractTask,
    *,
    steps: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    watch: Watch | None = None,
    watch_every: int = 1000,
    checkpoint_seconds: float = 60.0,
) -> Trained:
    """Trains `task` on `data` by the engine of `fit`.

    Args:
        key: random key.
        data: a tree of arrays, an argument of the compiled program.
        task: what is learnt, step by step.
        steps: replaces the task's number of steps.
        out: a directory for the run, which makes it resumable.
        resume: go on with the run in `out` (or start it, where there is none yet), on
            the same data.
        progress: show a progress bar.
        watch: called as `watch(step, result, data)` every `watch_every` steps; the
            named numbers it returns join the history.
        watch_every: how often.
        checkpoint_seconds: how often the run is saved.
    """
    key = as_key(key)
    if steps is not None:
        task = replace(task, steps=configs.whole_number("steps", steps))
    if watch is not None:
        watch_every = configs.whole_number("watch_every", watch_every)
    directory = None if out is None else RunDirectory(out)
    if resume and directory is None:
        raise UsageError(
            "resume=True needs out=, the directory of the run to go on with."
        )
    stored = None
    if directory is not None and directory.exists():
        if not resume:
            raise FileError(
                f"{directory.path} already holds a run; pass resume=True to go on with "
                "it, or choose another directory."
            )
        stored = directory.read_config()
        task = _as_begun(stored, task)
    task = task.resolve(data, jax.default_backend())
    config = _describe(task, key, data)
    if stored is not None and directory is not None:
        _require_same(stored, config, directory.path)
        config = stored
    elif directory is not None:
        directory.create(config)
    shown = display(progress)
    try:
        outcome = run(
            key,
            data,
            task,
            directory,
            shown,
            checkpoint_seconds=checkpoint_seconds,
            watch=watch,
            watch_every=None if watch is None else watch_every,
        )
    finally:
        shown.close()
    if outcome.failure is not None:
        raise TrainingError(outcome.failure)
    warn_if_interrupted(outcome)
    return Trained(
        result=outcome.result,
        status=outcome.status,
        history=History(outcome.rows),
        config=config,
        finished=outcome.finished,
        seconds=outcome.seconds,
        interrupted=outcome.interrupted,
    )


def _describe(task: AbstractTask, key: PRNGKeyArray, data: Any) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": __version__,
        "task": _fields(task),
        "key": configs.key_numbers(key),
        "data": _checksum(data),
        "precision": str(jnp.result_type(float)),
        "device": jax.devices()[0].device_kind,
        "versions": {"jax": jax.__version__, "numpy": np.__version__},
    }


def _fields(task: AbstractTask) -> dict[str, Any]:
    fields = {f.name: getattr(task, f.name) for f in dataclasses.fields(task)}
    return {"kind": type(task).__name__, **fields}


def _as_begun(stored: dict[str, Any], task: AbstractTask) -> AbstractTask:
    """The task, its None fields as chosen when the run began.

    That may have been on another device.
    """
    asked, begun = _fields(task), stored.get("task")
    if not isinstance(begun, dict) or begun.get("kind") != asked.pop("kind"):
        return task
    return fill_in(task, {name: begun[name] for name in asked if name in begun})


def _checksum(data: Any) -> int:
    """A number that other data would hardly share."""
    total = 0
    for leaf in jax.tree.leaves(eqx.filter(data, eqx.is_array_like)):
        array = np.asarray(leaf)
        total = zlib.crc32(f"{array.dtype}{array.shape}".encode(), total)
        total = zlib.crc32(array.tobytes(), total)
    return total


def _require_same(stored: dict[str, Any], asked: dict[str, Any], path: Path) -> None:
    """A run goes on only as what it was begun as."""
    # Runs of earlier versions do not say what their data were.
    before = {"data": asked["data"], **stored}
    for part in ("task", "key", "precision", "data"):
        if before.get(part) != asked[part]:
            name = "data set" if part == "data" else part
            raise FileError(
                f"The run in {path} was begun with another {name}, and cannot go on "
                "with this one; choose another directory."
            )
