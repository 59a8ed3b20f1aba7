"""Draws on disk: the same as `sample` gives, all of them or none."""

import csv
import errno
import io
import json
import os
import subprocess
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pushforward import draws as files_of_draws
from pushforward import read_draws, sampler
from pushforward.errors import (
    DamageWarning,
    FileError,
    MissingDependencyError,
    UsageError,
)
from pushforward.networks import AffineMap
from pushforward.sampler import Sampler
from pushforward.targets import constrained
from pushforward.targets.preconditioner import Preconditioner
from pushforward.targets.structure import Structure

KEY = jax.random.key(3)
# Not a whole number of blocks.
N = sampler.BLOCK + 700

TREE = constrained(
    lambda p: 0.0,
    {"tau": "positive", "w": "simplex"},
    example={"tau": 1.0, "group": {"theta": jnp.zeros((2, 2))}, "w": jnp.ones(3) / 3},
).structure


def make(structure: Structure) -> Sampler:
    dim = structure.size
    return Sampler(AffineMap(dim), Preconditioner.identity(dim), structure, 0.1)


@pytest.fixture(params=["vector", "named", "tree", "scalar"])
def any_sampler(request):
    return make(
        {
            "vector": Structure.vector(3),
            "named": Structure.vector(2, ("alpha", "beta")),
            "tree": TREE,
            "scalar": Structure.of(0.0),
        }[request.param]
    )


def table_of(draws):
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(draws)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def test_npy_holds_the_draws_of_sample(any_sampler, tmp_path):
    path = tmp_path / "draws.npy"
    assert any_sampler.stream(KEY, N, path) == path
    stored = np.load(path)
    assert stored.dtype == jnp.result_type(float)
    np.testing.assert_array_equal(stored, table_of(any_sampler.sample(KEY, N)))
    assert [p.name for p in tmp_path.iterdir()] == ["draws.npy"]


def test_npz_holds_an_array_for_each_leaf(any_sampler, tmp_path):
    path = tmp_path / "draws.npz"
    any_sampler.stream(KEY, N, path)
    leaves = jax.tree.leaves(any_sampler.sample(KEY, N))
    with np.load(path) as stored:
        names = [leaf.name or "draws" for leaf in any_sampler.structure.leaves]
        assert stored.files == names
        for name, leaf in zip(names, leaves, strict=True):
            np.testing.assert_array_equal(stored[name], leaf)
    assert [p.name for p in tmp_path.iterdir()] == ["draws.npz"]


def test_csv_holds_the_draws_of_sample(any_sampler, tmp_path):
    path = tmp_path / "draws.csv"
    any_sampler.stream(KEY, 100, path)
    header, *rows = csv.reader(io.StringIO(path.read_text()))
    assert header == files_of_draws.column_names(any_sampler.structure)
    stored = np.array(rows, dtype=jnp.result_type(float))
    np.testing.assert_array_equal(stored, table_of(any_sampler.sample(KEY, 100)))


def test_columns_are_named_after_the_users_parameters():
    assert files_of_draws.column_names(Structure.vector(2)) == ["x[0]", "x[1]"]
    assert files_of_draws.column_names(Structure.vector(2, ("a", "b"))) == ["a", "b"]
    # Constrained: all three parts of the simplex, of which two are free.
    assert files_of_draws.column_names(TREE) == [
        *(f"group.theta[{i},{j}]" for i in range(2) for j in range(2)),
        "tau",
        "w[0]",
        "w[1]",
        "w[2]",
    ]


def test_the_same_draws_are_the_same_bytes(tmp_path):
    ours = make(TREE)
    first = ours.stream(KEY, 50, tmp_path / "a.npz").read_bytes()
    assert ours.stream(KEY, 50, tmp_path / "b.npz").read_bytes() == first


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv"])
def test_no_draws_at_all(suffix, tmp_path):
    path = make(TREE).stream(KEY, 0, tmp_path / f"none{suffix}")
    if suffix == ".npy":
        assert np.load(path).shape == (0, 8)
    elif suffix == ".npz":
        assert np.load(path)["group.theta"].shape == (0, 2, 2)
    else:
        assert len(path.read_text().splitlines()) == 1


@pytest.mark.parametrize("name", ["draws.txt", "draws", "draws.npy.gz"])
def test_unknown_suffix(name, tmp_path):
    with pytest.raises(UsageError, match=r"written as \.npy, .* or \.zarr, and '.*'"):
        make(TREE).stream(KEY, 10, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_directory_that_does_not_exist(tmp_path):
    with pytest.raises(FileError, match="cannot be written"):
        make(TREE).stream(KEY, 10, tmp_path / "no" / "draws.npy")
    with pytest.raises(FileError, match="is a directory"):
        (tmp_path / "d.npy").mkdir()
        make(TREE).stream(KEY, 10, tmp_path / "d.npy")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_directory_that_must_not_be_written(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(FileError, match="Permission denied"):
        make(TREE).stream(KEY, 10, tmp_path / "draws.npy")


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv"])
def test_a_full_disk_loses_and_leaves_nothing(suffix, tmp_path, monkeypatch):
    path = tmp_path / f"draws{suffix}"
    path.write_bytes(b"what stood there before")
    written = 0

    class Full(io.FileIO):
        """A file on a disk that has room for 100 kB."""

        def write(self, data):
            nonlocal written
            written += memoryview(data).nbytes
            if written > 100_000:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    def on_full_disk(handle, mode):
        return io.BufferedRandom(Full(handle, mode.replace("w", "r")))

    def part(dir):
        handle, name = tempfile.mkstemp(dir=dir)
        os.unlink(name)
        return on_full_disk(handle, "r+b")

    monkeypatch.setattr("pushforward._files.os.fdopen", on_full_disk)
    monkeypatch.setattr("pushforward.draws.write.tempfile.TemporaryFile", part)
    with pytest.raises(FileError, match=r"The disk is full: .* is unchanged"):
        make(TREE).stream(KEY, N, path)
    assert written > 100_000
    monkeypatch.undo()
    assert path.read_bytes() == b"what stood there before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv"])
def test_draws_that_are_not_finite_are_told(suffix, tmp_path):
    """Of N(0, 1) times the largest number a share of 2 Phi(-1) is infinite."""
    centre, lower = jnp.zeros(1), jnp.full((1, 1), jnp.finfo(jnp.float32).max)
    whitening = Preconditioner.affine(centre, lower)
    wild = Sampler(AffineMap(1), whitening, Structure.of(0.0))
    infinite = int(np.sum(~np.isfinite(wild.sample(KEY, 1000))))
    assert 250 < infinite < 400
    with pytest.warns(DamageWarning, match=f"^{infinite} of the 1,000 draws in "):
        wild.stream(KEY, 1000, tmp_path / f"draws{suffix}")


def test_an_interrupted_stream_leaves_nothing(tmp_path, monkeypatch):
    ours = make(TREE)

    def interrupted(self, key, n):
        yield jax.vmap(ours.structure.unflatten)(jnp.zeros((5, ours.dim)))
        raise KeyboardInterrupt

    monkeypatch.setattr(Sampler, "iter_batches", interrupted)
    for suffix in (".npy", ".npz"):
        with pytest.raises(KeyboardInterrupt):
            ours.stream(KEY, N, tmp_path / f"draws{suffix}")
    assert not list(tmp_path.iterdir())


_NUMBERS_FOR_KEYS = """
import sys, jax, pushforward as pf
sampler = pf.load(sys.argv[1])
batch = lambda key, n: next(sampler.iter_batches(key, n))
stream = lambda key, n: sampler.stream(key, n, "draws.npy")
for draw in (sampler.sample, batch, stream):
    try:
        draw(5, 3)
    except pf.errors.UsageError as error:
        print(error)
"""


@pytest.mark.once
def test_a_number_is_no_key(tmp_path):
    # In a process of its own: here the annotations refuse it before the sampler does.
    make(Structure.vector(2)).save(tmp_path / "a.pf")
    done = subprocess.run(
        [sys.executable, "-c", _NUMBERS_FOR_KEYS, "a.pf"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    sentence = "The first argument must be a random key, such as jax.random.key(0), not"
    assert done.stdout.splitlines() == [f"{sentence} a int."] * 3, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.pf"]


def test_progress_without_a_terminal_is_plain_lines(tmp_path, monkeypatch, capsys):
    ticks = iter(range(0, 1000, 6))
    monkeypatch.setattr("pushforward.draws.write.time.monotonic", lambda: next(ticks))
    ours = make(Structure.vector(2))
    ours.stream(KEY, N, tmp_path / "draws.npy", progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1] == f"draws.npy: {N:,} of {N:,} draws"


_STREAM = """
import json, sys
import jax, jax.numpy as jnp
from pushforward.networks import AffineMap
from pushforward.sampler import Sampler

def peak():
    # Not getrusage: a child inherits the peak of the process that started it.
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024

sampler = Sampler.from_network(AffineMap(2), noise_scale=0.1)
sampler.stream(jax.random.key(0), 50_000, sys.argv[1])
before = peak()
sampler.stream(jax.random.key(0), 2_000_000, sys.argv[1])
print(json.dumps([before, peak()]))
"""


@pytest.mark.once
@pytest.mark.skipif(sys.platform != "linux", reason="measures memory as Linux tells it")
def test_memory_does_not_grow_with_the_draws(tmp_path):
    path = tmp_path / "draws.npy"
    done = subprocess.run(
        [sys.executable, "-c", _STREAM, str(path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout)
    assert np.load(path, mmap_mode="r").shape == (2_000_000, 2)
    # The table alone is 16 MB; a list of its blocks would be as much again.
    assert after - before < 8e6
    assert after < 1.5e9


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv"])
def test_draws_are_read_again_as_they_were(any_sampler, suffix, tmp_path):
    path = any_sampler.stream(KEY, 20, tmp_path / f"draws{suffix}")
    draws = any_sampler.sample(KEY, 20)
    again = read_draws(path, like=any_sampler)
    assert jax.tree.structure(again) == jax.tree.structure(draws)
    jax.tree.map(np.testing.assert_array_equal, again, draws)
    none = any_sampler.stream(KEY, 0, tmp_path / f"none{suffix}")
    assert {len(a) for a in jax.tree.leaves(read_draws(none, like=any_sampler))} == {0}


def test_draws_are_read_without_their_sampler(tmp_path):
    tree, vector = make(TREE), make(Structure.vector(3))
    named = make(Structure.vector(2, ("alpha", "beta")))
    for suffix in (".npz", ".csv"):
        read = read_draws(tree.stream(KEY, 9, tmp_path / f"tree{suffix}"))
        shapes = {name: value.shape for name, value in read.items()}
        assert shapes == {"group.theta": (9, 2, 2), "tau": (9,), "w": (9, 3)}
        np.testing.assert_array_equal(
            read["group.theta"], tree.sample(KEY, 9)["group"]["theta"]
        )
        path = vector.stream(KEY, 9, tmp_path / f"vector{suffix}")
        np.testing.assert_array_equal(read_draws(path), vector.sample(KEY, 9))
    columns = read_draws(named.stream(KEY, 9, tmp_path / "named.csv"))
    np.testing.assert_array_equal(columns["beta"], named.sample(KEY, 9)[:, 1])


def test_files_that_are_no_draws(tmp_path):
    path = make(TREE).stream(KEY, 9, tmp_path / "a.npy")
    other = make(Structure.vector(3))
    with pytest.raises(FileError, match=r"a table of the shape \(9, 8\), and not draw"):
        read_draws(path, like=other)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(FileError, match="bytes are too few"):
        read_draws(path)
    # A file that claims more than any memory holds.
    path.write_bytes(whole.replace(b"(9, 8)", b"(9000000000, 8)".ljust(15)))
    with pytest.raises(FileError, match="is damaged"):
        read_draws(path)
    for suffix in (".npz", ".csv", ".npy"):
        file = (tmp_path / f"b{suffix}").resolve()
        file.write_bytes(b"\0nothing of the kind")
        with pytest.raises(FileError, match="is damaged, or is no file of draws"):
            read_draws(file)
    (tmp_path / "c.csv").write_text('"t[0]","t[2]"\n1,2\n')
    with pytest.raises(FileError, match="columns of 't' are missing"):
        read_draws(tmp_path / "c.csv")
    np.save(tmp_path / "d.npy", np.array(["text"]))
    with pytest.raises(FileError, match="not numbers"):
        read_draws(tmp_path / "d.npy")
    with pytest.raises(FileError, match="There is no file"):
        read_draws(tmp_path / "none.npz")
    with pytest.raises(UsageError, match=r"from \.npy, .* or \.zarr, and"):
        read_draws(tmp_path / "draws.txt")


PACKAGES = {".h5": "h5py", ".parquet": "pyarrow", ".zarr": "zarr"}


@pytest.mark.once
@pytest.mark.parametrize("suffix", PACKAGES)
def test_formats_of_other_libraries(any_sampler, suffix, tmp_path):
    pytest.importorskip(PACKAGES[suffix])
    path = any_sampler.stream(KEY, N, tmp_path / f"draws{suffix}")
    assert list(tmp_path.iterdir()) == [path]
    draws = any_sampler.sample(KEY, N)
    again = read_draws(path, like=any_sampler)
    jax.tree.map(np.testing.assert_array_equal, again, draws)
    if suffix == ".zarr":
        with pytest.raises(FileError, match="There is something at"):
            any_sampler.stream(KEY, 3, path)
        return
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(FileError, match="is damaged"):
        read_draws(path)


@pytest.mark.once
@pytest.mark.parametrize("suffix", PACKAGES)
def test_formats_whose_library_is_missing(suffix, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, PACKAGES[suffix], None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'pushforward\["):
        make(TREE).stream(KEY, 3, tmp_path / f"draws{suffix}")
    assert not list(tmp_path.iterdir())
