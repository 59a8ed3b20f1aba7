"""`fit` and `fit_many`: train a sampler, and say how it went."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from jaxtyping import Array, Key, PRNGKeyArray

from pushforward.errors import FileError, TrainingError, UsageError
from pushforward.methods import AbstractMethod, Recipe
from pushforward.methods.base import replace
from pushforward.sampler import Sampler
from pushforward.targets.arguments import as_key, as_target
from pushforward.targets.base import AbstractTarget
from pushforward.targets.examine import fingerprint, require
from pushforward.training import config as configs
from pushforward.training.display import display
from pushforward.training.history import History
from pushforward.training.rundir import SAMPLER, RunDirectory
from pushforward.training.runner import Outcome, Watch, run, warn_if_interrupted

# With this variable set, training is cut to this many steps: for documentation tests.
QUICK, QUICK_STEPS = "PUSHFORWARD_QUICK", 60


@dataclasses.dataclass(frozen=True)
class Fit:
    """What training gives.

    Attributes:
        sampler: the trained sampler.
        status: how training ended, a sentence.
        history: a table of what was measured during training.
        config: plain names and numbers that say exactly what was run.
        finished: whether training came to its end.
        evaluations: how often the target was evaluated, the first look included.
        seconds: how long training took, compilation included.
        interrupted: whether Ctrl-C ended it.
    """

    sampler: Sampler
    status: str
    history: History
    config: dict[str, Any]
    finished: bool
    evaluations: int
    seconds: float
    interrupted: bool = False


def fit(
    key: PRNGKeyArray,
    target: AbstractTarget,
    method: AbstractMethod | None = None,
    *,
    steps: int | None = None,
    batch_size: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    throw: bool = True,
    spec: Any = None,
    checkpoint_seconds: float = 20.0,
    watch: Watch | None = None,
    watch_every: int = 1000,
) -> Fit:
    """Trains a sampler for `target`.

    Args:
        key: random key.
        target: what to sample from.
        method: a method of `pushforward.methods`; None is the recipe that works
            untouched.
        steps: replaces the method's number of steps.
        batch_size: replaces the method's batch size.
        out: a directory for the run, which makes it resumable.
        resume: go on with the run in `out` (or start it, where there is none yet). Only
            a larger number of steps may differ, and for a method of several stages, as
            the default is, only before the first is done.
        progress: show a progress bar (plain lines without a terminal).
        throw: raise if training breaks down; otherwise return what was reached.
        spec: where the target comes from, remembered in the config.
        checkpoint_seconds: how often the run is saved.
        watch: called as `watch(step, sampler, target)` every `watch_every` steps with
            the sampler as it is then; the named numbers it returns join the history.
        watch_every: how often.

    Returns:
        A `Fit`, with the sampler, a status in words, the history and the config. After
        Ctrl-C the sampler is as it was then, and an `UnfinishedWarning` says so.
    """
    key, target = as_key(key), as_target(target)
    method = _method(method, steps, batch_size)
    watching = _watching(watch, watch_every)
    directory = None if out is None else RunDirectory(out)
    if resume and directory is None:
        raise UsageError(
            "resume=True needs out=, the directory of the run to go on with."
        )
    if directory is not None and directory.exists() and not resume:
        raise FileError(
            f"{directory.path} already holds a run; pass resume=True (--resume) to go "
            "on with it, or choose another directory."
        )
    require(jax.random.fold_in(key, _EXAMINE), target)
    marks = fingerprint(target)
    if directory is not None and directory.exists():
        stored = directory.read_config()
        method, config = configs.reconcile(stored, method, key, target, marks)
        if config != stored:
            configs.require_extensible(method, directory.read_position())
            directory.write_config(config)
    else:
        method = _resolve(method, target, quick=steps is None)
        config = configs.describe(method, key, target, marks, spec)
        if directory is not None:
            directory.create(config)
    shown = display(progress)
    try:
        outcome = run(
            key,
            target,
            method,
            directory,
            shown,
            checkpoint_seconds=checkpoint_seconds,
            **watching,
        )
    finally:
        shown.close()
    if outcome.failure is not None and throw:
        raise TrainingError(outcome.failure)
    warn_if_interrupted(outcome)
    fitted = _fit_of(outcome, config)
    if directory is not None and outcome.finished:
        fitted.sampler.save(directory.path / SAMPLER)
    return fitted


def fit_many(
    keys: Key[Array, "..."],
    target: AbstractTarget | Sequence[AbstractTarget],
    method: AbstractMethod | None = None,
    *,
    steps: int | None = None,
    batch_size: int | None = None,
    progress: bool = True,
    watch: Watch | None = None,
    watch_every: int = 1000,
) -> list[Fit]:
    """Trains one sampler per key, all in one program.

    `target` is one target for all, or as many targets as there are keys, of one kind
    and dimension: one model over many data sets, or different densities. `seconds` of
    each `Fit` are those of all together. The other arguments are those of `fit`.

    A seed whose training goes non-finite is frozen where it stood and says so in its
    status; the others go on.
    """
    keys = as_key(keys)
    if keys.ndim != 1 or not keys.shape[0]:
        raise UsageError(
            f"fit_many takes an array of keys, such as jax.random.split(key, 16), and "
            f"got the shape {keys.shape}."
        )
    alone = isinstance(target, AbstractTarget)
    targets = [target] * keys.shape[0] if alone else list(target)
    if len(targets) != keys.shape[0]:
        raise UsageError(
            f"fit_many was given {keys.shape[0]} keys and {len(targets)} targets; give "
            "one target, or one for each key."
        )
    method = _method(method, steps, batch_size)
    distinct = targets[:1] if alone else targets
    for each in distinct:
        require(jax.random.fold_in(keys[0], _EXAMINE), as_target(each))
    marks = [fingerprint(each) for each in distinct]
    method = _resolve(method, targets[0], quick=steps is None)
    shown = display(progress)
    try:
        outcome = run(
            keys,
            target if alone else targets,
            method,
            None,
            shown,
            **_watching(watch, watch_every),
        )
    finally:
        shown.close()
    warn_if_interrupted(outcome)
    fits = []
    for i, each in enumerate(targets):
        own = outcome.seed(i)
        sampler = dataclasses.replace(own.result, structure=each.structure)
        own = dataclasses.replace(own, result=sampler)
        mark = marks[0 if alone else i]
        config = configs.describe(method, keys[i], each, mark, None)
        fits.append(_fit_of(own, config))
    return fits


def _watching(watch: Watch | None, every: int) -> dict[str, Any]:
    if watch is None:
        return {}
    return {
        "watch": watch,
        "watch_every": configs.whole_number("watch_every", every),
    }


# Folded into the user's key for the examination, which must not share training's noise.
_EXAMINE = 0x65786D


def _method(method, steps, batch_size) -> AbstractMethod:
    method = Recipe() if method is None else method
    if not isinstance(method, AbstractMethod):
        alone = isinstance(method, type)
        what = f"the class {method.__name__}" if alone else f"a {type(method).__name__}"
        raise UsageError(
            "method must be one of pushforward.methods, such as methods.DFT(), and it "
            f"is {what}."
        )
    for name, value in (("steps", steps), ("batch_size", batch_size)):
        if value is not None:
            method = replace(method, **{name: configs.whole_number(name, value)})
    return method


def _resolve(method: AbstractMethod, target: AbstractTarget, *, quick: bool):
    method = method.resolve(target, jax.default_backend())
    if quick and os.environ.get(QUICK) and (method.steps or 0) > QUICK_STEPS:
        method = replace(method, steps=QUICK_STEPS)
    return method


def _fit_of(outcome: Outcome, config: dict[str, Any]) -> Fit:
    return Fit(
        sampler=outcome.result,
        status=outcome.status,
        history=History(outcome.rows),
        config=config,
        finished=outcome.finished,
        evaluations=outcome.evaluations[0],
        seconds=outcome.seconds,
        interrupted=outcome.interrupted,
    )
