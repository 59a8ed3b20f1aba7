"""Damaged and hostile files: refused with a sentence, and never believed."""

import json
import os
import random
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
import safetensors.numpy

import pushforward as pf
from pushforward import _files, _io, methods
from pushforward.errors import DamageWarning, FileError, UsageError
from pushforward.networks import MLP, AffineMap
from pushforward.sampler import Sampler, load_network, save_network
from pushforward.targets.preconditioner import Preconditioner
from pushforward.targets.structure import Structure
from pushforward.training.rundir import RunDirectory

pytestmark = pytest.mark.once

KEY = jax.random.key(3)
TINY = methods.Gaussian(steps=20, batch_size=8, particles=16)


def make_sampler(structure=None):
    structure = Structure.vector(2) if structure is None else structure
    dim = structure.size
    return Sampler(AffineMap(dim), Preconditioner.identity(dim), structure)


def contents(path):
    """The header and arrays of a file, as they are."""
    with safetensors.safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()["pushforward"])
        return header, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def crafted(path, change, arrays=None):
    """The file with its header changed, and a checksum that fits."""
    header, held = contents(path)
    change(header)
    held |= arrays or {}
    header["checksum"] = _io.checksum(header, held)
    data = safetensors.numpy.save(held, {"pushforward": json.dumps(header)})
    path.write_bytes(data)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run, which tests copy."""
    out = tmp_path_factory.mktemp("trained") / "run"
    pf.fit(KEY, pf.targets.get("gaussian"), TINY, out=out, progress=False)
    return {p.name: p.read_bytes() for p in out.iterdir()}


@pytest.fixture
def run(trained, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    for name, data in trained.items():
        (out / name).write_bytes(data)
    return out


def go_on(out, **options):
    target = pf.targets.get("gaussian")
    return pf.fit(KEY, target, TINY, out=out, resume=True, progress=False, **options)


@pytest.mark.parametrize("name", ["sampler.safetensors", "state.safetensors"])
def test_a_flipped_bit_is_noticed(run, name):
    """In any byte: the names of safetensors' own header, ours, or the numbers."""
    path = run / name
    whole = path.read_bytes()
    dice = random.Random(name)
    for _ in range(60):
        at, bit = dice.randrange(len(whole)), 1 << dice.randrange(8)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
        with pytest.raises(FileError):
            if name.startswith("sampler"):
                pf.load(path)
            else:
                pf.training.rundir.RunDirectory(run).read_position()


@pytest.mark.parametrize("wrong", [5, "text", [1], None])
def test_doubts_and_versions_of_another_kind(run, wrong):
    path = run / "config.json"
    whole = json.loads(path.read_text())
    del whole["checksum"]
    doubtful = {**whole, "target": {**whole["target"], "doubts": wrong}}
    for config in (doubtful, {**whole, "versions": wrong}):
        path.write_text(json.dumps(config))
        with pytest.raises(FileError, match="does not say what the run is"):
            go_on(run)


def test_a_flipped_number_of_a_config_is_noticed(run):
    path = run / "config.json"
    path.write_text(path.read_text().replace('"steps": 20', '"steps": 28'))
    with pytest.raises(FileError, match=r"does not fit its checksum; .* 'checksum'"):
        go_on(run)


def test_numbers_that_are_not_finite_are_neither_written_nor_read(tmp_path):
    path = make_sampler().save(tmp_path / "a.pf")
    before = path.read_bytes()
    network = jax.tree.map(lambda a: a * jnp.nan, AffineMap(2))
    broken = Sampler(network, Preconditioner.identity(2), Structure.vector(2))
    with pytest.raises(UsageError, match="not finite, in 'network"):
        broken.save(path)
    with pytest.raises(UsageError, match="not finite"):
        save_network(path, network)
    assert path.read_bytes() == before
    crafted(path, lambda h: None, {"network.mean": np.float32([1, np.inf])})
    with pytest.raises(FileError, match=r"not finite, in 'network\.mean'"):
        pf.load(path)


def test_numbers_of_another_kind_are_refused(tmp_path):
    path = make_sampler().save(tmp_path / "a.pf")
    crafted(path, lambda h: None, {"network.mean": np.int32([1, 2])})
    with pytest.raises(FileError, match="holds int32 where float32 is needed"):
        pf.load(path)


@pytest.mark.parametrize(
    "leaf",
    [
        {"shape": [-1, -2]},
        {"shape": [2.5]},
        {"shape": ["2"]},
        {"shape": [True, 2]},
        {"constraint": "simplex", "shape": []},
        {"name": "\x1b[2J"},
        {"name": 5},
    ],
    ids=str,
)
def test_parameters_that_cannot_be(tmp_path, leaf):
    path = make_sampler().save(tmp_path / "a.pf")
    whole = {"name": "", "shape": [2], "constraint": "real", **leaf}
    crafted(path, lambda h: h["structure"].update(leaves=[whole]))
    with pytest.raises(FileError, match="description of its parameters is damaged"):
        pf.load(path)


def test_small_files_that_claim_much(tmp_path):
    """Refused at once: nothing of the claimed size is made."""
    wide = 60_000
    network = MLP(1, wide, 1, 1, key=KEY)
    path = save_network(tmp_path / "a.network", network)
    header, arrays = contents(path)
    header |= {"kind": "sampler", "preconditioner": "none"}
    header["structure"] = Structure.vector(wide).to_json()
    arrays = {f"network.{name}": a for name, a in arrays.items()}
    _io.write(path, pf.sampler.SAMPLER, header, arrays)
    begun = time.monotonic()
    with pytest.raises(FileError, match="in 60000 dimensions it must hold"):
        pf.load(path)
    deep = save_network(tmp_path / "deep.network", MLP(1, 1, 1, 1, key=KEY))
    junk = {"junk": np.zeros(10**7, np.int8)}
    crafted(deep, lambda h: h["network"].update(depth=10**7), junk)
    with pytest.raises(FileError, match="depth=10000000"):
        load_network(deep)
    nested = make_sampler().save(tmp_path / "nested.pf")
    header, arrays = contents(nested)
    text = json.dumps(header).replace('{"leaf": 0}', '{"list": [' * 10**5)
    nested.write_bytes(safetensors.numpy.save(arrays, {"pushforward": text}))
    with pytest.raises(FileError):
        pf.load(nested)
    # A header of ours is small; as Python's objects another may be twenty times larger.
    padded = make_sampler().save(tmp_path / "padded.pf")
    header, arrays = contents(padded)
    text = json.dumps(header) + " " * 2**24
    padded.write_bytes(safetensors.numpy.save(arrays, {"pushforward": text}))
    with pytest.raises(FileError, match="its header would take 16,777"):
        pf.load(padded)
    assert time.monotonic() - begun < 5


def test_a_wide_sampler_holds_its_preconditioner(tmp_path, monkeypatch):
    monkeypatch.setattr(pf.sampler, "IDENTITY", 1)
    path = make_sampler().save(tmp_path / "a.pf")
    header, arrays = contents(path)
    assert "preconditioner" not in header and "preconditioner.factor" in arrays
    assert pf.load(path).dim == 2


def test_what_is_no_ordinary_file(tmp_path, run):
    pipe = tmp_path / "pipe.pf"
    os.mkfifo(pipe)
    with pytest.raises(FileError, match="no ordinary file"):
        pf.load(pipe)
    with pytest.raises(FileError, match="no ordinary file"):
        make_sampler().save(pipe)
    for name in ("config.json", "metrics.jsonl", "state.safetensors"):
        kept = (run / name).read_bytes()
        (run / name).unlink()
        os.mkfifo(run / name)
        with pytest.raises(FileError, match="no ordinary file"):
            go_on(run)
        (run / name).unlink()
        (run / name).write_bytes(kept)


@pytest.mark.parametrize("kept", [None, "metrics.jsonl"])
def test_a_run_without_its_config_is_not_written_over(run, kept):
    """What it has learnt is still there, or a file of that name is somebody else's."""
    for path in [*run.iterdir()]:
        if path.name == "config.json" or kept not in (None, path.name):
            path.unlink()
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    with pytest.raises(FileError, match="and no run that it belongs to"):
        go_on(run)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"seconds": "x"}, {"seconds": 1e999}, {"evaluations": [1]}, {"doubts": 5},
        {"doubts": [1]}, {"outside": "x"}, {"steps": -1}, {"planned": 10**400},
        {"status": 7}, {"message": "\ud800"},
    ],
)  # fmt: skip
def test_an_ending_that_is_none(tmp_path, wrong):
    directory = RunDirectory(tmp_path)
    (tmp_path / "ending.json").write_text(json.dumps(wrong))
    with pytest.raises(FileError, match=r"damaged.* so delete it"):
        directory.read_ending()


def test_of_an_ending_only_what_is_known_is_read(tmp_path):
    directory = RunDirectory(tmp_path)
    ending = {"status": "FINISHED", "seconds": 2.5, "outside": None}
    directory.write_ending({**ending, "config": 5, "out": 5})
    assert directory.read_ending() == ending


@pytest.mark.parametrize(
    "line",
    [
        '{"stage": "a", "step": 1, "loss": ' + "9" * 400 + "}",
        '{"stage": "\\ud800", "step": 1, "loss": 1}',
        '{"stage": "a", "step": 1, "\\udfff": 1}',
        b'{"stage": "\xed\xa0\x80", "step": 1}',
    ],
)
def test_rows_that_nothing_can_show(tmp_path, line):
    directory = RunDirectory(tmp_path)
    good = b'{"stage": "a", "step": 2, "loss": 1}\n'
    line = line if isinstance(line, bytes) else line.encode()
    (tmp_path / "metrics.jsonl").write_bytes(line + b"\n" + good)
    assert [row["step"] for row in directory.metrics()] == [2]


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "disk").mkdir()
    real, link = tmp_path / "disk" / "real.pf", tmp_path / "link.pf"
    link.symlink_to(real)
    for _ in range(2):
        make_sampler().save(link)
        assert link.is_symlink() and pf.load(real).dim == 2


def test_a_run_directory_writes_nothing_elsewhere(run, tmp_path):
    """Somebody else's may hold links to files that are not theirs."""
    precious = tmp_path / "precious"
    for name in ("metrics.jsonl", "state.safetensors"):
        precious.write_bytes((run / name).read_bytes())
        before = precious.read_bytes()
        (run / name).unlink()
        (run / name).symlink_to(precious)
        assert go_on(run, steps=30 if name.startswith("m") else 40).finished
        assert precious.read_bytes() == before


def test_names_that_leave_an_archive(tmp_path):
    for name in ("../../evil", "/etc/evil", "a/../../evil", "..", "C:\\evil"):
        structure = Structure.of({name: 0.0, "b": 0.0})
        sampler = make_sampler(structure)
        with pytest.raises(UsageError, match="a place outside of it"):
            sampler.stream(KEY, 10, tmp_path / "draws.npz")
        sampler.stream(KEY, 10, tmp_path / "draws.csv").unlink()
        assert list(tmp_path.iterdir()) == []
    sampler = make_sampler(Structure.of({"scope/a": 0.0, "v1..2": 0.0}))
    path = sampler.stream(KEY, 10, tmp_path / "draws.npz")
    assert set(np.load(path)) == {"scope/a", "v1..2"}


def test_draws_that_the_disk_cannot_hold(tmp_path):
    sampler = make_sampler(Structure.vector(5000))
    with pytest.raises(FileError, match=r"bytes, and .* are free there"):
        sampler.stream(KEY, 2**32, tmp_path / "draws.npy")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("header", "arrays"),
    [
        ({"step": 7}, {}),
        ({"step": 30, "steps": 40}, {}),
        ({}, {"step": np.array(7, np.int32)}),
        ({"stage": 1}, {}),
        ({"stage": -1}, {}),
        ({"steps": 10}, {}),
        ({"rows": -3}, {}),
        ({"rows": 2.5}, {}),
        ({"seconds": float("nan")}, {}),
        ({"called": "soon"}, {}),
        ({}, {"nonfinite_total": np.array(5000, np.int32)}),
        ({}, {"ended": np.array(-7, np.int32)}),
        ({}, {"count": np.array(-7, np.int32)}),
    ],
    ids=str,
)
def test_a_state_that_contradicts_itself(run, header, arrays):
    """Though its checksum fits: somebody made it, or an error of ours did."""
    crafted(run / "state.safetensors", lambda h: h.update(header), arrays)
    with pytest.raises(FileError, match="damaged"):
        go_on(run)


def test_a_state_that_is_not_finite(run):
    _, arrays = contents(run / "state.safetensors")
    name = next(n for n in arrays if n.startswith("learner.") and "mean" in n)
    crafted(
        run / "state.safetensors",
        lambda h: None,
        {name: np.full_like(arrays[name], np.nan)},
    )
    with pytest.raises(FileError, match="no training can have reached it in 20 steps"):
        go_on(run)


@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        (lambda lines: [b"\xff\xfe" + lines[0], *lines[1:]], 1),
        (lambda lines: [*lines[:3], b'{"stage": ' + lines[3], *lines[4:]], 1),
        (lambda lines: [*lines[:3], b"[1, 2]\n", *lines[4:]], 1),
        (lambda lines: [*lines[:3], b'{"stage": "other", "step": 1}\n', *lines[4:]], 1),
        (lambda lines: lines[:5], 15),
        (lambda lines: [*lines[:-1], lines[-1][:7]], 1),
        (lambda lines: [], 20),
        (lambda lines: [b"[" * 10**6, *lines[1:]], 2),
        (lambda lines: [lines[0].replace(b"1", b"3"), *lines[1:]], 0),
    ],
)
def test_damaged_metrics_do_not_keep_a_run_from_going_on(run, damage, lost):
    path = run / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 20
    spoiled = b"".join(damage(lines))
    path.write_bytes(spoiled)
    said = f"{lost} of its 20 rows cannot be read" if lost else "not those that were"
    with pytest.warns(DamageWarning, match=said):
        fit = go_on(run, steps=30)
    assert fit.finished and fit.steps == 30
    assert len(fit.history) == 30 - lost
    assert (run / "metrics.damaged.jsonl").read_bytes() == spoiled
    assert len(path.read_bytes().splitlines()) == 30 - lost
    # It is told once.
    again = go_on(run, steps=32)
    assert len(again.history) == 32 - lost


def test_what_a_killed_process_left_is_removed(run, tmp_path):
    part = f".state.safetensors.{'0a' * 8}.part"
    (run / part).write_bytes(b"half")
    mine = run / ".my own.part"
    mine.write_bytes(b"mine")
    assert go_on(run, steps=30).finished
    assert not (run / part).exists() and mine.exists()
    # Beside a file that is written again; one that is being written stays.
    left = tmp_path / f".a.pf.{'0b' * 8}.part"
    left.write_bytes(b"half")
    other = tmp_path / f".b.pf.{'0c' * 8}.part"
    other.write_bytes(b"half")
    with _files.replacing(tmp_path / "a.pf") as file:
        file.write(b"first")
        assert not left.exists() and other.exists()
        with _files.replacing(tmp_path / "a.pf") as second:
            second.write(b"second")
        assert (tmp_path / "a.pf").read_bytes() == b"second"
    assert (tmp_path / "a.pf").read_bytes() == b"first"


def test_one_process_trains_in_a_directory(run):
    from pushforward.training.rundir import RunDirectory

    first = RunDirectory(run)
    first.lock()
    before = {p.name: p.read_bytes() for p in run.iterdir()}
    with pytest.raises(FileError, match="Another process is training in"):
        go_on(run)
    assert {p.name: p.read_bytes() for p in run.iterdir()} == before
    first.release()
    assert go_on(run).finished


def test_a_run_of_the_version_before_checksums_goes_on(tmp_path):
    import shutil
    from pathlib import Path

    old = Path(__file__).parent / "data" / "format_2" / "run_gaussian"
    out = shutil.copytree(old, tmp_path / "run")
    assert "checksum" not in json.loads((out / "config.json").read_text())
    method = methods.Gaussian(steps=20, batch_size=8)
    target = pf.targets.get("gaussian")
    fit = pf.fit(KEY, target, method, steps=30, out=out, resume=True, progress=False)
    assert fit.finished and fit.steps == 30 and len(fit.history) == 30
    assert "checksum" in json.loads((out / "config.json").read_text())
