"""Draws in the formats of other libraries: HDF5, Parquet and zarr.

Each is written a block at a time: memory does not grow with the number of draws.
"""

import contextlib
import importlib
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import jax.numpy as jnp
import numpy as np

from pushforward import _files, _optional
from pushforward.draws.names import column_names, leaf_names
from pushforward.errors import FileError
from pushforward.targets.structure import Structure

Blocks = Iterator[list[np.ndarray]]

# The package of each format, by the ending of its files.
PACKAGES = {
    ".h5": "h5py",
    ".hdf5": "h5py",
    ".parquet": "pyarrow",
    ".zarr": "zarr",
}
_EXTRAS = {"h5py": "hdf5", "pyarrow": "parquet", "zarr": "zarr"}
# Rows of one chunk of a zarr array.
_CHUNK = 16_384


def require(suffix: str) -> Any:
    """The package that a format needs, or the sentence that says how to get it."""
    name = PACKAGES[suffix]
    return _optional.require(name, _EXTRAS[name], f"A file that ends in {suffix}")


def _dtype() -> np.dtype:
    return np.dtype(jnp.result_type(float))


def _shapes(structure: Structure, n: int) -> dict[str, tuple[int, ...]]:
    leaves = zip(leaf_names(structure), structure.leaves, strict=True)
    return {name: (n, *leaf.shape) for name, leaf in leaves}


def _fill(arrays: Sequence[Any], blocks: Blocks) -> None:
    """Writes the blocks one after another, each leaf into its own array on disk."""
    start = 0
    for leaves in blocks:
        for array, leaf in zip(arrays, leaves, strict=True):
            array[start : start + len(leaf)] = leaf
        start += len(leaves[0])


def write_hdf5(file: BinaryIO, structure: Structure, n: int, blocks: Blocks) -> None:
    """A dataset for each array of the tree."""
    h5py = require(".h5")
    with h5py.File(file, "w") as into:
        datasets = [
            into.create_dataset(name.replace("/", "."), shape, _dtype())
            for name, shape in _shapes(structure, n).items()
        ]
        _fill(datasets, blocks)


def write_parquet(file: BinaryIO, structure: Structure, n: int, blocks: Blocks) -> None:
    """A column for each number of a draw."""
    pyarrow = require(".parquet")
    parquet = importlib.import_module("pyarrow.parquet")
    names, kind = column_names(structure), pyarrow.from_numpy_dtype(_dtype())
    schema = pyarrow.schema([(name, kind) for name in names])
    with parquet.ParquetWriter(file, schema) as writer:
        for leaves in blocks:
            flat = [leaf.reshape(len(leaf), -1) for leaf in leaves]
            columns = np.concatenate(flat, axis=1).astype(_dtype()).T
            arrays = [pyarrow.array(np.ascontiguousarray(c)) for c in columns]
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))


def write_zarr(path: Path, structure: Structure, n: int, blocks: Blocks) -> None:
    """An array for each array of the tree, in a folder that appears when complete."""
    zarr = require(".zarr")
    if path.exists():
        raise FileError(
            f"There is something at {path} already, and a zarr store is a folder: "
            "remove it, or choose another name."
        )
    part = path.parent / f".{path.name}.{secrets.token_hex(8)}.part"
    try:
        group = zarr.open_group(store=str(part), mode="w")
        arrays = [
            group.create_array(
                name.replace("/", "."),
                shape=shape,
                chunks=(max(min(n, _CHUNK), 1), *(max(s, 1) for s in shape[1:])),
                dtype=_dtype(),
            )
            for name, shape in _shapes(structure, n).items()
        ]
        _fill(arrays, blocks)
        part.rename(path)
    except OSError as error:
        raise _files.explain(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(part)


def read_hdf5(path: Path) -> dict[str, np.ndarray]:
    """The datasets of a file."""
    h5py = require(".h5")
    with h5py.File(path, "r") as file:
        return {
            name: np.asarray(found)
            for name, found in file.items()
            if isinstance(found, h5py.Dataset)
        }


def read_parquet(path: Path) -> tuple[list[str], np.ndarray]:
    """The names of the columns, and the rows."""
    require(".parquet")
    parquet = importlib.import_module("pyarrow.parquet")
    table = parquet.read_table(path)
    columns = [column.to_numpy() for column in table.columns]
    rows = np.stack(columns, axis=1) if columns else np.empty((0, 0))
    return list(table.column_names), rows


def read_zarr(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a store."""
    zarr = require(".zarr")
    group = zarr.open_group(store=str(path), mode="r")
    return {name: np.asarray(array[...]) for name, array in group.arrays()}
