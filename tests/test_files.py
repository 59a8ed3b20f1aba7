"""Files: what is refused, and that reading one runs nothing."""

import json
import os
import pickle
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import pushforward as pf
from golden import check_sampler
from pushforward import _io
from pushforward.errors import FileError, UsageError
from pushforward.networks import AffineMap
from pushforward.sampler import SAMPLER, Sampler, load_network
from pushforward.targets.preconditioner import Preconditioner
from pushforward.targets.structure import Structure
from pushforward.training.rundir import STATE_FORMAT, RunDirectory

OLD = Path(__file__).parent / "data"
FORMAT_1 = OLD / "format_1"


def make_sampler(example=None):
    structure = Structure.vector(2) if example is None else Structure.of(example)
    dim = structure.size
    return Sampler(AffineMap(dim), Preconditioner.identity(dim), structure)


def rewritten(path, change):
    """The file with its JSON header changed."""
    header, arrays = _io.read(path, SAMPLER)
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
    with pytest.raises(FileError, match=r"load\(path, like="):
        pf.load(path)
    target = pf.Target(lambda p: -(p.a**2) - (p.b**2).sum(), example=example)
    draws = pf.load(path, like=target).sample(jax.random.key(0), 5)
    assert isinstance(draws, Pair) and draws.b.shape == (5, 2)
    other = pf.Target(lambda x: -(x**2).sum(), dim=3)
    with pytest.raises(FileError, match="other parameters"):
        pf.load(path, like=other)


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


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path):
    before = os.umask(0o027)
    try:
        path = make_sampler().save(tmp_path / "a.pf")
        # Asked for by nobody while it was written.
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


class TestFormat1:
    """Files that version 0.1.0 wrote: the same latent points give the same draws."""

    @pytest.mark.parametrize(
        "path", sorted(OLD.glob("format_*/*.pf")), ids=lambda p: p.stem
    )
    def test_a_sampler(self, path, tmp_path):
        sampler = check_sampler(path, tmp_path)
        noisy = path.stem in ("residual_noise", "plain_half")
        assert (sampler.noise_scale is not None) == noisy

    @pytest.mark.parametrize(
        "path", sorted(OLD.glob("format_*/run_*")), ids=lambda p: p.stem
    )
    def test_a_run_directory(self, path):
        draws = pf.load(path).sample(jax.random.key(0), 5)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(draws))

    @pytest.mark.parametrize(
        "path", sorted(OLD.glob("format_*/*.network")), ids=lambda p: p.stem
    )
    def test_a_network(self, path):
        network = load_network(path)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(network))


def test_sizes_are_compared_before_anything_is_made(tmp_path):
    path = make_sampler().save(tmp_path / "a.pf")
    rewritten(
        path,
        lambda h: h["network"].update(
            kind="MLP", in_size=2, out_size=2, width=10**9, depth=10**9
        ),
    )
    with pytest.raises(FileError, match=r"damaged: its network has width=1000000000"):
        pf.load(path)
    path = make_sampler().save(tmp_path / "b.pf")
    leaf = {"name": "", "shape": [10**6], "constraint": "real"}
    rewritten(path, lambda h: h["structure"].update(leaves=[leaf]))
    with pytest.raises(FileError, match="2 outputs for 1000000 coordinates"):
        pf.load(path)
    path = make_sampler().save(tmp_path / "c.pf")
    rewritten(path, lambda h: h["network"].update(in_size=4))
    with pytest.raises(FileError):
        pf.load(path)


def test_the_names_of_arrays_are_fixed(tmp_path):
    from pushforward.networks import MixtureMap

    network = MixtureMap(3, 4, 1, 2, 2, key=jax.random.key(0))
    sampler = Sampler(
        network,
        Preconditioner.affine(jnp.ones(2), jnp.eye(2)),
        Structure.vector(2),
        0.5,
    )
    path = sampler.save(tmp_path / "a.pf")
    _, arrays = _io.read(path, SAMPLER)
    assert sorted(arrays) == [
        *(f"network.{name}" for name in ("factors", "logits")),
        *(f"network.map.weights.{i}" for i in range(4)),
        "network.means",
        "noise_scale",
        *(
            f"preconditioner.{n}"
            for n in ("centre", "factor", "scale", "shift", "tails")
        ),
    ]


RUNS = ("run_gaussian", "run_dft", "run_default")


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_version_0_1_is_read_and_does_not_go_on(tmp_path, name):
    out = shutil.copytree(FORMAT_1 / name, tmp_path / name)
    directory = RunDirectory(out)
    config = directory.read_config()
    assert config["method"]["name"] in ("gaussian", "dft", "transport")
    assert config["steps"] == 20 and config["target"]["dim"] == 2
    assert pf.load(out).unconstrained().sample(jax.random.key(0), 5).shape == (5, 2)
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    target = pf.targets.get("gaussian")
    with pytest.raises(
        FileError, match=r"started by version 0\.1, .* cannot be continued"
    ):
        pf.fit(jax.random.key(0), target, out=out, resume=True, progress=False)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


@pytest.mark.parametrize("name", RUNS)
def test_the_state_of_a_run_of_version_0_1_is_renamed(name):
    header, arrays = _io.read(FORMAT_1 / name / "state.safetensors", STATE_FORMAT)
    assert header["step"] == arrays["step"] == 20
    assert arrays["ended"] == -1 and arrays["nonfinite_total"] == 0
    assert {n.partition(".")[0] for n in arrays} == {
        "step", "count", "nonfinite_total", "nonfinite_in_a_row", "ended", "sums",
        "learner",
    }  # fmt: skip
    assert "learner.clock.step" in arrays


def test_a_config_of_train_of_version_0_1(tmp_path):
    old = {"format": 1, "task": {"kind": "Energy", "steps": 7, "width": 4}, "data": 3}
    (tmp_path / "config.json").write_text(json.dumps(old))
    config = RunDirectory(tmp_path).read_config()
    assert config["method"]["name"] == "energy" and config["steps"] == 7
    assert config["target"] == {"kind": "data", "checksum": 3}


def test_a_damaged_config_of_version_0_1(tmp_path):
    for text in ('{"format": 1}', '{"format": 1, "method": 3}', '{"format": 0}'):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(FileError, match=r"damaged|newer"):
            RunDirectory(tmp_path).read_config()


def test_the_names_in_the_file_of_a_state(tmp_path):
    target = pf.targets.get("gaussian")
    method = pf.methods.Gaussian(steps=2, batch_size=8)
    pf.fit(jax.random.key(0), target, method, out=tmp_path / "r", progress=False)
    _, arrays = _io.read(tmp_path / "r" / "state.safetensors", STATE_FORMAT)
    own = {name for name in arrays if not name.startswith("learner.")}
    assert own == {
        "step", "count", "nonfinite_total", "nonfinite_in_a_row", "ended",
        "complete", "sums.loss",
    }  # fmt: skip
