"""The paper's third experiment: a one-step sampler for an energy model of digits.

Stages, each a cell of the result file and a run that can be resumed: a classifier,
which judges images; an energy model; annealed Langevin dynamics on it; and generators
distilled from it. A stage hands on its final weights only, in files beside the result
file: the next may be run by another call, on another day.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import pushforward as pf
from pushforward.methods import AbstractMethod
from pushforward.networks import AbstractNetwork
from reproduction.common.cost import flops
from reproduction.common.results import Results, ending, prepare, rounded
from reproduction.common.settings import choose_groups
from reproduction.mnist import settings
from reproduction.mnist.artifacts import NAME, SHOWN, Desk
from reproduction.mnist.data import mnist
from reproduction.mnist.images import pack
from reproduction.mnist.metrics import energies, histogram
from reproduction.mnist.settings import Group, Langevin, Schedule, Tuning
from reproduction.mnist.tasks import Classify, Energy

Say = Callable[[str], None]


def reproduce(
    out: Path,
    scale: str = "cpu",
    *,
    only: Iterable[str] = (),
    merge: Iterable[Path] = (),
    seed: int = 0,
    remark: str = "",
    say: Say = print,
) -> Results:
    """Runs the stages that are missing; finished ones are not run again.

    Args:
        out: the directory of `mnist.json`, of the weights that stages hand on, and of
            the runs, which can be resumed.
        scale: `smoke`, `cpu` or `full`.
        only: names of stages to run, such as `classifier`, `energy`, `langevin`,
            `dft_l2`, or of one cell, such as `langevin|200 steps`; none means all.
        merge: result files whose cells to adopt before running.
        seed: random seed.
        remark: kept with every cell that is made, and shown on the page.
        say: told what happens.
    """
    chosen = settings.scale(scale)
    asked = choose_groups(only, settings.groups(chosen))
    results = prepare(out, NAME, scale, seed, merge, say, remark=remark)
    todo = [group for group in asked if group.name not in results.cells]
    if not todo:
        return results
    data = mnist(miniature_images=chosen.miniature_images)
    bench = Bench(Desk(chosen, results, seed, data))
    for i, group in enumerate(todo, start=1):
        start = time.perf_counter()
        results.add(group.name, bench.run(group))
        spent = time.perf_counter() - start
        say(f"[{i}/{len(todo)}] {group.label}: {spent:.0f} s")
    return results


class Bench:
    """Runs the stages; the desk holds what they share."""

    def __init__(self, desk: Desk):
        self.desk, self.scale = desk, desk.scale

    def run(self, group: Group) -> dict[str, Any]:
        """Runs a stage; returns its cell."""
        match group.what:
            case Classify():
                return self._classifier(group, group.what)
            case Energy():
                return self._energy(group, group.what)
            case Tuning():
                return self._schedule(group, group.what)
            case Langevin():
                return self._langevin(group, group.what.steps)
            case AbstractMethod():
                return self._generator(group, group.what)

    def _learn(self, group: Group, task: Classify | Energy, number: int):
        """Trains on the images; returns what came of it and its weights' checksum."""
        trained = pf.train(
            jax.random.fold_in(self.desk.key, number),
            self.desk.train,
            task,
            out=self.desk.run_directory(group),
            resume=True,
        )
        if trained.status is pf.Status.INTERRUPTED:
            raise KeyboardInterrupt
        digest = self.desk.keep(group.method, trained.result)
        record = self.desk.records(group, steps=task.steps, seconds=trained.seconds)
        return trained, digest, record

    def _classifier(self, group: Group, task: Classify) -> dict[str, Any]:
        """The classifier, and what real images score: the floor of every figure."""
        _, digest, record = self._learn(group, task, 1)
        desk = self.desk
        train = desk.records(Group("train", "images", task))
        test = desk.records(Group("test", "images", task))
        floor, _ = desk.looks(train, desk.train_images[: self.scale.judged])
        # The FID of the test images to themselves says nothing.
        (_, *known), _ = desk.looks(test, desk.test)
        few = desk.test[: self.scale.neighbours]
        _, distances = desk.nearest(few)
        return {
            "records": [
                record("accuracy", desk.eye.accuracy, n=len(desk.test)),
                *floor,
                *known,
                test("nearest", np.median(distances), n=len(few)),
            ],
            "sha256": digest,
            "source": desk.source,
            "images": pack(desk.test[:SHOWN]),
        }

    def _energy(self, group: Group, task: Energy) -> dict[str, Any]:
        trained, digest, record = self._learn(group, task, 2)
        test = self.desk.records(Group("test", "images", task))
        network = self.desk.network("energy")
        losses = [row["loss"] for row in trained.history.rows if "loss" in row]
        # The last twentieth: one report alone is noisy.
        last = losses[-max(len(losses) // 20, 1) :]
        values = energies(network, self.desk.test, settings.SIGMA_MIN)
        return {
            "records": [
                record("loss", np.mean(last), n=task.batch_size),
                record("gflop", score_gflop(network)),
                test("energy", np.median(values), n=len(values)),
            ],
            "loss": [rounded(value, 4) for value in losses],
            "energies": histogram(values),
            "sha256": digest,
        }

    def _schedule(self, group: Group, tuning: Tuning) -> dict[str, Any]:
        """Tries schedules of Langevin; the generators have no part in it."""
        desk, begun = self.desk, time.perf_counter()
        target, key = desk.target(), jax.random.fold_in(desk.key, 10_000)

        def fid(schedule: Schedule) -> float:
            # The same noise for all of them.
            images = langevin(key, target, tuning.images, tuning.steps, schedule)
            return desk.eye.fid(np.asarray(images))

        found = {schedule: fid(schedule) for schedule in tuning.tried}
        # Chains that ran away come last.
        finite = {s: f if math.isfinite(f) else math.inf for s, f in found.items()}
        best = min(finite, key=finite.__getitem__)
        spent = time.perf_counter() - begun
        record = desk.records(group, steps=tuning.steps, seconds=spent)
        return {
            "records": [record("fid_tuning", found[best], n=tuning.images)],
            "tried": [
                dataclasses.asdict(s) | {"fid": rounded(f)} for s, f in found.items()
            ],
            "chosen": dataclasses.asdict(best),
        }

    def _langevin(self, group: Group, steps: int) -> dict[str, Any]:
        """Annealed Langevin chains of so many steps, and how long a batch takes."""
        desk, scale = self.desk, self.scale
        target, network = desk.target(), desk.network("energy")
        schedule = desk.schedule
        key = jax.random.fold_in(desk.key, 10_000 + steps)
        size = min(scale.chains, scale.judged)
        begun = time.perf_counter()
        parts = [
            np.asarray(
                langevin(jax.random.fold_in(key, i), target, size, steps, schedule)
            )
            for i in range(-(-scale.judged // size))
        ]
        spent = time.perf_counter() - begun
        record = desk.records(group, steps=steps, seconds=spent)
        cell = desk.judged(record, np.concatenate(parts)[: scale.judged])
        batch, spread = timed(
            lambda key: langevin(key, target, scale.batch, steps, schedule)
        )
        cell["records"] += [
            record("seconds_batch", batch, sd=spread, n=scale.batch),
            # One more: the closing step, which denoises.
            record("gflop", (steps + 1) * score_gflop(network)),
        ]
        return cell

    def _distil(self, group: Group, method: AbstractMethod) -> pf.Fit:
        """Trains a one-step sampler, judged on the way; goes on where it stopped."""
        desk, scale = self.desk, self.scale

        def evaluate(event: pf.Event) -> dict[str, int | float]:
            # Fresh draws at every evaluation.
            fresh = jax.random.fold_in(self._judge_key, event.step)
            images = np.asarray(event.sampler.sample(fresh, scale.judged))
            return {"made": event.step, "fid": desk.eye.fid(images)}

        fit = pf.fit(
            jax.random.fold_in(desk.key, 4),
            desk.target(),
            method,
            out=desk.run_directory(group),
            resume=True,
            callback=evaluate,
            callback_every=max(method.steps // scale.evaluations, 1),
        )
        if fit.status is pf.Status.INTERRUPTED:
            raise KeyboardInterrupt
        return fit

    @property
    def _judge_key(self) -> PRNGKeyArray:
        return jax.random.fold_in(self.desk.key, 3)

    def _generator(self, group: Group, method: AbstractMethod) -> dict[str, Any]:
        """A one-step sampler, judged at its end, and timed beside Langevin."""
        desk, scale, schedule = self.desk, self.scale, self.desk.schedule
        fit = self._distil(group, method)
        # What is judged is what the file holds, on draws used for nothing else.
        kept = desk.keep_sampler(group, fit.sampler)
        images = np.asarray(kept.sample(self._judge_key, scale.judged))
        record = desk.records(group, steps=method.steps, seconds=fit.seconds)
        cell = desk.judged(record, images)
        # Compiled with its weights, as by one who draws batch after batch.
        draw = jax.jit(lambda key: fit.sampler.sample(key, scale.batch))
        mine, spread = timed(draw)
        # Beside it, in the same run, the chains that it is meant to replace.
        target = desk.target()
        theirs, _ = timed(
            lambda key: langevin(key, target, scale.batch, scale.raced, schedule)
        )
        rows = [row for row in fit.history.rows if "fid" in row]
        cell["records"] += [
            record("seconds_batch", mine, sd=spread, n=scale.batch),
            record("gflop", gflop(fit.sampler.network)),
            {**record("speedup", theirs / mine, n=scale.batch), "beside": scale.raced},
        ]
        cell["curve"] = [[int(row["made"]), rounded(row["fid"])] for row in rows]
        cell["training"], cell["config"] = [ending(fit)], fit.config["method"]
        return cell


# Where chains start: the middle of the range of a pixel.
_CENTRE = 0.5
# A call is timed three times, and again while that takes less than a second in all; but
# not again once so many seconds are spent.
_ENOUGH_SECONDS = 20.0


def langevin(
    key: PRNGKeyArray,
    target: pf.NoiseConditionalTarget,
    n: int,
    steps: int,
    schedule: Schedule,
) -> Float[Array, "n d"]:
    """The ends of `n` annealed Langevin chains: images."""
    start_key, run_key = jax.random.split(key)
    noise = jax.random.normal(start_key, (n, target.dim))
    sigmas = jax.device_put(schedule.levels(steps).astype(np.float32))
    return pf.mcmc.annealed_langevin(
        run_key,
        target,
        _CENTRE + settings.SIGMA_MAX * noise,
        sigmas,
        step_ratio=schedule.ratio,
    ).positions


def timed(call: Callable[[PRNGKeyArray], Any]) -> tuple[float, float]:
    """The median time of a call that has been compiled beforehand, and its sd."""
    jax.block_until_ready(call(jax.random.key(0)))
    spent: list[float] = []
    while sum(spent) < (_ENOUGH_SECONDS if len(spent) < 3 else 1.0):
        key = jax.random.key(1 + len(spent))
        begun = time.perf_counter()
        jax.block_until_ready(call(key))
        spent.append(time.perf_counter() - begun)
    spread = float(np.std(spent, ddof=1)) if len(spent) > 1 else 0.0
    return float(np.median(spent)), spread


def gflop(network: AbstractNetwork) -> float:
    """Thousand million operations of a pass."""
    return 1e-9 * flops(network, jnp.zeros(network.in_size, jnp.float32))


def score_gflop(network: AbstractNetwork) -> float:
    """The same for the gradient of a network's one output by its input."""
    point = jnp.zeros(network.in_size, jnp.float32)
    return 1e-9 * flops(jax.grad(lambda x: network(x)[0]), point)
