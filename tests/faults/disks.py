"""Disks that fill up, fail or vanish at any moment: a sentence, and nothing is lost."""

import errno
import os
import random
import shutil
import tempfile
import warnings
from pathlib import Path
from unittest import mock

import jax
import numpy as np

import pushforward as pf
from pushforward import methods, networks
from pushforward.errors import PushforwardError

from .tally import Tally

KEY = jax.random.key(3)
METHOD = methods.Gaussian(steps=20, batch_size=8, particles=16)
ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT, errno.EACCES)
CALLS = ("fsync", "replace", "open")


class Failing:
    """Makes one call of the system fail, after so many that work."""

    def __init__(self, name: str, after: int, number: int):
        self.real, self.after, self.number = getattr(os, name), after, number

    def __call__(self, *arguments, **options):
        self.after -= 1
        if self.after < 0:
            raise OSError(self.number, os.strerror(self.number))
        return self.real(*arguments, **options)


def _names(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def _fit(out: Path, **options) -> pf.Fit:
    target = pf.targets.get("gaussian")
    options = {"resume": True, "progress": False, "checkpoint_seconds": 0.0, **options}
    return pf.fit(KEY, target, METHOD, out=out, **options)


def _same(a: pf.Sampler, b: pf.Sampler) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def campaign(seed: int, count: int) -> Tally:
    """Fits, saves and streams, each under a disk of its own."""
    tally, dice = Tally(), random.Random(seed)
    sampler = pf.Sampler.from_network(networks.AffineMap(2))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = _fit(folder / "whole").sampler
        for i in range(count):
            number, call = dice.choice(ERRORS), dice.choice(CALLS)
            failing = Failing(call, dice.randrange(8), number)
            out = folder / f"run-{i}"
            what = f"{os.strerror(number)} in {call}"
            with (
                tally.guarded("a disk fails during fit", PushforwardError, seconds=60),
                mock.patch.object(os, call, failing),
            ):
                _fit(out)
            with tally.guarded("a run goes on after that", seconds=60):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    assert _same(whole, _fit(out).sampler), what
                left = _names(out)
                assert not any(n.endswith(".part") for n in left), f"{what}: {left}"
            for path in (folder / "a.pf", folder / "a.npz", folder / "a.csv"):
                path.write_bytes(b"precious")
                before, bytes_before = _names(folder), path.read_bytes()
                failing = Failing(call, 0, number)
                verb = "save" if path.suffix == ".pf" else "stream"
                kind = f"a disk fails during {verb}"
                with tally.guarded(kind, seconds=60):
                    try:
                        with mock.patch.object(os, call, failing):
                            _write(sampler, path)
                    except PushforwardError:
                        assert path.read_bytes() == bytes_before, what
                    assert _names(folder) == before, what
            out = folder / f"gone-{i}"
            with tally.guarded(
                "a run directory vanishes", PushforwardError, seconds=60
            ):
                _fit(
                    out,
                    callback=lambda event, out=out: shutil.rmtree(out),
                    callback_every=dice.randrange(1, 20),
                )
    return tally


def _write(sampler: pf.Sampler, path: Path) -> None:
    if path.suffix == ".pf":
        sampler.save(path)
    else:
        sampler.stream(KEY, 100, path)
