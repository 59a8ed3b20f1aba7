"""`fit` and `fit_many`: examine the target, train a method, hand back a sampler."""

import dataclasses
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key, PRNGKeyArray

from pushforward.diagnostics.arguments import require_same_parameters
from pushforward.diagnostics.budget import Budget
from pushforward.errors import UsageError
from pushforward.methods import AbstractMethod, default
from pushforward.methods.base import AbstractTask
from pushforward.sampler import Sampler
from pushforward.targets.arguments import as_key, as_target, one_key
from pushforward.targets.base import AbstractTarget
from pushforward.training import session
from pushforward.training.callback import Callback, Event
from pushforward.training.config import (
    Config,
    describe_target,
    new_config,
    whole_number,
)
from pushforward.training.divergence import (
    evaluations_of_last_draws,
    explain_divergence,
    last_draws,
)
from pushforward.training.door import admit
from pushforward.training.history import History
from pushforward.training.rundir import SAMPLER, RunDirectory
from pushforward.training.runner import Outcome
from pushforward.training.status import Fit, Status

# Folded into the user's key for the examination and for the draws at the end, which
# must not share training's noise.
_EXAMINE, _DRAW = 0x65786D, 0x647277


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
    callback: Callback | None = None,
    callback_every: int = 1000,
    max_evaluations: int | float | None = None,
    spec: Any = None,
    checkpoint_seconds: float = 20.0,
    warm_start: Sampler | None = None,
    watch: Any = None,
    watch_every: Any = None,
) -> Fit:
    """Trains a sampler for `target`.

    Args:
        key: random key.
        target: what to sample from.
        method: a method of `pushforward.methods`; None is the one that
            `methods.default` chooses for the target.
        steps: replaces the method's number of steps.
        batch_size: replaces the method's batch size.
        out: a directory for the run, which makes it resumable.
        resume: go on with the run in `out` (or start it, where there is none yet). Only
            a larger number of steps may differ, and for a method of several stages only
            before the first is done.
        progress: show a progress bar (plain lines without a terminal).
        throw: raise if training breaks down, if the draws are not finite, or if the
            density cannot be normalised; otherwise return what was reached.
        callback: called as `callback(event)` during training. `event.step` is the
            number of steps made, `event.metrics` what the method measures,
            `event.sampler` the sampler as it is now, `event.target` the target and
            `event.history` the rows so far. It may return None; a mapping of names to
            numbers, which join the history; or True to stop the training, as may
            `"stop": True` in the mapping. A run that it stopped stays so when resumed
            with a callback, and goes on without one.
        callback_every: after how many steps it is called.
        max_evaluations: how often the target may be evaluated, exploration and the
            draws at the end included. Half of it at most goes to exploration, which
            then has fewer particles, and the rest to as many steps as it pays for, at
            most those planned. `evaluations` of the result is above it by no more than
            a tenth, or its message says that it was too little. The examination at the
            start, a few hundred evaluations, is not counted.
        spec: where the target comes from, remembered in the config.
        checkpoint_seconds: how often the run is saved.
        warm_start: a sampler of the same parameters, for a target that is like its
            own. Training starts from its network, in its coordinates, instead of the
            network that the method names. What looks at the target before the first
            step still does.
        watch: what `callback` was called in version 0.1.
        watch_every: what `callback_every` was called in version 0.1.

    Returns:
        A `Fit`, with the sampler, how training ended, the history and the config. After
        Ctrl-C the sampler is as it was then, and an `UnfinishedWarning` says so.
    """
    key, target = one_key(key), as_target(target)
    learner = _method(method, target, batch_size)
    if warm_start is not None:
        learner = _warm_started(learner, target, warm_start)
    steps = None if steps is None else whole_number("steps", steps)
    session.require_callback(callback, callback_every, watch, watch_every)
    session.require_seconds(checkpoint_seconds)
    budget = Budget(max_evaluations).most
    with session.opened(out, resume=resume) as directory:

        def describe() -> Config:
            doubts = admit(jax.random.fold_in(key, _EXAMINE), target, throw=throw)
            return describe_target(target, spec, doubts)

        learner, config = session.prepare(
            key, target, learner, steps, directory, describe, budget
        )
        (outcome,) = session.launch(
            key,
            target,
            learner,
            directory,
            progress=progress,
            callback=callback,
            callback_every=callback_every,
            checkpoint_seconds=checkpoint_seconds,
            afford=_afford(learner, [target], config.get("max_evaluations")),
        )
        fitted = _fit_of(key, target, learner, outcome, config, directory)
        if directory is not None:
            directory.write_ending(_ending_of(fitted))
        session.report_ending(fitted, throw=throw)
        if directory is not None and fitted.finished:
            fitted.sampler.save(directory.path / SAMPLER)
    return fitted


def _ending_of(fitted: Fit) -> dict[str, Any]:
    """How a fit ended, as plain names and numbers."""
    return {
        "status": fitted.status.name,
        "message": fitted.message,
        "steps": fitted.steps,
        "planned": fitted.planned,
        "nonfinite_steps": fitted.nonfinite_steps,
        "evaluations": int(fitted.evaluations),
        "seconds": fitted.seconds,
        "doubts": list(fitted.doubts),
        "outside": fitted.outside,
    }


def fit_many(
    keys: Key[Array, "..."],
    target: AbstractTarget | Sequence[AbstractTarget],
    method: AbstractMethod | None = None,
    *,
    steps: int | None = None,
    batch_size: int | None = None,
    progress: bool = True,
    callback: Callback | None = None,
    callback_every: int = 1000,
    max_evaluations: int | float | None = None,
    watch: Any = None,
    watch_every: Any = None,
) -> list[Fit]:
    """Trains one sampler per key, all in one program.

    A seed whose training goes non-finite is frozen where it stood, which its status
    says, and the others go on; so do they when the callback stops one of them.

    Args:
        keys: an array of random keys.
        target: one target for all, or as many targets as there are keys, of one kind
            and dimension: one model over many data sets, or different densities.
        method: as in `fit`.
        steps: as in `fit`.
        batch_size: as in `fit`.
        progress: as in `fit`.
        callback: as in `fit`, for every seed by itself; `event.seed` is its number.
        callback_every: as in `fit`.
        max_evaluations: as in `fit`, for every key by itself. They make the same number
            of steps: what the one with the most expensive start can afford.
        watch: what `callback` was called in version 0.1.
        watch_every: what `callback_every` was called in version 0.1.

    Returns:
        A `Fit` for each key. Its `seconds` are those of all of them together.
    """
    keys = as_key(keys)
    if keys.ndim != 1 or not keys.shape[0]:
        raise UsageError(
            f"fit_many takes an array of keys, such as jax.random.split(key, 16), and "
            f"got the shape {keys.shape}."
        )
    alone = isinstance(target, AbstractTarget)
    if not alone and not isinstance(target, Sequence):
        as_target(target)
    targets = [target] * keys.shape[0] if alone else list(target)
    if len(targets) != keys.shape[0]:
        raise UsageError(
            f"fit_many was given {keys.shape[0]} keys and {len(targets)} targets; give "
            "one target, or one for each key."
        )
    learner = _method(method, as_target(targets[0]), batch_size)
    steps = None if steps is None else whole_number("steps", steps)
    session.require_callback(callback, callback_every, watch, watch_every)
    distinct = targets[:1] if alone else targets
    at = jax.random.fold_in(keys[0], _EXAMINE)
    doubts = [admit(at, as_target(each)) for each in distinct]
    abouts = [
        describe_target(each, None, found)
        for each, found in zip(distinct, doubts, strict=True)
    ]
    budget = Budget(max_evaluations).most
    learner = session.within(learner, budget).resolve(targets[0])
    longer = learner.with_sizes(steps=steps)

    def in_own_tree(event: Event):
        """The callback, with the sampler in the tree of its own target."""
        assert callback is not None

        def sampler():
            return _in_tree_of(event.target, event.result)

        return callback(dataclasses.replace(event, _result=sampler))

    outcomes = session.launch(
        keys,
        target if alone else targets,
        longer,
        None,
        progress=progress,
        callback=None if callback is None else in_own_tree,
        callback_every=callback_every,
        afford=_afford(longer, targets, budget),
    )
    fits = []
    for i, each in enumerate(targets):
        own = dataclasses.replace(
            outcomes[i], result=_in_tree_of(each, outcomes[i].result)
        )
        about = abouts[0 if alone else i]
        config = new_config(learner, longer.steps, keys[i], about, budget)
        fits.append(_fit_of(keys[i], each, learner, own, config, None))
    # Said once for all of them.
    early = [each for each in fits if each.status is Status.INTERRUPTED]
    session.report_ending((early or fits)[0], throw=False)
    return fits


def _afford(
    learner: AbstractTask, targets: Sequence[AbstractTarget], budget: int | None
) -> Callable[[Any], int] | None:
    """The most steps that a budget pays for, as a function of the first state."""
    if budget is None:
        return None
    assert isinstance(learner, AbstractMethod)

    def most(state: Any) -> int:
        spent = np.atleast_1d(np.asarray(state.initialisation.evaluations))
        return min(
            learner.affordable_steps(
                target, budget - int(start) - evaluations_of_last_draws(target)
            )
            for start, target in zip(spent, targets, strict=True)
        )

    return most


def _in_tree_of(target: AbstractTarget, sampler):
    return dataclasses.replace(sampler, structure=target.structure)


def _method(method, target, batch_size) -> AbstractTask:
    method = default(target) if method is None else method
    if not isinstance(method, AbstractMethod):
        what = f"a {type(method).__name__}"
        if isinstance(method, type | types.FunctionType):
            what = f"{method.__name__} itself, which has not been called"
        raise UsageError(
            "method must be one of pushforward.methods, such as methods.DFT(), and it "
            f"is {what}."
        )
    if batch_size is None:
        return method
    return method.with_sizes(batch_size=whole_number("batch_size", batch_size))


def _warm_started(
    method: AbstractTask, target: AbstractTarget, sampler: Any
) -> AbstractTask:
    if not isinstance(sampler, Sampler):
        raise UsageError(
            "warm_start must be a sampler, such as fit.sampler or pushforward.load of "
            f"a file, not a {type(sampler).__name__}."
        )
    require_same_parameters(sampler, target, "warm_start takes a sampler of them")
    if not isinstance(method, AbstractMethod):
        raise UsageError(
            f"A {type(method).__name__} has no network to start from warm_start; name "
            "one of pushforward.methods."
        )
    return method.warm_started(sampler)


def _fit_of(
    key: PRNGKeyArray,
    target: AbstractTarget,
    learner: AbstractTask,
    outcome: Outcome,
    config: Config,
    directory: RunDirectory | None,
) -> Fit:
    assert isinstance(learner, AbstractMethod)
    reason, status, drawn = None, outcome.status, None
    if status is Status.NONFINITE:
        at = jax.random.fold_in(key, 1)
        reason = explain_divergence(at, target, outcome.result)
        reason = reason or (
            "going back to better weights and lowering the learning rate did not help; "
            "look at the density where the draws are"
        )
    elif status is not Status.FROZEN:
        at = jax.random.fold_in(key, _DRAW)
        drawn = last_draws(at, target, outcome.result)
        if drawn.nonfinite:
            status, reason = Status.NONFINITE_DRAWS, drawn.sentence
    return Fit(
        sampler=outcome.result,
        status=status,
        history=History(outcome.rows),
        config=config,
        evaluations=_evaluations(learner, target, outcome)
        + (drawn.evaluations if drawn else 0),
        doubts=(*config["target"].get("doubts", ()), *learner.doubts(outcome.state)),
        outside=None if drawn is None else drawn.outside,
        steps=outcome.steps,
        planned=outcome.planned,
        nonfinite_steps=outcome.nonfinite_steps,
        seconds=outcome.seconds,
        reason=reason,
        remark=learner.remark(outcome.planned, outcome.steps),
        out=None if directory is None else directory.path,
        target=target,
    )


def _evaluations(
    learner: AbstractTask, target: AbstractTarget, outcome: Outcome
) -> int:
    """How often the target was evaluated, the initialisation included."""
    assert isinstance(learner, AbstractMethod)
    start = int(np.asarray(outcome.state.initialisation.evaluations))
    return start + learner.evaluations_of_steps(target, outcome.steps)
