"""Files: what is refused, and that reading one runs nothing."""

import json
import os
import pickle

import jax
import numpy as np
import pytest
import safetensors.numpy

import pushforward as pf
from pushforward.errors import FileError, UsageError
from pushforward.networks import AffineMap
from pushforward.sampler import Sampler, read_safetensors
from pushforward.targets.coordinates import Whitening
from pushforward.targets.structure import Structure


def make_sampler(example=None):
    structure = Structure.vector(2) if example is None else Structure.of(example)
    dim = structure.size
    zero = jax.numpy.zeros(())
    return Sampler(AffineMap(dim), Whitening.identity(dim), zero, structure)


def rewritten(path, change):
    """The file with its JSON header changed."""
    header, arrays = read_safetensors(path, kind="sampler")
    change(header)
    data = safetensors.numpy.save(arrays, {"pushforward": json.dumps(header)})
    path.write_bytes(data)
    return path


class Bomb:
    """Unpickling it makes a directory."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_file_made_to_run_code_runs_none(tmp_path):
    sign = tmp_path / "ran"
    bomb = tmp_path / "bomb.pf"
    bomb.write_bytes(pickle.dumps(Bomb(sign)))
    with pytest.raises(FileError, match="truncated or is not a pushforward file"):
        pf.load(bomb)
    # Through the names in our own format, too.
    for description in (
        {"kind": "os.system", "command": f"mkdir {sign}"},
        {"kind": "build", "description": {"kind": "MLP"}},
        {"kind": "__import__", "name": "antigravity"},
        {"kind": ["AffineMap"], "in_size": 2},
        "AffineMap",
    ):
        path = make_sampler().save(tmp_path / "a.pf")
        rewritten(path, lambda h, d=description: h.update(network=d))
        with pytest.raises(FileError):
            pf.load(path)
    evil = {"name": "", "shape": [2], "constraint": f"__import__('os').mkdir('{sign}')"}
    path = make_sampler().save(tmp_path / "a.pf")
    rewritten(path, lambda h: h["structure"].update(leaves=[evil]))
    with pytest.raises(UsageError):
        pf.load(path)
    assert not sign.exists()


@pytest.mark.parametrize("cut", [0, 4, 100, -1])
def test_a_truncated_file_is_refused(tmp_path, cut):
    path = make_sampler().save(tmp_path / "a.pf")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(FileError, match="truncated or is not"):
        pf.load(path)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(FileError, match=r"There is no finished run in .*; finish"):
        pf.load(tmp_path)
    with pytest.raises(FileError, match="There is no file"):
        pf.load(tmp_path / "missing.pf")
    foreign = tmp_path / "foreign.pf"
    foreign.write_bytes(safetensors.numpy.save({"a": np.zeros(3)}))
    with pytest.raises(FileError, match="not a pushforward sampler"):
        pf.load(foreign)
    newer = make_sampler().save(tmp_path / "newer.pf")
    rewritten(newer, lambda h: h.update(format=99, version="9.0"))
    with pytest.raises(FileError, match=r"newer pushforward \(9\.0\)"):
        pf.load(newer)
    odd = make_sampler().save(tmp_path / "odd.pf")
    rewritten(odd, lambda h: h["network"].update(in_size=3))
    with pytest.raises(FileError, match="outputs"):
        pf.load(odd)


def test_a_tree_of_own_classes_needs_its_target(tmp_path):
    import collections

    Pair = collections.namedtuple("Pair", "a b")
    example = Pair(np.zeros(()), np.zeros(2))
    sampler = make_sampler(example)
    path = sampler.save(tmp_path / "pair.pf")
    with pytest.raises(FileError, match=r"load\(path, target="):
        pf.load(path)
    target = pf.Target(lambda p: -(p.a**2) - (p.b**2).sum(), example=example)
    draws = pf.load(path, target=target).sample(jax.random.key(0), 5)
    assert isinstance(draws, Pair) and draws.b.shape == (5, 2)
    other = pf.Target(lambda x: -(x**2).sum(), dim=3)
    with pytest.raises(FileError, match="other parameters"):
        pf.load(path, target=other)


def test_saving_does_not_half_write(tmp_path, monkeypatch):
    path = make_sampler().save(tmp_path / "a.pf")
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match="disk is full"):
        make_sampler().save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.pf"]
