"""Draws from disk: what `Sampler.stream` and `pushforward sample` have written."""

import csv
import math
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from pushforward import _files
from pushforward.draws import containers
from pushforward.draws.names import column_names, leaf_names
from pushforward.draws.write import draws_dtype
from pushforward.errors import FileError, UsageError
from pushforward.targets.structure import Structure

# What bytes that are no file of draws raise.
_UNREADABLE = (
    ArithmeticError,
    EOFError,
    LookupError,
    MemoryError,
    NotImplementedError,
    OSError,
    TypeError,
    ValueError,
    csv.Error,
    zipfile.BadZipFile,
)
# A column of an array: its name, and where in the array it is.
_COLUMN = re.compile(r"(.+)\[(\d+(?:,\d+)*)\]")

Named = dict[str, np.ndarray]


class Table(NamedTuple):
    """Draws as rows; `names` are those of the columns."""

    names: Sequence[str]
    rows: np.ndarray


@runtime_checkable
class Structured(Protocol):
    """A sampler or a target: what has parameters."""

    @property
    def structure(self) -> Structure:
        """Their shapes and names."""
        ...


def read_draws(path: str | Path, like: Structured | None = None) -> Any:
    """Reads a file of draws: any that `Sampler.stream` writes.

    Args:
        path: the file, as `Sampler.stream` and `pushforward sample` write it.
        like: the sampler or the target whose draws they are. The draws then come back
            as the same tree that `sample` returns.

    Returns:
        NumPy arrays with a leading axis, the draws. Without `like`: a single array
        where the parameters have no name, or the file is a table without names
        (`.npy`), and elsewhere a dict of arrays by name. Parameters inside others have
        names with dots.

    Raises:
        FileError: There is no such file, it is damaged, or its draws are not those of
            `like`.
        MissingDependencyError: The format needs a package that is not installed.
    """
    path = Path(path)
    if path.suffix not in _READERS:
        raise UsageError(
            f"Draws are read from {_listed(_READERS)}, and {str(path)!r} is none of "
            "them; give the file that stream or pushforward sample wrote."
        )
    if not path.exists():
        raise FileError(f"There is no file {path}.")
    if path.suffix != ".zarr":
        _files.require_regular(path)
    if path.suffix in containers.PACKAGES:
        containers.require(path.suffix)
    try:
        found = _READERS[path.suffix](path)
    except _UNREADABLE as error:
        raise FileError(
            f"{path} is damaged, or is no file of draws ({error}); write it anew."
        ) from error
    if like is not None:
        return _in_tree(path, like.structure, found)
    if isinstance(found, Table):
        try:
            found = _gather(found)
        except _UNREADABLE as error:
            raise FileError(
                f"{path} cannot be taken apart into arrays ({error}); name the sampler "
                "that made it as like=."
            ) from error
    if isinstance(found, np.ndarray):
        return found
    return found[_ALONE] if found.keys() == {_ALONE} else found


# The name of an array without one: `leaf_names` and `column_names`.
_ALONE, _ALONE_IN_TABLES = "draws", "x"


def _listed(words: Sequence[str] | dict[str, Any]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}"


def _in_tree(path: Path, structure: Structure, found: Any) -> Any:
    """The draws as a tree of these parameters."""
    names = leaf_names(structure)
    if isinstance(found, Table):
        if list(found.names) != column_names(structure):
            raise _not_of(path, f"the columns {', '.join(found.names)}")
        found = np.asarray(found.rows)
    if isinstance(found, np.ndarray):
        widths = [math.prod(leaf.shape) for leaf in structure.leaves]
        if found.ndim != 2 or found.shape[1] != sum(widths):
            raise _not_of(path, f"a table of the shape {found.shape}")
        parts = np.split(found, np.cumsum(widths)[:-1], axis=1)
        shapes = [(len(found), *leaf.shape) for leaf in structure.leaves]
        leaves = [p.reshape(s) for p, s in zip(parts, shapes, strict=True)]
        return jax.tree.unflatten(structure.treedef, leaves)
    fits = found.keys() == set(names) and all(
        found[name].shape[1:] == leaf.shape
        for name, leaf in zip(names, structure.leaves, strict=True)
    )
    if not fits:
        held = [f"{name} of the shape {a.shape}" for name, a in found.items()]
        raise _not_of(path, ", ".join(held))
    return jax.tree.unflatten(structure.treedef, [found[name] for name in names])


def _not_of(path: Path, what: str) -> FileError:
    return FileError(
        f"{path} holds {what}, and not draws of the parameters of `like`; name the "
        "sampler that made them, or leave `like` out."
    )


def _numbers(array: np.ndarray) -> np.ndarray:
    if not np.issubdtype(array.dtype, np.number):
        raise ValueError(f"it holds {array.dtype}, not numbers")
    if not array.ndim:
        raise ValueError("it holds a single number")
    return array


def _read_npy(path: Path) -> np.ndarray:
    with open(path, "rb") as file:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"it is an array of the format {version}")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        rest = path.stat().st_size - file.tell()
        # Before memory is taken for what is not there.
        if dtype.hasobject or dtype.itemsize * int(np.prod(shape, dtype=object)) > rest:
            raise ValueError(f"{rest} bytes are too few for the shape {shape}")
    return _numbers(np.load(path, allow_pickle=False))


def _read_npz(path: Path) -> Named:
    with zipfile.ZipFile(path) as archive:
        claimed = sum(member.file_size for member in archive.infolist())
        stored = all(m.compress_type == zipfile.ZIP_STORED for m in archive.infolist())
        if stored and claimed > path.stat().st_size:
            raise ValueError(f"it claims {claimed} bytes")
    with np.load(path, allow_pickle=False) as archive:
        return _checked({name: archive[name] for name in archive.files})


def _checked(arrays: Named) -> Named:
    named = {name: _numbers(array) for name, array in arrays.items()}
    if not named or len({len(value) for value in named.values()}) > 1:
        raise ValueError("its arrays have no common leading axis")
    return named


def _read_csv(path: Path) -> Table:
    with open(path, encoding="utf-8", newline="") as file:
        names = next(csv.reader(file), [])
        rows = file.read(1)
    if not names or not all(name and name.isprintable() for name in names):
        raise ValueError("its first line names no columns")
    table = np.empty((0, len(names)), draws_dtype())
    if rows:
        table = np.loadtxt(path, draws_dtype(), delimiter=",", skiprows=1, ndmin=2)
    return Table(names, table)


def _gather(table: Table) -> Named:
    """Arrays from the columns of a table: `theta[0,1]` is a number of `theta`."""
    found: dict[str, dict[tuple[int, ...], np.ndarray]] = {}
    for name, column in zip(table.names, table.rows.T, strict=True):
        match = _COLUMN.fullmatch(name)
        base, index = match.groups() if match else (name, "")
        place = tuple(map(int, index.split(","))) if index else ()
        found.setdefault(base, {})[place] = column
    arrays = {}
    for base, places in found.items():
        if len({len(place) for place in places}) > 1:
            raise ValueError(f"columns of {base!r} are not of one array")
        shape = tuple(max(axis) + 1 for axis in zip(*places, strict=True))
        # Each place once, none left out; before memory is taken for what is not there.
        if len(places) != math.prod(shape):
            raise ValueError(f"columns of {base!r} are missing")
        ordered = [places[index] for index in sorted(places)]
        arrays[base] = np.stack(ordered, axis=1).reshape(len(table.rows), *shape)
    if arrays.keys() == {_ALONE_IN_TABLES}:
        return {_ALONE: arrays[_ALONE_IN_TABLES]}
    return arrays


_READERS: dict[str, Callable[[Path], Any]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".csv": _read_csv,
    ".h5": lambda path: _checked(containers.read_hdf5(path)),
    ".hdf5": lambda path: _checked(containers.read_hdf5(path)),
    ".parquet": lambda path: Table(*containers.read_parquet(path)),
    ".zarr": lambda path: _checked(containers.read_zarr(path)),
}
