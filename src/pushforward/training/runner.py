"""The host side of a run: chunks, reports, the callback, checkpoints, Ctrl-C."""

import dataclasses
import functools
import threading
import time
import warnings
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
    RunState,
    advance,
    all_finite,
    begin,
    first_state,
    inherit,
    means,
    review,
    stage_key,
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
    # The stages that were run, and how many steps each of them made; steps made twice,
    # around one that was not finite, count once.
    stages: tuple[tuple[AbstractTask, int], ...]
    planned: int
    nonfinite_steps: int
    seconds: float

    @property
    def steps(self) -> int:
        """How many steps were made, over all stages."""
        return sum(steps for _, steps in self.stages)


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
) -> list[Outcome]:
    """Runs every stage of a learner, from the start or from the directory's state.

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

    Returns:
        An outcome for each seed.
    """
    run = _Run(key, targets, learner, directory, shown, checkpoint_seconds)
    run.callback, run.callback_every = callback, callback_every
    with interruptions() as interrupted:
        return run.run(interrupted)


class _Run:
    def __init__(self, key, targets, learner, directory, shown, checkpoint_seconds):
        self.key = key
        self.seeds = key.shape[0] if key.shape else 1
        if isinstance(targets, list):
            # Every seed has a target of its own.
            self.targets, self.program_target = targets, StackedTargets.of(targets)
            self.target = self.program_target.first
        else:
            self.target = self.program_target = targets
            self.targets = [targets] * self.seeds
        self.stages = learner.stages()
        # The number of steps is no part of what is compiled: one for all.
        self.programs = [s.with_sizes(steps=MOST_STEPS) for s in self.stages]
        self.directory, self.shown = directory, shown
        self.checkpoint_seconds = checkpoint_seconds
        self.callback: Callback | None = None
        self.callback_every = 1
        # The step at which the callback was last called.
        self.called = 0
        self.rows: list[dict[str, Any]] = []
        self.seconds = 0.0
        self.planned = self._steps_before(len(self.stages))

    def _steps(self, stage: int) -> int:
        return self.stages[stage].steps

    def _steps_before(self, stage: int) -> int:
        return sum(self._steps(i) for i in range(stage))

    def _key(self, stage: int) -> Key[Array, "..."]:
        if self.key.shape:
            return jax.vmap(lambda k: stage_key(k, stage))(self.key)
        return stage_key(self.key, stage)

    def _begin(self, stage: int, previous: Any, start: Any = begin) -> RunState:
        steps = jnp.asarray(self._steps(stage), jnp.int32)
        return start(
            self.programs[stage],
            self.program_target,
            self._key(stage),
            steps,
            previous,
        )

    def _prepare(self) -> Any:
        """What the first stage starts from, found for one seed after the other."""
        prepare = self.stages[0].prepare
        keys = [self.key] if not self.key.shape else list(self.key)
        keys = [jax.random.fold_in(key, PREPARE) for key in keys]
        if not self.key.shape:
            return prepare(keys[0], self.target)
        found = [prepare(k, t) for k, t in zip(keys, self.targets, strict=True)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)

    def _restore(self) -> tuple[int, RunState | None]:
        """The stage and state on disk; (0, None) where nothing has been saved."""
        if self.directory is None:
            return 0, None
        names = [stage.name for stage in self.stages]
        position = self.directory.read_position()
        if position is None:
            self.directory.read_metrics(None, names)
            return 0, None
        stage = position.stage
        if stage >= len(self.stages) or position.steps > self._steps(stage):
            raise FileError(
                f"{self.directory.path} is damaged: its state is one of stage {stage} "
                f"with {position.steps} steps, which its config does not have."
            )
        skeleton: Any = None
        previous = eqx.filter_eval_shape(self.stages[0].prepared, self.target)
        for i in range(stage + 1):
            skeleton = eqx.filter_eval_shape(self._begin, i, previous, first_state)
            previous = skeleton.state
        state = self.directory.read_state(skeleton)
        made = self._steps_before(stage) + position.step
        _require_sound(self.directory, state, made)
        longer = self._steps(stage) != position.steps
        if longer:
            state = eqx.tree_at(
                lambda s: s.state, state, extend(state.state, self._steps(stage))
            )
        if longer or self.callback is None:
            # What a callback stopped goes on if there is more to do, or without it.
            going = np.where(_broken(state), np.asarray(state.ended), NOT_ENDED)
            state = _with_ended(state, going)
        self.seconds = position.seconds
        called = made if position.called is None else position.called
        self.called = min(called, made)
        self.rows, repaired = self.directory.read_metrics(position, names)
        if repaired is not None:
            warnings.warn(repaired, DamageWarning, stacklevel=2)
            # So that the state counts the rows that there are.
            self._save(stage, state)
        return stage, state

    def _save(self, stage: int, state: RunState, *, finished: bool = False) -> None:
        if self.directory is None:
            return
        position = {
            "stage": stage,
            "steps": self._steps(stage),
            "seconds": self.seconds,
            "finished": finished,
            "called": self.called,
        }
        self.directory.write_state(position, state)

    def run(self, interrupted: threading.Event) -> list[Outcome]:
        stage, state = self._restore()
        self.shown.say("Looking at the target and compiling ...")
        begun = time.monotonic()
        if state is None:
            state = self._begin(0, self._prepare())
            self.seconds += time.monotonic() - begun
            self._save(0, state)
        while True:
            state = self._train(stage, state, interrupted)
            done = int(state.step) >= self._steps(stage) or bool(np.all(_still(state)))
            ended = bool(np.all(np.asarray(state.ended) != NOT_ENDED))
            finished = done and not ended and self._is_last(stage, state)
            self._save(stage, state, finished=finished)
            if ended or finished or interrupted.is_set():
                return self._outcomes(stage, state, finished=finished)
            state = inherit(self._begin(stage + 1, state.state), state)
            stage += 1
            self._save(stage, state)

    def _is_last(self, stage: int, state: RunState) -> bool:
        """Whether no stage follows this one, or none of them has anything to do.

        A seed that has ended has nothing to do either.
        """
        if stage + 1 == len(self.stages):
            return True
        ask = self.stages[stage].settled
        ask = jax.vmap(ask) if self.key.shape else ask
        ended = np.asarray(state.ended) != NOT_ENDED
        return bool(np.all(np.asarray(ask(state.state)) | ended))

    def _train(self, stage: int, state: RunState, interrupted) -> RunState:
        learner = self.stages[stage]
        key, steps, before = (
            self._key(stage),
            self._steps(stage),
            self._steps_before(stage),
        )
        name = learner.name
        interval = max(steps // REPORTS, 1)
        every = learner.review_every
        patience = np.asarray(PATIENCE, np.int32)
        step = int(state.step)
        self.shown.stage(name, steps, step)
        chunk, saved = 1, time.monotonic()
        if every and step == 0:
            state = self._review(stage, name, state)
        # The callback was not done with this step when the run was left.
        if self._is_due(before + step) and self.called < before + step:
            state = self._call(stage, name, state)
        while step < steps and not interrupted.is_set():
            ended = _still(state)
            if np.all(ended):
                break
            # Chunks end where a report is due, so that reports do not depend on speed.
            due = min((step // interval + 1) * interval, steps)
            stop = min(step + chunk, due)
            if self.callback is not None:
                calls = (before + step) // self.callback_every + 1
                stop = min(stop, calls * self.callback_every - before)
            if every:
                stop = min(stop, (step // every + 1) * every)
            start = time.monotonic()
            tried = advance(
                self.programs[stage],
                self.program_target,
                key,
                state,
                np.asarray(stop, np.int32),
                np.asarray(before, np.int32),
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
            chunk = _next_chunk(chunk, made, spent)
            step = int(end)
            if step == due:
                self._record(name, step, state)
            if every and step % every == 0:
                state = self._review(stage, name, state)
            if self._is_due(before + step):
                state = self._call(stage, name, state)
            if time.monotonic() - saved > self.checkpoint_seconds:
                self._save(stage, state)
                saved = time.monotonic()
        return state

    def _review(self, stage: int, name: str, state: RunState) -> RunState:
        """Lets the learner decide, and records what it saw."""
        start = time.monotonic()
        before = np.asarray(self._steps_before(stage), np.int32)
        learner, target = self.programs[stage], self.program_target
        state, info = review(learner, target, self._key(stage), state, before)
        numbers = {k: np.asarray(v).tolist() for k, v in jax.device_get(info).items()}
        self.seconds += time.monotonic() - start
        self._append_row({"stage": name, "step": int(state.step), **numbers})
        return state

    def _is_due(self, made: int) -> bool:
        return (
            self.callback is not None and made > 0 and made % self.callback_every == 0
        )

    def _call(self, stage: int, name: str, state: RunState) -> RunState:
        """Calls the callback for every seed, keeps its numbers, and stops whom it says.

        If it raises, the run is saved as it is now; resumed, it calls it again.
        """
        made = self._steps_before(stage) + int(state.step)
        try:
            numbers, stops = self._ask(stage, state, made)
        except BaseException:
            self._save(stage, state)
            raise
        self.called = made
        if numbers:
            self._append_row({"stage": name, "step": int(state.step), **numbers})
        if made == self.planned:
            return state
        ended = np.asarray(state.ended)
        stops = np.asarray(stops).reshape(ended.shape)
        return _with_ended(state, np.where(stops & (ended == NOT_ENDED), made, ended))

    def _ask(self, stage: int, state: RunState, made: int):
        """The numbers for the history, and for each seed whether it should stop."""
        assert self.callback is not None
        many = bool(self.key.shape)
        found = means(state)
        whole = functools.cache(lambda: self._result(stage, state))

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
                made,
                self.planned,
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

    def _record(self, name: str, step: int, state: RunState) -> None:
        numbers = {k: np.asarray(v).tolist() for k, v in means(state).items()}
        row = {
            "stage": name,
            "step": step,
            **numbers,
            "skipped": np.asarray(state.nonfinite_total).tolist(),
            "seconds": round(self.seconds, 3),
        }
        self._append_row(row)
        self.shown.update(step, {k: _mean(v) for k, v in numbers.items()})

    def _made(self, row: dict[str, Any]) -> int:
        """How many steps had been made, over all stages, when a row was written."""
        names = [stage.name for stage in self.stages]
        return self._steps_before(names.index(row["stage"])) + row["step"]

    def _append_row(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        if self.directory is not None:
            self.directory.append_metrics(row)

    def _result(self, stage: int, state: RunState) -> Any:
        build = self.stages[stage].result
        if self.key.shape:
            # What is not an array, in a network of the user's, is the same for all.
            return eqx.filter_vmap(lambda s: build(self.target, s))(state.state)
        return build(self.target, state.state)

    def _outcomes(
        self, stage: int, state: RunState, *, finished: bool
    ) -> list[Outcome]:
        whole = self._result(stage, state), state.state
        made = [self._steps(i) for i in range(stage)] + [int(state.step)]
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
            nothing = 0 < sum(made) <= int(skipped[i])
            if (ended[i] != NOT_ENDED and broken[i]) or (finished and nothing):
                status = Status.FROZEN if many else Status.NONFINITE
            elif ended[i] != NOT_ENDED:
                status = Status.STOPPED
            elif complete[i] != NOT_ENDED:
                status = Status.FINISHED
            last = ended[i] if ended[i] != NOT_ENDED else complete[i]
            if last != NOT_ENDED and not broken[i]:
                rows = [r for r in rows if self._made(r) <= last]
            stages = zip(self.stages, _until(made, last), strict=False)
            outcomes.append(
                Outcome(
                    result=result,
                    state=own,
                    status=status,
                    rows=rows,
                    stages=tuple(stages),
                    planned=self.planned,
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


def _until(made: list[int], ended: int) -> list[int]:
    """The steps of the stages, for a seed that ended after so many in all."""
    if ended == NOT_ENDED:
        return made
    cut, left = [], ended
    for steps in made:
        cut.append(min(steps, left))
        left -= cut[-1]
    return cut


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
