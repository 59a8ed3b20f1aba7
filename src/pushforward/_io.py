"""Arrays and a JSON header in one safetensors file, with a version for each kind.

Arrays are stored under names, and a file is read into a skeleton: a tree of shapes.
Nothing in a file is ever executed.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from pushforward import _files
from pushforward._version import __version__
from pushforward.errors import FileError

Arrays = dict[str, np.ndarray]
# From the header and the arrays of one version to those of the next.
Upgrade = Callable[[dict[str, Any], Arrays], tuple[dict[str, Any], Arrays]]


@dataclasses.dataclass(frozen=True)
class Format:
    """One kind of file: its name, its version, and what brings older files up to it."""

    kind: str
    version: int
    # By the version that each of them starts from.
    upgrades: Mapping[int, Upgrade] = dataclasses.field(default_factory=dict)


def write(
    path: Path, format: Format, header: Mapping[str, Any], arrays: Mapping[str, Any]
) -> None:
    """Writes one file, all of it or nothing."""
    own = {"format": format.version, "version": __version__, "kind": format.kind}
    metadata = {"pushforward": json.dumps({**own, **header})}
    laid_out = {name: np.array(value, order="C") for name, value in arrays.items()}
    _files.write_bytes(path, safetensors.numpy.save(laid_out, metadata))


def read(path: Path, format: Format) -> tuple[dict[str, Any], Arrays]:
    """The header and the arrays of a file of one kind, brought up to date."""
    if not path.exists():
        raise FileError(f"There is no file {path}.")
    try:
        with safetensors.safe_open(os.fspath(path), framework="numpy") as file:
            text = (file.metadata() or {}).get("pushforward")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise FileError(
            f"{path} is truncated or is not a pushforward file ({error})."
        ) from error
    try:
        header = json.loads(text) if text is not None else None
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("kind") != format.kind:
        raise FileError(f"{path} is not a pushforward {format.kind} file.")
    return upgrade(path, header, arrays, format)


def upgrade(
    path: Path, header: dict[str, Any], arrays: Arrays, format: Format
) -> tuple[dict[str, Any], Arrays]:
    """What a file of one kind holds, brought up to date."""
    check_version(path, header, format)
    for version in range(header["format"], format.version):
        try:
            header, arrays = format.upgrades[version](header, arrays)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise FileError(
                f"{path} is damaged: it cannot be read as a {format.kind} file of "
                f"version {version} ({error!r})."
            ) from error
    return header, arrays


def check_version(path: Path, header: Mapping[str, Any], format: Format) -> None:
    """Refuses a file that is newer than this version of the package."""
    version = header.get("format")
    if not isinstance(version, int) or version < 1 or version > format.version:
        raise FileError(
            f"{path} was written by a newer pushforward ({header.get('version')}); "
            f"this is {__version__}: update it with pip install -U pushforward."
        )


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | jax.ShapeDtypeStruct)


def by_path(tree: Any) -> dict[str, Any]:
    """The arrays (or shapes) in a tree, by their paths: for trees of any classes."""
    return {
        jax.tree_util.keystr(path).removeprefix("."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        if _is_array(leaf)
    }


def shapes(tree: Any) -> Any:
    """The tree with a shape in the place of each array."""
    return jax.tree.map(
        lambda leaf: (
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if _is_array(leaf) else leaf
        ),
        tree,
    )


def restore(
    skeleton: Any,
    arrays: Mapping[str, np.ndarray],
    path: Path,
    names: Callable[[Any], dict[str, Any]] = by_path,
) -> Any:
    """Puts arrays into a tree of shapes, and refuses arrays that do not fit.

    Args:
        skeleton: a tree with a shape, or any array, in the place of each array.
        arrays: the arrays by name.
        path: the file, for messages.
        names: gives the name of each array of such a tree.
    """
    # Each shape is made anew: it is then known by its identity.
    skeleton = shapes(skeleton)
    wanted = names(skeleton)
    if wanted.keys() != arrays.keys():
        odd = min(wanted.keys() ^ arrays.keys())
        raise FileError(f"{path} does not fit: the array {odd!r} is missing or extra.")
    for name, shape in wanted.items():
        if arrays[name].shape != shape.shape:
            raise FileError(
                f"{path} does not fit: {name!r} has the shape {arrays[name].shape} "
                f"where {shape.shape} is needed."
            )
    # A file written in 64-bit is read in 32-bit too, and the other way round.
    values = {
        id(shape): jnp.asarray(arrays[name], shape.dtype)
        for name, shape in wanted.items()
    }
    return jax.tree.map(
        lambda leaf: (
            values[id(leaf)] if isinstance(leaf, jax.ShapeDtypeStruct) else leaf
        ),
        skeleton,
    )


def with_prefix(prefix: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The same arrays with `prefix.` before each name."""
    return {f"{prefix}.{name}": value for name, value in arrays.items()}
