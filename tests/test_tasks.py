"""The engine on tasks that train no sampler, and network files."""

import dataclasses
import json
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pushforward as pf
from pushforward.errors import FileError, UsageError
from pushforward.methods.base import AbstractTask
from pushforward.networks import MLP
from pushforward.sampler import save_network


class Mean(AbstractTask):
    """Learns the mean of the data, computing as suits the device."""

    name: ClassVar[str] = "mean"
    steps: int = 3
    compute: str | None = None

    def resolve(self, target):
        return dataclasses.replace(self, compute=self.compute or "float32")

    def init(self, key, target, steps, previous=None):
        return jnp.zeros((), self.compute)

    def step(self, key, target, state):
        state = (state + target.mean().astype(state.dtype)) / 2
        return state, {"mean": state}

    def result(self, target, state):
        return state


DATA = np.arange(4, dtype=np.float32)


def test_a_run_goes_on_as_it_was_begun_on_another_device(tmp_path):
    options = {"out": tmp_path / "run", "progress": False}
    key = jax.random.key(0)
    # As a device would choose that computes in bfloat16.
    begun = pf.train(key, DATA, Mean(compute="bfloat16"), **options)
    again = pf.train(key, DATA, Mean(), resume=True, **options)
    assert again.result.dtype == begun.result.dtype == jnp.bfloat16
    assert again.config == begun.config
    with pytest.raises(FileError, match="compute='bfloat16' and cannot"):
        pf.train(key, DATA, Mean(compute="float32"), resume=True, **options)


def halved(state, datum):
    return (state + datum) / 2


def decayed(state, datum):
    return 0.9 * state + 0.1 * datum


class Own(Mean):
    """The same by a rule of the caller's own, which no config can hold."""

    rule: Callable = halved

    def step(self, key, target, state):
        state = self.rule(state, target.mean().astype(state.dtype))
        return state, {"mean": state}


def test_the_callers_own_parts_are_named_and_taken_from_the_caller(tmp_path):
    options = {"out": tmp_path / "run", "progress": False}
    key = jax.random.key(0)
    part = pf.train(key, DATA, Own(steps=2), **options)
    assert part.config["method"]["rule"] == {"own": f"{__name__}.halved"}
    rest = pf.train(key, DATA, Own(steps=2), steps=5, resume=True, **options)
    whole = pf.train(key, DATA, Own(steps=5), progress=False)
    assert rest.result == whole.result and rest.config["steps"] == 5
    other = Own(steps=2, rule=decayed)
    sentence = rf"rule=your own {__name__}.halved and cannot go on with your own"
    with pytest.raises(FileError, match=sentence):
        pf.train(key, DATA, other, resume=True, **options)


def test_a_run_does_not_go_on_with_other_data(tmp_path):
    options = {"out": tmp_path / "run", "progress": False}
    key = jax.random.key(0)
    pf.train(key, DATA, Mean(), **options)
    for other in (DATA + 1, DATA.reshape(2, 2), DATA.astype(np.float16)):
        with pytest.raises(FileError, match="started with another data set"):
            pf.train(key, other, Mean(), resume=True, **options)
    # A run of an earlier version, which did not say.
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text())
    del config["target"]["checksum"]
    del config["checksum"]
    path.write_text(json.dumps(config))
    assert pf.train(key, DATA, Mean(), resume=True, **options).finished


def test_bad_arguments(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(UsageError, match="steps must be a whole number"):
        pf.train(jax.random.key(0), DATA, Mean(), steps=0, out=out)
    calling = {"callback": lambda event: None, "callback_every": 0}
    with pytest.raises(UsageError, match="callback_every must be a whole number"):
        pf.train(jax.random.key(0), DATA, Mean(), out=out, **calling)
    assert not out.exists()


def test_a_network_file_is_no_sampler_file(tmp_path):
    path = save_network(tmp_path / "n.pf", MLP(2, 1, 4, 1, key=jax.random.key(0)))
    with pytest.raises(FileError, match="not a pushforward sampler file"):
        pf.load(path)
