"""A method of several stages: what is handed on, left out, interrupted, frozen."""

import dataclasses
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pushforward as pf
from pushforward import _io, methods
from pushforward.errors import FileError, UnfinishedWarning
from pushforward.training import runner
from pushforward.training.rundir import STATE_FORMAT
from wrapped import GAUSSIAN, AbstractWrapper

NORMAL = pf.Target(lambda x: -0.5 * jnp.sum((x - 1.0) ** 2), dim=2)
FIRST, SECOND = 30, 20


class Second(AbstractWrapper):
    """Goes on with the network of the stage before, by the steps of `inner`."""

    name: str = "second"

    def init(self, key, target, steps, previous=None):
        clock = type(previous.clock).start(steps)
        return eqx.tree_at(lambda s: s.clock, previous, clock)

    def step(self, key, target, state):
        state, info = self.inner.step(key, target, state)
        return state, {"second_loss": info["loss"]}


class First(AbstractWrapper):
    """A Gaussian fit that leaves nothing to do where its mean is below `enough`.

    If it is `fragile`, seeds whose first particle lies to the right break.
    """

    name: str = "first"
    enough: float = -jnp.inf
    fragile: bool = False

    def step(self, key, target, state):
        state, info = self.inner.step(key, target, state)
        if self.fragile:
            broken = state.initialisation.particles[0, 0] > 0
            poison = jnp.where(broken, jnp.nan, 0.0).astype(jnp.float32)
            mean = state.network.mean + poison
            state = eqx.tree_at(lambda s: s.network.mean, state, mean)
        return state, info

    def settled(self, state):
        return state.averaged.mean[0] < self.enough


class TwoStages(methods.AbstractMethod):
    """Two Gaussian fits, one after another."""

    name: ClassVar[str] = "two_stages"
    network: None = None
    training: methods.TrainConfig = methods.TrainConfig(FIRST, 16, particles=64)
    enough: float = -float("inf")
    fragile: bool = False

    @property
    def evaluations(self):
        return 0

    def resolve(self, target):
        return self

    def stages(self):
        inner = GAUSSIAN.with_sizes(steps=self.steps)
        first = First(inner, enough=self.enough, fragile=self.fragile)
        return first, Second(GAUSSIAN.with_sizes(steps=SECOND))

    # The engine runs the stages, and never the method itself: each of these would fail.
    def init(self, key, target, steps, previous=None):
        raise NotImplementedError

    def step(self, key, target, state):
        raise NotImplementedError

    def sampler(self, target, state):
        raise NotImplementedError


TWO = TwoStages()
KEY = jax.random.key(0)


def stages(fitted):
    return list(dict.fromkeys(fitted.history["stage"].tolist()))


def state(out):
    return _io.read(out / "state.safetensors", STATE_FORMAT)


def assert_same_bits(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


def test_one_stage_after_another(tmp_path):
    fit = pf.fit(KEY, NORMAL, TWO, out=tmp_path / "run", progress=False)
    assert stages(fit) == ["first", "second"]
    assert fit.message.startswith(f"Finished {FIRST + SECOND} steps")
    assert fit.steps == fit.planned == fit.history.steps == FIRST + SECOND
    alone = pf.fit(KEY, NORMAL, TWO.stages()[0], progress=False)
    assert fit.evaluations - alone.evaluations == SECOND * 16
    assert pf.load(tmp_path / "run").dim == 2


def test_a_settled_stage_leaves_the_others_out(tmp_path):
    out = tmp_path / "run"
    settled = TwoStages(enough=float("inf"))
    fit = pf.fit(KEY, NORMAL, settled, out=out, progress=False)
    assert stages(fit) == ["first"] and fit.finished
    assert fit.message.startswith(f"Finished after {FIRST} of at most")
    again = pf.fit(KEY, NORMAL, settled, out=out, resume=True, progress=False)
    assert again.finished and again.evaluations == fit.evaluations
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    with pytest.raises(FileError, match="several stages and the first is done"):
        pf.fit(KEY, NORMAL, settled, steps=400, out=out, resume=True)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


def test_many_seeds_go_on_if_one_has_something_to_do():
    far = pf.Target(lambda x: -0.5 * jnp.sum((x - 9.0) ** 2), dim=2)
    keys = jax.random.split(KEY, 2)
    # Whitened, both means are near 0: they differ by seed and target.
    near = pf.fit_many(keys, [NORMAL, far], TWO, progress=False)
    middle = float(np.mean([f.sampler.network.mean[0] for f in near]))
    both = pf.fit_many(keys, [NORMAL, far], TwoStages(enough=middle), progress=False)
    assert all(stages(f) == ["first", "second"] for f in both)


def test_stopped_wherever_it_is_it_ends_with_the_same_bits(tmp_path, monkeypatch):
    """Ctrl-C again and again, in both stages and at their ends."""
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    at_once = pf.fit(KEY, NORMAL, TWO, out=whole, progress=False)
    advance, calls, seen = runner.advance, [], set()

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) % 2 == 0:
            signal.raise_signal(signal.SIGINT)
        return advance(*arguments)

    monkeypatch.setattr(runner, "advance", interrupted)
    for _ in range(1000):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnfinishedWarning)
            part = pf.fit(KEY, NORMAL, TWO, out=pieces, resume=True, progress=False)
        header, arrays = state(pieces)
        seen.add(header["stage"])
        if part.finished:
            break
    assert part.finished and seen == {0, 1}
    assert_same_bits(arrays, state(whole)[1])
    assert part.steps == at_once.steps and part.evaluations == at_once.evaluations


def test_a_callback_counts_the_steps_of_all_stages_and_stops_the_second():
    seen = []

    def stop(event):
        seen.append((event.step, event.steps))
        return event.step == 40

    fit = pf.fit(KEY, NORMAL, TWO, progress=False, callback=stop, callback_every=20)
    assert seen == [(20, 50), (40, 50)]
    assert fit.status is pf.Status.STOPPED and fit.steps == 40
    assert fit.message.startswith("The callback stopped the training after 40 of 50")
    # Stopped in the first stage, it does not begin the second.
    early = pf.fit(
        KEY, NORMAL, TWO, progress=False, callback=lambda e: True, callback_every=10
    )
    assert early.steps == 10 and stages(early) == ["first"]


def test_a_seed_that_breaks_in_the_first_stage_stays_frozen():
    """It says so at the end, and does not keep the others from going on."""
    keys = jax.random.split(jax.random.key(5), 4)
    long = TwoStages(fragile=True).with_sizes(steps=150)
    for method, expected in (
        (long, ["first", "second"]),
        # Those that are frozen have nothing to do either.
        (dataclasses.replace(long, enough=float("inf")), ["first"]),
    ):
        fits = pf.fit_many(keys, NORMAL, method, progress=False)
        frozen = [f for f in fits if f.status is pf.Status.FROZEN]
        alive = [f for f in fits if f.finished]
        assert frozen and alive and len(frozen) + len(alive) == len(keys)
        assert all(f.steps == 100 for f in frozen)
        assert all(stages(f) == expected for f in fits)
        for fitted in fits:
            assert np.isfinite(fitted.sampler.sample(jax.random.key(0), 100)).all()


CHILD = """
import sys, time
sys.path.insert(0, sys.argv[2])
from test_stages import KEY, NORMAL, TwoStages, pf
# Slow steps, so that there is time to kill it.
slow = lambda event: time.sleep(0.02)
fit = pf.fit(
    KEY, NORMAL, TwoStages(), out=sys.argv[1], resume=True, progress=False,
    checkpoint_seconds=0.0, callback=slow, callback_every=1,
)
print(fit)
"""


@pytest.mark.once
def test_killed_in_the_second_stage_it_ends_with_the_same_bits(tmp_path):
    # In one process settings differ from those of a child: all three are children.
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"

    def start(out):
        words = [sys.executable, "-c", CHILD, str(out), str(Path(__file__).parent)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(words, env=environment, **pipes)

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    child = start(whole)
    said, _ = child.communicate(timeout=200)
    assert child.returncode == 0, said
    child = start(killed)
    file = killed / "state.safetensors"
    while child.poll() is None and not (file.exists() and state(killed)[0]["stage"]):
        time.sleep(0.005)
    time.sleep(random.Random(0).uniform(0.0, 0.1))
    assert child.poll() is None, "the run ended before it could be killed"
    child.kill()
    child.communicate()
    assert state(killed)[0]["stage"] == 1
    child = start(killed)
    said, _ = child.communicate(timeout=200)
    assert child.returncode == 0, said
    assert_same_bits(state(whole)[1], state(killed)[1])
