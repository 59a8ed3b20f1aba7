"""Arrays and a JSON header in one safetensors file, with a version for each kind.

Arrays are stored under names, and a file is read into a skeleton: a tree of shapes.
Nothing in a file is ever executed. A checksum over the header and all arrays stands in
the header; files from before there was one have none.
"""

import dataclasses
import hashlib
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
CHECKSUM = "checksum"

# From the header and the arrays of one version to those of the next.
Upgrade = Callable[[dict[str, Any], Arrays], tuple[dict[str, Any], Arrays]]


@dataclasses.dataclass(frozen=True)
class Format:
    """One kind of file: its name, its version, and what brings older files up to it."""

    kind: str
    version: int
    # By the version that each of them starts from.
    upgrades: Mapping[int, Upgrade] = dataclasses.field(default_factory=dict)


def checksum(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """A text that no other content shares: of plain names and numbers, and arrays."""
    kept = {name: value for name, value in header.items() if name != CHECKSUM}
    # As it will be read: tuples become lists, and keys text.
    kept = json.loads(json.dumps(kept))
    found = hashlib.sha256(json.dumps(kept, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        about = f"{name}\0{array.dtype.name}\0{array.shape}\0"
        found.update(about.encode("utf-8", "surrogatepass"))
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return f"sha256:{found.hexdigest()}"


def require_checksum(
    path: Path, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray], advice: str
) -> None:
    """Refuses content that is not what was written.

    Args:
        path: the file.
        header: its header; where that holds no checksum, nothing can be said.
        arrays: its arrays.
        advice: what to do, ending in a full stop.
    """
    if CHECKSUM in header and header[CHECKSUM] != checksum(header, arrays):
        raise FileError(
            f"{path} is damaged: its content does not fit its checksum; {advice}"
        )


def parse(text: str | bytes) -> Any:
    """JSON from a file; `ValueError` where it is none, or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write(
    path: Path,
    format: Format,
    header: Mapping[str, Any],
    arrays: Mapping[str, Any],
    *,
    follow: bool = True,
) -> None:
    """Writes one file, all of it or nothing; links as in `_files.replacing`."""
    own = {"format": format.version, "version": __version__, "kind": format.kind}
    laid_out = {name: np.array(value, order="C") for name, value in arrays.items()}
    whole = {**own, **header}
    whole[CHECKSUM] = checksum(whole, laid_out)
    data = safetensors.numpy.save(laid_out, {"pushforward": json.dumps(whole)})
    _files.write_bytes(path, data, follow=follow)


def read(path: Path, format: Format) -> tuple[dict[str, Any], Arrays]:
    """The header and the arrays of a file of one kind, brought up to date."""
    if not path.exists():
        raise FileError(f"There is no file {path}.")
    _files.require_regular(path)
    try:
        with safetensors.safe_open(os.fspath(path), framework="numpy") as file:
            text = (file.metadata() or {}).get("pushforward")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except _UNREADABLE as error:
        raise FileError(
            f"{path} is truncated or is not a pushforward file ({error})."
        ) from error
    try:
        header = parse(text) if text is not None else None
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("kind") != format.kind:
        raise FileError(f"{path} is not a pushforward {format.kind} file.")
    check_version(path, header, format)
    require_checksum(
        path, header, arrays, "restore it from a copy, or create it again."
    )
    header.pop(CHECKSUM, None)
    return upgrade(path, header, arrays, format)


# What building something from the content of a damaged file may raise.
MALFORMED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
)
# What is raised by bytes that are no file of this kind: kinds of numbers that NumPy
# does not have, and sizes that no memory has, are among them.
_UNREADABLE = (safetensors.SafetensorError, OSError, ValueError, *MALFORMED)


def upgrade(
    path: Path, header: dict[str, Any], arrays: Arrays, format: Format
) -> tuple[dict[str, Any], Arrays]:
    """What a file of one kind holds, brought up to date."""
    check_version(path, header, format)
    for version in range(header["format"], format.version):
        try:
            header, arrays = format.upgrades[version](header, arrays)
        except (*MALFORMED, ValueError) as error:
            raise FileError(
                f"{path} is damaged: it cannot be read as a {format.kind} file of "
                f"version {version} ({error!r})."
            ) from error
    return header, arrays


def check_version(path: Path, header: Mapping[str, Any], format: Format) -> None:
    """Refuses a file that is newer than this version of the package."""
    version: Any = header.get("format")
    whole = isinstance(version, int) and not isinstance(version, bool)
    if not whole or version < 1:
        raise FileError(f"{path} is damaged: it does not say its version.")
    if version > format.version:
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
    *,
    finite: bool = False,
) -> Any:
    """Puts arrays into a tree of shapes, and refuses arrays that do not fit.

    Args:
        skeleton: a tree with a shape, or any array, in the place of each array.
        arrays: the arrays by name.
        path: the file, for messages.
        names: gives the name of each array of such a tree.
        finite: whether to refuse numbers that are not finite.
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
    values = {
        id(shape): _converted(path, name, arrays[name], shape.dtype, finite)
        for name, shape in wanted.items()
    }
    return jax.tree.map(
        lambda leaf: (
            values[id(leaf)] if isinstance(leaf, jax.ShapeDtypeStruct) else leaf
        ),
        skeleton,
    )


def _converted(path: Path, name: str, array: np.ndarray, dtype: Any, finite: bool):
    """An array in another precision: written in 64-bit it is read in 32-bit too."""
    floats = jnp.issubdtype(dtype, jnp.floating)
    if not any(
        jnp.issubdtype(dtype, kind) and jnp.issubdtype(array.dtype, kind)
        for kind in (jnp.floating, jnp.integer, jnp.complexfloating, jnp.bool_)
    ):
        raise FileError(
            f"{path} does not fit: {name!r} holds {array.dtype} where {dtype} is "
            "needed."
        )
    value = jnp.asarray(array, dtype)
    if not floats and not np.array_equal(np.asarray(value), array):
        raise FileError(
            f"{path} is damaged: {name!r} holds numbers that are too large."
        )
    if floats and finite and not np.isfinite(np.asarray(value)).all():
        raise FileError(
            f"{path} holds numbers that are not finite, in {name!r}, so it cannot "
            "be used; train again."
        )
    return value


def with_prefix(prefix: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The same arrays with `prefix.` before each name."""
    return {f"{prefix}.{name}": value for name, value in arrays.items()}
