"""A run killed at random times and resumed ends with the bits of one that was not."""

import os
import random
import subprocess
import sys
import time

import numpy as np
import pytest

from pushforward import _io
from pushforward.sampler import SAMPLER
from pushforward.training.rundir import STATE_FORMAT

pytestmark = pytest.mark.once

CHILD = """
import sys, jax, pushforward as pf
from pushforward import methods, networks
tiny = dict(
    network=networks.residual(8, 1), batch_size=32, particles=64, score_steps=1
)
method = {
    "dft": methods.DFT(steps=5000, score_warmup=20, **tiny),
    "kl": methods.KL(steps=5000, score_warmup=20, **tiny),
    "transport": methods.Transport(
        network=networks.mixture(width=8), steps=5000, batch_size=32
    ),
}[sys.argv[1]]
fit = pf.fit(
    jax.random.key(0), pf.targets.get("squiggle"), method, out=sys.argv[2],
    resume=True, progress=False, checkpoint_seconds=0.0,
)
print(fit)
"""

# Ten in all.
KILLS = {"dft": 3, "kl": 3, "transport": 4}


def start(method, out, cache):
    # The killed children only read the compiled programs that the first one wrote.
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(cache)}
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    command = [sys.executable, "-c", CHILD, method, str(out)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env=environment, **pipes)


def arrays(out, name, kind):
    return _io.read(out / name, {"sampler": SAMPLER, "state": STATE_FORMAT}[kind])[1]


@pytest.mark.parametrize("method", list(KILLS))
def test_killed_runs_end_bit_identical(method, tmp_path):
    cache, whole, killed = tmp_path / "cache", tmp_path / "whole", tmp_path / "killed"
    child = start(method, whole, cache)
    said, _ = child.communicate(timeout=400)
    assert child.returncode == 0, said
    dice = random.Random(method)
    kills, seen = 0, set()
    while kills < KILLS[method]:
        child = start(method, killed, cache)
        if kills == 0:
            # Once at any time at all, perhaps before there is anything to resume.
            time.sleep(dice.uniform(0.5, 3.0))
        else:
            state = killed / "state.safetensors"
            begun = state.stat().st_mtime_ns if state.exists() else 0
            while child.poll() is None and (
                not state.exists() or state.stat().st_mtime_ns == begun
            ):
                time.sleep(0.01)
            time.sleep(dice.uniform(0.0, 0.25))
        assert child.poll() is None, "the run ended before it could be killed"
        child.kill()
        child.communicate()
        kills += 1
        if (killed / "state.safetensors").exists():
            header, _ = _io.read(killed / "state.safetensors", STATE_FORMAT)
            seen.add((header["stage"], header["step"]))
    child = start(method, killed, cache)
    said, _ = child.communicate(timeout=400)
    assert child.returncode == 0, said
    # The kills were in the midst of training, not all at its start.
    assert len(seen) >= 2
    for name, kind in (
        ("state.safetensors", "state"),
        ("sampler.safetensors", "sampler"),
    ):
        ours, theirs = arrays(whole, name, kind), arrays(killed, name, kind)
        assert ours.keys() == theirs.keys()
        for leaf in ours:
            np.testing.assert_array_equal(ours[leaf], theirs[leaf], err_msg=leaf)
    lines = [(d / "metrics.jsonl").read_text().splitlines() for d in (whole, killed)]
    assert len(lines[0]) == len(lines[1])
