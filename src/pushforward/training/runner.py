"""The host side of a run: chunks, reports, the callback, checkpoints, Ctrl-C."""

import dataclasses
import functools
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key

from pushforward.errors import DamageWarning, FileError
from pushforward.methods.base import AbstractTask, extend
from pushforward.targets.stacked import StackedTargets
from pushforward.training.callback import Callback, Event, read_answer
from pushforward.training.config import MOST_STEPS
from pushforward.training.display import Display
from pushforward.training.history import History
from pushforward.training.interruptions import interruptions
from pushforward.training.loop import (
    NOT_ENDED,
    PATIENCE,
    PREPARE,
    RECOVERY,
    RunState,
    advance,
    all_finite,
    begin,
    first_state,
    means,
    recover,
    review,
    step_key,
)
from pushforward.training.rundir import RunDirectory
from pushforward.training.status import Status

# Lines of metrics in a stage, about.
REPORTS = 100
# How long one compiled chunk should take: short enough for Ctrl-C and the bar.
CHUNK_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How the run of one seed ended."""

    # What was learnt, and the state of training that it was made from.
    result: Any
    state: Any
    status: Status
    rows: list[dict[str, Any]]
    # Steps made twice, around one that was not finite, count once.
    steps: int
    planned: int
    nonfinite_steps: int
    seconds: float


def run(
    key: Key[Array, "..."],
    targets: Any,
    learner: AbstractTask,
    directory: RunDirectory | None,
    shown: Display,
    *,
    checkpoint_seconds: float = 20.0,
    callback: Callback | None = None,
    callback_every: int = 1000,
    afford: Callable[[Any], int] | None = None,
) -> list[Outcome]:
    """Runs a learner, from the start or from the directory's state.

    Args:
        key: one key, or one for each seed.
        targets: a target, or the data of another learner; for many keys it may be a
            list of as many targets.
        learner: what is trained, its fields resolved.
        directory: where the run is kept.
        shown: what a person sees of it.
        checkpoint_seconds: how often the run is saved.
        callback: see `fit`.
        callback_every: after how many steps it is called.
        afford: the most steps that a budget pays for, from the state before the first.

    Returns:
        An outcome for each seed.
    """
    run = _Run(key, targets, learner, directory, shown, checkpoint_seconds)
    run.callback, run.callback_every, run.afford = callback, callback_every, afford
    with interruptions() as interrupted:
        return run.run(interrupted)


class _Run:
    def __init__(self, key, targets, learner, directory, shown, checkpoint_seconds):
        self.key = key
        self.step_key = jax.vmap(step_key)(key) if key.shape else step_key(key)
        self.seeds = key.shape[0] if key.shape else 1
        if isinstance(targets, list):
            # Every seed has a target of its own.
            self.targets, self.program_target = targets, StackedTargets.of(targets)
            self.target = self.program_target.first
        else:
            self.target = self.program_target = targets
            self.targets = [targets] * self.seeds
        self.learner = learner
        # The number of steps is no part of what is compiled: one for all.
        self.program = learner.with_sizes(steps=MOST_STEPS)
        self.directory, self.shown = directory, shown
        self.checkpoint_seconds = checkpoint_seconds
        self.callback: Callback | None = None
        self.callback_every = 1
        self.afford: Callable[[Any], int] | None = None
        # The most steps that the budget pays for, where there is one.
        self.affordable: int | None = None
        # The step at which the callback was last called.
        self.called = 0
        self.rows: list[dict[str, Any]] = []
        self.seconds = 0.0

    @property
    def steps(self) -> int:
        """How many steps are planned."""
        return self.learner.steps

    def _begin(self, previous: Any, start: Any = begin) -> RunState:
        steps = jnp.asarray(self.steps, jnp.int32)
        return start(self.program, self.program_target, self.step_key, steps, previous)

    def _prepare(self) -> Any:
        """What training starts from, found for one seed after the other."""
        prepare = self.learner.prepare
        keys = [self.key] if not self.key.shape else list(self.key)
        keys = [jax.random.fold_in(key, PREPARE) for key in keys]
        if not self.key.shape:
            return prepare(keys[0], self.target)
        found = [prepare(k, t) for k, t in zip(keys, self.targets, strict=True)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)

    def _restore(self) -> RunState | None:
        """The state on disk; None where nothing has been saved."""
        if self.directory is None:
            return None
        position = self.directory.read_position()
        if position is None:
            self.directory.read_metrics(None, self.learner.name)
            return None
        self._limit(position.affordable)
        if position.stage != 0 or position.steps > self.steps:
            raise FileError(
                f"{self.directory.path} is damaged: its state is one of stage "
                f"{position.stage} with {position.steps} steps, which its config does "
                "not have."
            )
        previous = eqx.filter_eval_shape(self.learner.prepared, self.target)
        skeleton: Any = eqx.filter_eval_shape(self._begin, previous, first_state)
        state = self.directory.read_state(skeleton)
        _require_sound(self.directory, state, position.step)
        longer = self.steps != position.steps
        if longer:
            state = self._extended(state)
        if longer or self.callback is None:
            # What a callback stopped goes on if there is more to do, or without it.
            going = np.where(_broken(state), np.asarray(state.ended), NOT_ENDED)
            state = _with_ended(state, going)
        self.seconds = position.seconds
        called = position.step if position.called is None else position.called
        self.called = min(called, position.step)
        self.rows, repaired = self.directory.read_metrics(position, self.learner.name)
        if repaired is not None:
            warnings.warn(repaired, DamageWarning, stacklevel=2)
            # So that the state counts the rows that there are.
            self._save(state)
        return state

    def _limit(self, affordable: int | None) -> None:
        """Makes no more steps than the budget pays for."""
        self.affordable = affordable
        if affordable is not None and affordable < self.steps:
            self.learner = self.learner.with_sizes(steps=affordable)

    def _extended(self, state: RunState) -> RunState:
        """The state with the number of steps that is now planned."""
        longer = functools.partial(extend, steps=self.steps)
        longer = eqx.filter_vmap(longer) if self.key.shape else longer
        extended = longer(state.state)
        return eqx.tree_at(lambda s: s.state, state, extended)

    def _save(self, state: RunState, *, finished: bool = False) -> None:
        if self.directory is None:
            return
        position = {
            "stage": 0,
            "steps": self.steps,
            "seconds": self.seconds,
            "finished": finished,
            "called": self.called,
            "affordable": self.affordable,
        }
        self.directory.write_state(position, state)

    def run(self, interrupted: threading.Event) -> list[Outcome]:
        state = self._restore()
        self.shown.say("Looking at the target and compiling ...")
        begun = time.monotonic()
        if state is None:
            state = self._begin(self._prepare())
            if self.afford is not None:
                self._limit(self.afford(state.state))
                state = self._extended(state)
            self.seconds += time.monotonic() - begun
            self._save(state)
        state = self._train(state, interrupted)
        done = int(state.step) >= self.steps or bool(np.all(_still(state)))
        ended = bool(np.all(np.asarray(state.ended) != NOT_ENDED))
        finished = done and not ended
        self._save(state, finished=finished)
        return self._outcomes(state, finished=finished)

    def _train(self, state: RunState, interrupted: threading.Event) -> RunState:
        steps = self.steps
        interval = max(steps // REPORTS, 1)
        every = self.learner.review_every
        patience = np.asarray(PATIENCE, np.int32)
        step = int(state.step)
        self.shown.stage(self.learner.name, steps, step)
        chunk, saved = 1, time.monotonic()
        if every and step == 0:
            state = self._review(state)
        # The callback was not done with this step when the run was left.
        if self._is_due(step) and self.called < step:
            state = self._call(state)
        while step < steps and not interrupted.is_set():
            ended = _still(state)
            if np.all(ended):
                break
            # Chunks end where a report is due, so that reports do not depend on speed.
            due = min((step // interval + 1) * interval, steps)
            stop = min(step + chunk, due)
            if self.callback is not None:
                called = step // self.callback_every + 1
                stop = min(stop, called * self.callback_every)
            if every:
                stop = min(stop, (step // every + 1) * every)
            start = time.monotonic()
            tried = advance(
                self.program,
                self.program_target,
                self.step_key,
                state,
                np.asarray(stop, np.int32),
                patience,
                np.asarray(step % interval == 0),
            )
            end, found = jax.device_get((tried.step, tried.nonfinite_in_a_row))
            spent = time.monotonic() - start
            self.seconds += spent
            made = int(end) - step
            if made > 1 and np.any((found > 0) & ~ended):
                # One of these steps is not finite: fewer of them, until it is alone.
                chunk = made - 1 if end < stop else made // 2
                continue
            state = tried
            if np.any((found > 0) & (found % RECOVERY == 0) & ~ended):
                state = recover(self.program, state)
            chunk = _next_chunk(chunk, made, spent)
            step = int(end)
            if step == due:
                self._record(step, state)
            if every and step % every == 0:
                state = self._review(state)
            if self._is_due(step):
                state = self._call(state)
            if time.monotonic() - saved > self.checkpoint_seconds:
                self._save(state)
                saved = time.monotonic()
        return state

    def _review(self, state: RunState) -> RunState:
        """Lets the learner decide, and records what it saw."""
        start = time.monotonic()
        state, info = review(self.program, self.program_target, self.step_key, state)
        numbers = {k: np.asarray(v).tolist() for k, v in jax.device_get(info).items()}
        self.seconds += time.monotonic() - start
        self._append_row(state, numbers)
        return state

    def _is_due(self, step: int) -> bool:
        return (
            self.callback is not None and step > 0 and step % self.callback_every == 0
        )

    def _call(self, state: RunState) -> RunState:
        """Calls the callback for every seed, keeps its numbers, and stops whom it says.

        If it raises, the run is saved as it is now; resumed, it calls it again.
        """
        try:
            numbers, stops = self._ask(state)
        except BaseException:
            self._save(state)
            raise
        made = int(state.step)
        self.called = made
        if numbers:
            self._append_row(state, numbers)
        if made == self.steps:
            return state
        ended = np.asarray(state.ended)
        stops = np.asarray(stops).reshape(ended.shape)
        return _with_ended(state, np.where(stops & (ended == NOT_ENDED), made, ended))

    def _ask(self, state: RunState):
        """The numbers for the history, and for each seed whether it should stop."""
        assert self.callback is not None
        many = bool(self.key.shape)
        found = means(state)
        whole = functools.cache(lambda: self._result(state))

        def result(seed: int) -> Any:
            return _of_seed(whole(), seed) if many else whole()

        # What a callback stopped is not looked at any more.
        stopped = (np.asarray(state.ended) != NOT_ENDED) & ~_broken(state)
        stopped = np.atleast_1d(stopped)
        answers: list[dict[str, float]] = [{} for _ in self.targets]
        stops = [False] * self.seeds
        for seed, target in enumerate(self.targets):
            if stopped[seed]:
                continue
            event = Event(
                int(state.step),
                self.steps,
                {k: float(v[seed] if many else v) for k, v in found.items()},
                target,
                History(_rows_of(self.rows, seed if many else None)),
                seed,
                functools.partial(result, seed),
            )
            answers[seed], stops[seed] = read_answer(self.callback(event))
        names = dict.fromkeys(name for answer in answers for name in answer)
        columns = {k: [each.get(k, np.nan) for each in answers] for k in names}
        return {k: v if many else v[0] for k, v in columns.items()}, stops

    def _record(self, step: int, state: RunState) -> None:
        numbers = {k: np.asarray(v).tolist() for k, v in means(state).items()}
        beside = {
            "skipped": np.asarray(state.nonfinite_total).tolist(),
            "seconds": round(self.seconds, 3),
        }
        self._append_row(state, numbers | beside)
        self.shown.update(step, {k: _mean(v) for k, v in numbers.items()})

    def _append_row(self, state: RunState, numbers: dict[str, Any]) -> None:
        row = {"stage": self.learner.name, "step": int(state.step), **numbers}
        self.rows.append(row)
        if self.directory is not None:
            self.directory.append_metrics(row)

    def _result(self, state: RunState) -> Any:
        build = self.learner.result
        if self.key.shape:
            # What is not an array, in a network of the user's, is the same for all.
            return eqx.filter_vmap(lambda s: build(self.target, s))(state.state)
        return build(self.target, state.state)

    def _outcomes(self, state: RunState, *, finished: bool) -> list[Outcome]:
        whole = self._result(state), state.state
        made = int(state.step)
        ended = np.atleast_1d(np.asarray(state.ended)).tolist()
        complete = np.atleast_1d(np.asarray(state.complete)).tolist()
        broken = np.atleast_1d(_broken(state))
        skipped = np.atleast_1d(np.asarray(state.nonfinite_total))
        many = bool(self.key.shape)
        outcomes = []
        for i in range(self.seeds):
            result, own = _of_seed(whole, i) if many else whole
            status = Status.FINISHED if finished else Status.INTERRUPTED
            rows = _rows_of(self.rows, i if many else None)
            # Shorter than it takes to give up, but nothing was ever learnt.
            nothing = 0 < made <= int(skipped[i])
            if (ended[i] != NOT_ENDED and broken[i]) or (finished and nothing):
                status = Status.FROZEN if many else Status.NONFINITE
            elif ended[i] != NOT_ENDED:
                status = Status.STOPPED
            elif complete[i] != NOT_ENDED:
                status = Status.FINISHED
            last = ended[i] if ended[i] != NOT_ENDED else complete[i]
            if last != NOT_ENDED and not broken[i]:
                rows = [row for row in rows if row["step"] <= last]
            outcomes.append(
                Outcome(
                    result=result,
                    state=own,
                    status=status,
                    rows=rows,
                    steps=made if last == NOT_ENDED else min(made, last),
                    planned=self.steps,
                    nonfinite_steps=int(skipped[i]),
                    seconds=self.seconds,
                )
            )
        return outcomes


def _require_sound(directory: RunDirectory, state: RunState, made: int) -> None:
    """Refuses a state that no training can have reached in so many steps."""
    counts = (state.nonfinite_total, state.nonfinite_in_a_row, state.count)
    last = (state.ended, state.complete)
    sound = all(np.all((np.asarray(n) >= 0) & (np.asarray(n) <= made)) for n in counts)
    sound &= all(
        np.all((np.asarray(n) >= NOT_ENDED) & (np.asarray(n) <= made)) for n in last
    )
    # A step that leaves numbers that are not finite is undone; only what a stage begins
    # with may have some.
    trained = np.asarray(state.step) > np.max(np.asarray(state.nonfinite_in_a_row))
    if not sound or (trained and not bool(all_finite(state.state))):
        raise FileError(
            f"The state in {directory.path} is damaged: no training can have reached "
            f"it in {made} steps; restore it from a copy, or start a new run."
        )


def _still(state: RunState) -> Bool[np.ndarray, "..."]:
    """Which seeds are not trained any more."""
    ended, complete = np.asarray(state.ended), np.asarray(state.complete)
    return np.asarray((ended != NOT_ENDED) | (complete != NOT_ENDED))


def _of_seed(tree: Any, i: int) -> Any:
    """One seed of a tree whose arrays have one entry for each."""
    return jax.tree.map(lambda a: a[i] if eqx.is_array(a) else a, tree)


def _broken(state: RunState) -> Bool[np.ndarray, "..."]:
    """Which seeds are frozen because their steps were not finite."""
    return np.asarray(np.asarray(state.nonfinite_in_a_row) >= PATIENCE)


def _with_ended(state: RunState, ended: Int[np.ndarray, "..."]) -> RunState:
    return eqx.tree_at(lambda s: s.ended, state, jnp.asarray(ended, jnp.int32))


def _rows_of(rows: list[dict[str, Any]], seed: int | None) -> list[dict[str, Any]]:
    """The rows of one seed of many; all, where there is one."""
    if seed is None:
        return list(rows)
    return [
        {k: v[seed] if isinstance(v, list) else v for k, v in row.items()}
        for row in rows
    ]


def _mean(values: Any) -> float:
    """The mean over the seeds that have a number."""
    finite = np.asarray(values)[np.isfinite(values)]
    return float(finite.mean()) if finite.size else float("nan")


def _next_chunk(chunk: int, made: int, spent: float) -> int:
    """A chunk that takes about CHUNK_SECONDS, growing at most tenfold at a time."""
    rate = made / max(spent, 1e-6)
    return max(1, min(int(rate * CHUNK_SECONDS), 10 * chunk))
