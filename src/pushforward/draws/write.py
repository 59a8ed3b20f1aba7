"""Draws on their way to disk, a block at a time."""

import contextlib
import csv
import functools
import io
import math
import re
import shutil
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np

from pushforward import _files
from pushforward.draws import containers
from pushforward.draws.names import column_names, leaf_names
from pushforward.errors import DamageWarning, FileError, UsageError
from pushforward.targets.structure import Structure

Blocks = Iterator[list[np.ndarray]]


def write_draws(
    path: Path,
    structure: Structure,
    n: int,
    batches: Iterator[Any],
    *,
    progress: bool = False,
) -> Path:
    """Writes draws to a file; memory does not grow with their number.

    Args:
        path: where to; its suffix says how. `.npy` holds one table, a row a draw;
            `.csv` and `.parquet` the same with names; `.npz`, `.h5` (or `.hdf5`) and
            `.zarr` an array for each leaf of the tree.
        structure: what the draws are draws of.
        n: how many draws there are in all.
        batches: the draws: trees of arrays with a leading axis.
        progress: show on stderr how far it is.

    Returns:
        `path`.
    """
    writers: dict[str, Callable[..., None]] = {
        ".npy": _write_npy,
        ".npz": functools.partial(_write_npz, folder=path.parent),
        ".csv": _write_csv,
        ".h5": containers.write_hdf5,
        ".hdf5": containers.write_hdf5,
        ".parquet": containers.write_parquet,
    }
    if path.suffix not in (*writers, ".zarr"):
        *first, last = (*writers, ".zarr")
        raise UsageError(
            f"Draws are written as {', '.join(first)} or {last}, and {str(path)!r} is "
            "none of them; give the name another ending."
        )
    if path.suffix in containers.PACKAGES:
        containers.require(path.suffix)
    if path.suffix == ".npz":
        _require_members(structure)
    _require_space(path, structure, n)
    count = _Nonfinite()
    if path.suffix == ".zarr":
        with _reporter(n, path, progress) as report:
            leaves = map(count.seen, _leaves(batches, report))
            containers.write_zarr(path, structure, n, leaves)
        count.warn(path, n)
        return path
    with _files.replacing(path) as file, _reporter(n, path, progress) as report:
        leaves = map(count.seen, _leaves(batches, report))
        writers[path.suffix](file, structure, n, leaves)
    count.warn(path, n)
    return path


class _Nonfinite:
    """Counts draws that hold what is no number, as they pass."""

    def __init__(self):
        self.draws = 0

    def seen(self, leaves: list[np.ndarray]) -> list[np.ndarray]:
        if not all(np.isfinite(leaf).all() for leaf in leaves):
            rows = [np.isfinite(a).reshape(len(a), -1).all(axis=1) for a in leaves]
            self.draws += int(np.sum(~np.all(rows, axis=0)))
        return leaves

    def warn(self, path: Path, n: int) -> None:
        """Says how many they were, if any, of the n draws in the file."""
        if self.draws:
            warnings.warn(
                f"{self.draws:,} of the {n:,} draws in {path} hold numbers that are "
                "not finite; check the sampler, and leave them out.",
                DamageWarning,
                stacklevel=4,
            )


def _require_space(path: Path, structure: Structure, n: int) -> None:
    """Refuses what the disk cannot hold before anything is computed for it."""
    numbers = n * sum(math.prod(leaf.shape) for leaf in structure.leaves)
    # As text a number and what ends it are at least two bytes.
    needed = numbers * (2 if path.suffix == ".csv" else draws_dtype().itemsize)
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError:
        # What is wrong there is told when the file is begun.
        return
    if needed > free:
        raise FileError(
            f"{path} needs {needed:,} bytes, and {free:,} are free there: write fewer "
            "draws, or to another disk."
        )


def _leaves(batches: Iterator[Any], report: Callable[[int], None]) -> Blocks:
    done = 0
    for block in batches:
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(block)]
        yield leaves
        done += len(leaves[0])
        report(done)


def draws_dtype() -> np.dtype:
    """The kind of number that files hold."""
    # That of the draws themselves: single, unless the program runs in 64-bit.
    return np.dtype(jnp.result_type(float))


def _begin_npy(file: Any, shape: tuple[int, ...]) -> None:
    """The header of an array whose numbers are still to come."""
    description = np.lib.format.dtype_to_descr(draws_dtype())
    header = {"descr": description, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def _put(file: Any, array: np.ndarray) -> None:
    file.write(np.ascontiguousarray(array, draws_dtype()).data)


def _table(leaves: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def _write_npy(file: BinaryIO, structure: Structure, n: int, blocks: Blocks) -> None:
    _begin_npy(file, (n, len(column_names(structure))))
    for leaves in blocks:
        _put(file, _table(leaves))


def _write_npz(
    file: BinaryIO, structure: Structure, n: int, blocks: Blocks, *, folder: Path
) -> None:
    members = [_member(name) for name in leaf_names(structure)]
    shapes = [(n, *leaf.shape) for leaf in structure.leaves]
    archive = zipfile.ZipFile(file, "w")
    if len(members) == 1:
        with archive, archive.open(members[0], "w", force_zip64=True) as into:
            _begin_npy(into, shapes[0])
            for (leaf,) in blocks:
                _put(into, leaf)
        return
    # An archive takes one array after the other, and a block holds a piece of each.
    with archive, contextlib.ExitStack() as stack:
        parts = [
            stack.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in members
        ]
        for part, shape in zip(parts, shapes, strict=True):
            _begin_npy(part, shape)
        for leaves in blocks:
            for part, leaf in zip(parts, leaves, strict=True):
                _put(part, leaf)
        for part, member in zip(parts, members, strict=True):
            part.seek(0)
            with archive.open(member, "w", force_zip64=True) as into:
                shutil.copyfileobj(part, into, 1 << 20)


# A folder above, a root, a drive: places outside of the folder an archive is taken
# apart in.
_OUTSIDE = re.compile(r"(^|[/\\])\.\.?([/\\]|$)|^[/\\]|^[A-Za-z]:[/\\]|[\x00-\x1f]")


def _require_members(structure: Structure) -> None:
    """Refuses names that would leave the folder where somebody unpacks the archive."""
    for name in leaf_names(structure):
        if _OUTSIDE.search(name):
            raise UsageError(
                f"An .npz file cannot hold an array of the name {name!r}, which is a "
                "place outside of it; write .npy or .csv, or rename the parameter."
            )


def _member(name: str) -> zipfile.ZipInfo:
    # Without a date, so that the same draws are the same bytes; and stored as they are,
    # for random numbers do not shrink.
    member = zipfile.ZipInfo(f"{name}.npy")
    member.external_attr = 0o644 << 16
    return member


def _write_csv(file: BinaryIO, structure: Structure, n: int, blocks: Blocks) -> None:
    names = column_names(structure)
    header = io.StringIO()
    # Names such as theta[1,2] need quotes.
    csv.writer(header, lineterminator="\n").writerow(names)
    file.write(header.getvalue().encode())
    # As many digits as give the same number back.
    digits = "%.9g" if draws_dtype().itemsize == 4 else "%.17g"
    line = ",".join([digits] * len(names)) + "\n"
    for leaves in blocks:
        table = _table(leaves)
        file.write((line * len(table) % tuple(table.ravel().tolist())).encode())


@contextlib.contextmanager
def _reporter(n: int, path: Path, progress: bool) -> Iterator[Callable[[int], None]]:
    """A function to call with the number of draws written so far."""
    if not progress:
        yield lambda done: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        with Progress(
            TextColumn("writing {task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        ) as bar:
            task = bar.add_task(path.name, total=n)
            yield lambda done: bar.update(task, completed=done)
    else:
        yield _plain_reporter(n, path)


def _plain_reporter(n: int, path: Path) -> Callable[[int], None]:
    last = time.monotonic()

    def report(done: int) -> None:
        nonlocal last
        if time.monotonic() - last > 5:
            last = time.monotonic()
            print(f"{path.name}: {done:,} of {n:,} draws", file=sys.stderr)

    return report
