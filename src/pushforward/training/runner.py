"""The host side of a run: stages, chunks, reports, checkpoints, Ctrl-C."""

import dataclasses
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from pushforward.errors import UnfinishedWarning
from pushforward.methods.base import AbstractTask, extend, replace
from pushforward.sampler import Sampler
from pushforward.targets.several import several
from pushforward.training.blame import blame
from pushforward.training.display import Display
from pushforward.training.interruptions import interruptions
from pushforward.training.loop import (
    Progress,
    advance,
    begin,
    inherit,
    means,
    stage_key,
)
from pushforward.training.rundir import RunDirectory

# This many non-finite steps in a row end a run.
PATIENCE = 100
# Lines of metrics in a stage, about.
REPORTS = 100
# How long one compiled chunk should take: short enough for Ctrl-C and the bar.
CHUNK_SECONDS = 0.5


# What a user measures during training: from the step, what has been learnt so far (a
# sampler), and its target, to named numbers.
Watch = Callable[[int, Any, Any], Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended; `result` is a sampler, where a method was run."""

    result: Any
    rows: list[dict[str, Any]]
    # A sentence for each seed.
    statuses: tuple[str, ...]
    finished: bool
    # How often the target was evaluated, the first look included (for each seed); steps
    # that were made twice, around one that was not finite, count once.
    evaluations: tuple[int, ...]
    seconds: float
    interrupted: bool = False
    failure: str | None = None
    # For many seeds: how many steps in a row were not finite, for each.
    streaks: tuple[int, ...] = ()

    @property
    def status(self) -> str:
        """The sentence of the only seed, or of the first."""
        return self.statuses[0]

    def seed(self, i: int) -> "Outcome":
        """The outcome of one seed of many."""
        result = jax.tree.map(lambda a: a[i], self.result)
        rows = [
            {k: v[i] if isinstance(v, list) else v for k, v in row.items()}
            for row in self.rows
        ]
        own = dataclasses.replace(
            self,
            result=result,
            rows=rows,
            statuses=self.statuses[i : i + 1],
            evaluations=self.evaluations[i : i + 1],
        )
        if self.streaks[i] < PATIENCE:
            return own
        status = "Training went non-finite; this seed was frozen where it stood."
        return dataclasses.replace(own, statuses=(status,), finished=False)


def run(
    key: Key[Array, "..."],
    targets: Any,
    method: AbstractTask,
    directory: RunDirectory | None,
    shown: Display,
    *,
    checkpoint_seconds: float = 20.0,
    watch: Watch | None = None,
    watch_every: int | None = None,
) -> Outcome:
    """Runs every stage of a method, from the start or from the directory's state.

    `targets` is a target, or the data of another task; with many keys it may be a list
    of as many targets.
    """
    run = _Run(key, targets, method, directory, shown, checkpoint_seconds)
    run.watch, run.watch_every = watch, watch_every
    with interruptions() as interrupted:
        return run.go(interrupted)


class _Run:
    def __init__(self, key, targets, method, directory, shown, checkpoint_seconds):
        self.key = key
        if isinstance(targets, list):
            # Every seed has a target of its own.
            self.targets, self.program_target = targets, several(targets)
            self.target = self.program_target.first
        else:
            self.target = self.program_target = targets
            self.targets = [targets] * (key.shape[0] if key.shape else 1)
        platform = jax.default_backend()
        self.stages = [s.resolve(self.target, platform) for s in method.stages()]
        # The number of steps is no part of what is compiled.
        self.programs = [replace(s, steps=None) for s in self.stages]
        self.directory, self.shown = directory, shown
        self.checkpoint_seconds = checkpoint_seconds
        self.watch: Watch | None = None
        self.watch_every: int | None = None
        self.rows: list[dict[str, Any]] = []
        self.seconds = 0.0
        self.total = sum(int(s.steps or 0) for s in self.stages)

    def _key(self, stage: int) -> Key[Array, "..."]:
        if self.key.shape:
            return jax.vmap(lambda k: stage_key(k, stage))(self.key)
        return stage_key(self.key, stage)

    def _begin(self, stage: int, previous: Any) -> Progress:
        steps = jnp.asarray(self.stages[stage].steps, jnp.int32)
        return begin(
            self.programs[stage],
            self.program_target,
            self._key(stage),
            steps,
            previous,
        )

    def _restore(self) -> tuple[int, Progress | None]:
        """The stage and progress on disk; (0, None) where nothing has been saved."""
        position = self.directory.read_position() if self.directory else None
        if position is None or self.directory is None:
            if self.directory is not None:
                self.directory.cut_metrics(0)
            return 0, None
        stage = int(position["stage"])
        skeleton: Any = None
        for i in range(stage + 1):
            previous = None if skeleton is None else skeleton.state
            skeleton = eqx.filter_eval_shape(self._begin, i, previous)
        progress = self.directory.read_state(skeleton)
        planned = int(self.stages[stage].steps or 0)
        if planned != position["steps"]:
            progress = eqx.tree_at(
                lambda p: p.state, progress, extend(progress.state, planned)
            )
        self.rows = self.directory.cut_metrics(int(position["rows"]))
        self.seconds = float(position["seconds"])
        return stage, progress

    def _save(self, stage: int, progress: Progress, *, finished: bool = False) -> None:
        if self.directory is None:
            return
        position = {
            "stage": stage,
            "step": int(progress.step),
            "steps": int(self.stages[stage].steps or 0),
            "rows": len(self.rows),
            "seconds": self.seconds,
            "finished": finished,
        }
        self.directory.write_state(position, progress)

    def go(self, interrupted: threading.Event) -> Outcome:
        stage, progress = self._restore()
        self.shown.say("Looking at the target and compiling ...")
        begun = time.monotonic()
        if progress is None:
            progress = self._begin(0, None)
            self.seconds += time.monotonic() - begun
            self._save(0, progress)
        while True:
            progress = self._train(stage, progress, interrupted)
            method = self.stages[stage]
            done = int(progress.step) >= int(method.steps or 0)
            stuck = int(np.min(np.asarray(progress.streak))) >= PATIENCE
            finished = done and not stuck and self._is_last(stage, progress)
            self._save(stage, progress, finished=finished)
            if stuck or finished or interrupted.is_set():
                return self._outcome(stage, progress, finished=finished, stuck=stuck)
            fresh = self._begin(stage + 1, progress.state)
            progress = inherit(fresh, progress, PATIENCE)
            stage += 1
            self._save(stage, progress)

    def _is_last(self, stage: int, progress: Progress) -> bool:
        """Whether no stage follows this one, or none of them has anything to do.

        A seed that is frozen has nothing to do either.
        """
        if stage + 1 == len(self.stages):
            return True
        ask = self.stages[stage].settled
        ask = jax.vmap(ask) if self.key.shape else ask
        frozen = np.asarray(progress.streak) >= PATIENCE
        return bool(np.all(np.asarray(ask(progress.state)) | frozen))

    def _train(self, stage: int, progress: Progress, interrupted) -> Progress:
        method = self.stages[stage]
        key, steps = self._key(stage), int(method.steps or 0)
        name = type(method).__name__.lower()
        interval = max(steps // REPORTS, 1)
        patience = np.asarray(PATIENCE, np.int32)
        step, streak = int(progress.step), np.asarray(progress.streak)
        self.shown.stage(name, steps, step)
        chunk, saved = 1, time.monotonic()
        while step < steps and not interrupted.is_set():
            # Chunks end where a report is due, so that reports do not depend on speed.
            due = min((step // interval + 1) * interval, steps)
            stop = min(step + chunk, due)
            if self.watch_every is not None:
                stop = min(stop, (step // self.watch_every + 1) * self.watch_every)
            start = time.monotonic()
            tried = advance(
                self.programs[stage],
                self.program_target,
                key,
                progress,
                np.asarray(stop, np.int32),
                patience,
                np.asarray(step % interval == 0),
            )
            end, found = jax.device_get((tried.step, tried.streak))
            spent = time.monotonic() - start
            self.seconds += spent
            made = int(end) - step
            if made > 1 and np.any((found > 0) & (streak < PATIENCE)):
                # One of these steps is not finite: fewer of them, until it is alone.
                chunk = made - 1 if end < stop else made // 2
                continue
            progress, streak = tried, found
            chunk = _next_chunk(chunk, made, spent)
            step = int(end)
            if step == due:
                self._record(name, step, means(progress), progress)
            if self.watch_every is not None and step % self.watch_every == 0:
                self._look(stage, name, step, progress)
            if np.min(streak) >= PATIENCE:
                break
            if time.monotonic() - saved > self.checkpoint_seconds:
                self._save(stage, progress)
                saved = time.monotonic()
        return progress

    def _look(self, stage: int, name: str, step: int, progress: Progress) -> None:
        """A row of what the user's `watch` says about the sampler as it is now."""
        if self.watch is None:
            return
        made = sum(int(s.steps or 0) for s in self.stages[:stage]) + step
        whole = self._result(stage, progress)
        seen: list[Mapping[str, float]] = []
        for i, target in enumerate(self.targets):
            own = jax.tree.map(lambda a, i=i: a[i], whole) if self.key.shape else whole
            seen.append(self.watch(made, own, target))
        columns = {k: [float(each[k]) for each in seen] for k in seen[0]}
        many = bool(self.key.shape)
        numbers = {k: v if many else v[0] for k, v in columns.items()}
        self._keep({"stage": name, "step": step, **numbers})

    def _record(self, name: str, step: int, means: dict, progress: Progress) -> None:
        numbers = {k: np.asarray(v).tolist() for k, v in means.items()}
        row = {
            "stage": name,
            "step": step,
            **numbers,
            "skipped": np.asarray(progress.skipped).tolist(),
            "seconds": round(self.seconds, 3),
        }
        self._keep(row)
        self.shown.update(step, {k: _mean(v) for k, v in numbers.items()})

    def _keep(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        if self.directory is not None:
            self.directory.append_metrics(row)

    def _result(self, stage: int, progress: Progress) -> Any:
        build = self.stages[stage].result
        if self.key.shape:
            return jax.vmap(lambda s: build(self.target, s))(progress.state)
        return build(self.target, progress.state)

    def _price(self, stage: AbstractTask) -> int:
        """How often one step evaluates the target."""
        stochastic = getattr(self.target, "is_stochastic", False)
        return stage.evaluations * (stage.minibatches if stochastic else 1)

    def _evaluations(self, stage: int, progress: Progress) -> tuple[int, ...]:
        counts = [int(s.steps or 0) * self._price(s) for s in self.stages[:stage]]
        steps = sum(counts) + int(progress.step) * self._price(self.stages[stage])
        look = getattr(progress.state, "look", None)
        looks = 0 if look is None else np.asarray(look.evaluations)
        return tuple(int(seen) + steps for seen in np.atleast_1d(looks))

    def _outcome(
        self, stage: int, progress: Progress, *, finished: bool, stuck: bool
    ) -> Outcome:
        result = self._result(stage, progress)
        made = sum(int(s.steps or 0) for s in self.stages[:stage]) + int(progress.step)
        streaks = tuple(np.atleast_1d(np.asarray(progress.streak)).tolist())
        common: dict[str, Any] = {
            "result": result,
            "rows": self.rows,
            "streaks": streaks,
            "evaluations": self._evaluations(stage, progress),
            "seconds": self.seconds,
        }
        seeds = len(streaks)
        if stuck:
            failure = self._explain(result, made)
            common |= {"statuses": (failure,) * seeds, "failure": failure}
            return Outcome(finished=False, **common)
        if not finished:
            status = f"Stopped by Ctrl-C after {made} of {self.total} steps; "
            status += self._kept()
            common |= {"statuses": (status,) * seeds, "interrupted": True}
            return Outcome(finished=False, **common)
        status = f"Finished {made} steps in {self.seconds:.0f} s."
        skipped = np.atleast_1d(np.asarray(progress.skipped)).tolist()
        statuses = tuple(status + _skipping(count) for count in skipped)
        return Outcome(statuses=statuses, finished=True, **common)

    def _kept(self) -> str:
        """What an interrupted run leaves, and how to go on."""
        if self.directory is None:
            return (
                "what was learnt by then is returned, but only a run with a directory "
                "(out=) can go on."
            )
        return (
            f"what was learnt by then is kept in {self.directory.path}: to go on, "
            "repeat the same with resume=True (--resume)."
        )

    def _explain(self, result: Any, made: int) -> str:
        reason = "look at the density where the draws are, or lower the learning rate"
        if isinstance(result, Sampler) and not self.key.shape:
            key = jax.random.fold_in(self.key, 1)
            reason = blame(key, self.target, result) or reason
        return (
            f"Training stopped after {made} steps: the last {PATIENCE} were not "
            f"finite; {reason}."
        )


def warn_if_interrupted(outcome: Outcome) -> None:
    """Tells the caller of `fit` or `train` that the result is half trained."""
    if outcome.interrupted:
        warnings.warn(outcome.status, UnfinishedWarning, stacklevel=3)


def _skipping(count: int) -> str:
    if count == 0:
        return ""
    if count == 1:
        return " 1 step was not finite and was skipped."
    return f" {count} steps were not finite and were skipped."


def _mean(values: Any) -> float:
    """The mean over the seeds that have a number."""
    finite = np.asarray(values)[np.isfinite(values)]
    return float(finite.mean()) if finite.size else float("nan")


def _next_chunk(chunk: int, made: int, spent: float) -> int:
    """A chunk that takes about CHUNK_SECONDS, growing at most tenfold at a time."""
    rate = made / max(spent, 1e-6)
    return max(1, min(int(rate * CHUNK_SECONDS), 10 * chunk))
