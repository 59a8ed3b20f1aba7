"""Processes that are killed, or asked to end, at any moment; writes that are cut off.

Children are forked from a process that has imported what is large and computed nothing:
none has to start Python anew. Only children touch a name of pushforward: BlackJAX,
which it imports, computes as it is imported, and what has computed cannot be forked.
"""

import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox  # noqa: F401
import jax
import jaxtyping  # noqa: F401
import numpy as np
import optax  # noqa: F401
import safetensors
import safetensors.numpy
import scipy.stats  # noqa: F401

import pushforward as pf

from .tally import Tally


def _score_based(method: Callable) -> Any:
    network = pf.networks.residual(8, 1)
    sizes = {"steps": 4000, "batch_size": 32, "particles": 64}
    return method(network=network, score_warmup=20, score_steps=1, **sizes)


METHODS = {
    "dft": lambda: _score_based(pf.methods.DFT),
    "kl": lambda: _score_based(pf.methods.KL),
    "transport": lambda: pf.methods.Transport(
        network=pf.networks.mixture(width=8), steps=4000, batch_size=32
    ),
}
# What a run leaves when it is done, and nothing else.
LEFT = {
    "config.json",
    "ending.json",
    "metrics.jsonl",
    "sampler.safetensors",
    "state.safetensors",
}


def _fit(method: str, out: Path, cache: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    target = pf.targets.get("squiggle")
    options = {"resume": True, "progress": False, "checkpoint_seconds": 0.0}
    pf.fit(jax.random.key(0), target, METHODS[method](), out=out, **options)


def _saves(path: Path) -> None:
    sampler = pf.Sampler.from_network(
        pf.networks.MLP(256, 256, 512, 3, key=jax.random.key(0))
    )
    while True:
        sampler.save(path)


def _streams(path: Path) -> None:
    sampler = pf.Sampler.from_network(pf.networks.AffineMap(4))
    while True:
        sampler.stream(jax.random.key(0), 2_000_000, path)


def forked(function: Callable, *arguments) -> int:
    """The id of a child that calls the function and ends."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        # Their complaints are not those of the campaign.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        function(*arguments)
        status = 0
    finally:
        os._exit(status)


def ended(pid: int, seconds: float) -> int | None:
    """How a child ended, negative for a signal; None where it still runs."""
    until = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            return None
        time.sleep(0.005)


def _different(whole: Path, other: Path) -> str:
    """What differs between two finished runs; nothing where they are the same."""
    if (names := {p.name for p in other.iterdir()}) != LEFT:
        return f"it left {sorted(names ^ LEFT)}"
    for name in ("state.safetensors", "sampler.safetensors"):
        ours, theirs = (safetensors.numpy.load_file(d / name) for d in (whole, other))
        if ours.keys() != theirs.keys():
            return f"{name} has other arrays"
        for leaf in ours:
            if not np.array_equal(ours[leaf], theirs[leaf]):
                return f"{leaf} in {name} differs"
    rows = [len((d / "metrics.jsonl").read_text().splitlines()) for d in (whole, other)]
    return "" if rows[0] == rows[1] else f"{rows[1]} rows of metrics, not {rows[0]}"


def _until_done(
    tally: Tally, dice: random.Random, count: int, numbers: tuple[int, ...]
) -> None:
    """Runs that are interrupted again and again, until so many interruptions."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cache, made, run = folder / "cache", 0, 0
        spans = {}
        for method in METHODS:
            pid = forked(_fit, method, folder / method, cache)
            assert ended(pid, 600.0) == 0, f"{method} does not run"
            begun = time.monotonic()
            pid = forked(_fit, method, folder / f"again-{method}", cache)
            assert ended(pid, 600.0) == 0
            spans[method] = time.monotonic() - begun
            tally.numbers[f"seconds of a run of {method} that nobody ends"] = spans[
                method
            ]
        while made < count:
            method = list(METHODS)[run % len(METHODS)]
            out = folder / f"run-{run}"
            run += 1
            inner = 0
            # Some of them are ended once, some of them many times.
            for _ in range(min(dice.choice((1, 3, 6)), count - made)):
                pid = forked(_fit, method, out, cache)
                if (
                    dice.random() < 0.7
                    and (state := out / "state.safetensors").exists()
                ):
                    # In the midst of its steps, just after it wrote its state.
                    before = state.stat().st_mtime_ns
                    until = time.monotonic() + 60
                    while (
                        state.stat().st_mtime_ns == before
                        and ended_not(pid)
                        and time.monotonic() < until
                    ):
                        time.sleep(0.002)
                    wait = dice.uniform(0.0, 0.4 * spans[method])
                else:
                    wait = dice.uniform(0.0, 1.2 * spans[method])
                status = ended(pid, wait)
                if status is not None:
                    break
                number = dice.choice(numbers)
                os.kill(pid, number)
                made += 1
                inner += 1
                status = ended(pid, 60.0)
                kind = f"{signal.Signals(number).name} during fit"
                # A Ctrl-C that comes in time is no error: what there is is returned.
                fine = status in (-number, 0) or (
                    number == signal.SIGINT and status in (0, 1)
                )
                tally.expect(kind, fine, f"{method} ended with {status}")
            pid = forked(_fit, method, out, cache)
            status = ended(pid, 600.0)
            kind = "runs that were ended and went on"
            if status != 0:
                tally.failed(kind, f"{method}: status {status} after {inner}")
                continue
            different = _different(folder / method, out)
            tally.expect(kind, not different, f"{method}: {different}")


def ended_not(pid: int) -> bool:
    """Whether a child still runs (and is not collected)."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def kills(seed: int, count: int) -> Tally:
    """SIGKILL: nothing of the process's own comes after it."""
    tally = Tally()
    _until_done(tally, random.Random(seed), count, (signal.SIGKILL,))
    return tally


def signals(seed: int, count: int) -> Tally:
    """Those that a process hears: it makes a checkpoint, and ends."""
    tally = Tally()
    heard = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    _until_done(tally, random.Random(seed), count, heard)
    return tally


def writes(seed: int, count: int) -> Tally:
    """Kills in the midst of `save` and `stream`, half of them each."""
    tally, dice = Tally(), random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for i in range(count):
            save = i % 2 == 0
            path = folder / ("a.pf" if save else "a.npy")
            pid = forked(_saves if save else _streams, path)
            until = time.monotonic() + 120
            while not any(folder.iterdir()) and time.monotonic() < until:
                time.sleep(0.01)
            assert ended(pid, dice.uniform(0.0, 2.0)) is None
            os.kill(pid, signal.SIGKILL)
            ended(pid, 60.0)
            kind = "kills during save" if save else "kills during stream"
            # In a child too: what computes cannot be forked any more.
            said = folder.parent / f"{folder.name}.said"
            status = ended(forked(_reporting, said, _whole, path, save), 120.0)
            tally.expect(kind, status == 0, said.read_text() or f"status {status}")
            said.unlink()
            path.unlink(missing_ok=True)
    return tally


def _whole(path: Path, save: bool) -> None:
    """What was cut off is all of it or nothing; the next write leaves no other file."""
    if path.exists():
        whole = pf.load(path) if save else np.load(path, mmap_mode="r")
        assert isinstance(whole, pf.Sampler) or whole.shape == (2_000_000, 4)
    sampler = pf.Sampler.from_network(pf.networks.AffineMap(4))
    if save:
        sampler.save(path)
    else:
        sampler.stream(jax.random.key(0), 10, path)
    left = [p.name for p in path.parent.iterdir()]
    assert left == [path.name], f"left {left}"


def _reporting(said: Path, function: Callable, *arguments) -> None:
    """Calls a function of a child, and writes what it raises to a file."""
    said.write_text("")
    try:
        function(*arguments)
    except BaseException as error:
        said.write_text(f"{type(error).__name__}: {error}")
        raise
