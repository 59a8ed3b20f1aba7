"""The trained thing: one network pass per draw, and a small file that holds it.

A file is a safetensors file: arrays, and a JSON text under `pushforward` in its header.
Nothing in it is ever executed.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pushforward import _files
from pushforward._precision import NETWORK_DTYPE, widen
from pushforward._version import __version__
from pushforward.errors import FileError, UsageError
from pushforward.networks import (
    AbstractDensityNetwork,
    AbstractNetwork,
    build,
    describe,
)
from pushforward.targets.arguments import as_key
from pushforward.targets.base import AbstractTarget
from pushforward.targets.coordinates import Whitening
from pushforward.targets.structure import Structure

FORMAT = 1
# Draws are made in blocks whatever n is: the program is compiled once, and block i of
# any run is the same draws. Points of many coordinates (images) come in smaller blocks.
BLOCK, BLOCK_NUMBERS = 16_384, 2**20


class Sampler(eqx.Module):
    """`x = W(g(z) + noise_scale * eps)`: noise, a network, a whitening, a tree."""

    network: AbstractNetwork
    whitening: Whitening
    noise_scale: Float[Array, ""]
    structure: Structure = eqx.field(static=True)

    @property
    def dim(self) -> int:
        """The number of unconstrained coordinates."""
        return self.structure.size

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each coordinate."""
        return self.structure.names

    @property
    def block_size(self) -> int:
        """How many draws are made in one pass: a power of two."""
        fitting = max(BLOCK_NUMBERS // self.dim, 1)
        return min(BLOCK, 2 ** (fitting.bit_length() - 1))

    def block(self, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]:
        """`n` draws in unconstrained coordinates, in one pass; jit-able."""
        latent_key, noise_key = jax.random.split(key)
        shape = (n, self.network.out_size)
        z = jax.random.normal(latent_key, (n, self.network.in_size), NETWORK_DTYPE)
        scale = self.noise_scale.astype(NETWORK_DTYPE)
        # Random numbers cost as much as a small network: none are made for scale 0.
        noise = jax.lax.cond(
            scale > 0,
            lambda: scale * jax.random.normal(noise_key, shape, NETWORK_DTYPE),
            lambda: jnp.zeros(shape, NETWORK_DTYPE),
        )
        u = jax.vmap(self.network)(z) + noise
        # Networks may compute as they like, coordinates may not.
        with jax.default_matmul_precision("highest"):
            return jax.vmap(self.whitening.to_target)(widen(u))

    @property
    def has_density(self) -> bool:
        """Whether the density of the draws is known (`block_with_log_density`)."""
        return (
            isinstance(self.network, AbstractDensityNetwork)
            and self.network.is_injective
            and float(self.noise_scale) == 0
        )

    def block_with_log_density(
        self, key: PRNGKeyArray, n: int
    ) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
        """The draws of `block`, and the log density of the sampler there; jit-able."""
        assert isinstance(self.network, AbstractDensityNetwork)
        latent_key, _ = jax.random.split(key)
        z = jax.random.normal(latent_key, (n, self.network.in_size), NETWORK_DTYPE)
        u, log_p = jax.vmap(self.network.with_log_density)(z)
        with jax.default_matmul_precision("highest"):
            x = jax.vmap(self.whitening.to_target)(widen(u))
            log_det = jax.vmap(self.whitening.log_det)(widen(u))
        return x, widen(log_p) - log_det

    def sample(self, key: PRNGKeyArray, n: int) -> Any:
        """`n` draws in the user's own tree.

        Args:
            key: random key; the same key gives the same draws, and the first draws of a
                larger `n` are those of a smaller one.
            n: how many.

        Returns:
            The user's tree with a leading axis of n (an n by d array, where the target
            was given by `dim`).
        """
        return jax.device_put(self._collect(key, n, _draw_trees))

    def sample_flat(self, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]:
        """The same `n` draws in unconstrained coordinates."""
        return jax.device_put(self._collect(key, n, _draw_flat))

    def blocks(self, key: PRNGKeyArray, n: int, draw=None) -> Iterator[Any]:
        """The draws of `sample`, a block at a time, as numpy arrays."""
        key = as_key(key)
        _check_count(n)
        draw = _draw_trees if draw is None else draw
        size = self.block_size
        count = -(-n // size)
        ahead = draw(self, key, _index(0)) if count else None
        for i in range(count):
            # The next block is computed while this one is copied out.
            current, ahead = ahead, None
            if i + 1 < count:
                ahead = draw(self, key, _index(i + 1))
            keep = min(size, n - i * size)
            yield jax.tree.map(lambda a, keep=keep: np.asarray(a)[:keep], current)

    def _collect(self, key: PRNGKeyArray, n: int, draw) -> Any:
        key = as_key(key)
        _check_count(n)
        # Filled block by block on the host: joining on the device would compile anew
        # for every n.
        shapes = eqx.filter_eval_shape(draw, self, key, _index(0))
        whole = jax.tree.map(lambda a: np.empty((n, *a.shape[1:]), a.dtype), shapes)
        size = self.block_size
        for i, block in enumerate(self.blocks(key, n, draw)):
            for into, part in zip(
                jax.tree.leaves(whole), jax.tree.leaves(block), strict=True
            ):
                into[i * size : i * size + len(part)] = part
        return whole

    def stream(
        self, key: PRNGKeyArray, n: int, path: str | Path, *, progress: bool = False
    ) -> Path:
        """Writes the draws of `sample(key, n)` to `.npy`, `.npz` or `.csv`.

        Memory does not grow with `n`. The file appears under its name only when it is
        complete. An `.npz` file has an array per leaf of the tree; the others hold one
        table, the columns in the order of `column_names`.
        """
        from pushforward._draws import write_draws

        key = as_key(key)
        _check_count(n)
        return write_draws(self, key, n, Path(path), progress=progress)

    def save(self, path: str | Path, *, half: bool = False) -> Path:
        """Writes the sampler to one file, which `load` reads.

        Args:
            path: the file.
            half: store the network's matrices in bfloat16, in half the space.
        """
        path = Path(path)
        arrays = named_arrays(jax.tree_util.tree_leaves_with_path(self))
        header = {
            "format": FORMAT,
            "version": __version__,
            "kind": "sampler",
            "network": describe(self.network),
            "structure": self.structure.to_json(),
        }
        plain = _no_whitening(self.dim)
        if all(np.array_equal(arrays[name], plain[name]) for name in plain):
            # For an image it would be larger than the network.
            header["whitening"] = "none"
            arrays = {k: v for k, v in arrays.items() if k not in plain}
        arrays = _halved(arrays) if half else arrays
        metadata = {"pushforward": json.dumps(header)}
        _files.write_bytes(path, safetensors.numpy.save(arrays, metadata))
        return path


@eqx.filter_jit
def _draw_flat(sampler: Sampler, key: PRNGKeyArray, block: Int[Array, ""]):
    return sampler.block(jax.random.fold_in(key, block), sampler.block_size)


@eqx.filter_jit
def _draw_trees(sampler: Sampler, key: PRNGKeyArray, block: Int[Array, ""]):
    return jax.vmap(sampler.structure.unflatten)(_draw_flat(sampler, key, block))


def _index(block: int) -> Int[Array, ""]:
    # An array, not a Python number: a number would be compiled in.
    return jnp.asarray(block, jnp.int32)


def _check_count(n: int) -> None:
    if not isinstance(n, int | np.integer) or n < 0:
        raise UsageError(
            f"The number of draws must be a whole number of at least 0, not {n!r}."
        )


def named_arrays(leaves: list[tuple[Any, Any]]) -> dict[str, np.ndarray]:
    """Arrays by the text of their path in a tree, laid out as a file needs them."""
    return {
        jax.tree_util.keystr(path): np.array(value, order="C") for path, value in leaves
    }


def _no_whitening(dim: int) -> dict[str, np.ndarray]:
    """The arrays of a sampler's whitening, where it has none, by their names."""
    leaves = jax.tree_util.tree_leaves_with_path(Whitening.identity(dim))
    return {f".whitening{k}": v for k, v in named_arrays(leaves).items()}


def _halved(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A network's matrices in bfloat16; its vectors are small and stay as they are."""
    return {
        k: v.astype(jnp.bfloat16) if v.ndim > 1 and ".whitening" not in k else v
        for k, v in arrays.items()
    }


def load(path: str | Path, target: AbstractTarget | None = None) -> Sampler:
    """Reads a sampler from a file of `Sampler.save`, or from a run directory.

    Args:
        path: the file, or a directory that `fit(..., out=)` wrote.
        target: the target it was trained for. Needed only where the parameters are a
            tree of the user's own classes, which a file cannot hold.
    """
    path = Path(path)
    if path.is_dir():
        if not (path / "sampler.safetensors").exists():
            raise FileError(
                f"There is no finished run in {path}; finish it with fit(..., "
                "resume=True), or name the file of a sampler."
            )
        path = path / "sampler.safetensors"
    header, arrays = read_safetensors(path, kind="sampler")
    try:
        stored = header["structure"]
        structure = Structure.from_json(stored) if target is None else target.structure
        if structure.to_json()["leaves"] != stored["leaves"]:
            raise FileError(
                f"{path} holds a sampler for other parameters than the target's; name "
                "the target that it was trained for."
            )
        skeleton = eqx.filter_eval_shape(_blank, header["network"], structure)
        if header.get("whitening") == "none":
            arrays |= _no_whitening(structure.size)
        if skeleton.network.out_size != structure.size:
            raise FileError(
                f"{path} is damaged: its network has {skeleton.network.out_size} "
                f"outputs for {structure.size} coordinates."
            )
    except (KeyError, TypeError, AttributeError) as error:
        raise FileError(
            f"{path} is not a sampler file this version can read ({error!r})."
        ) from error
    return fill(skeleton, arrays, path)


def save_network(
    path: str | Path, network: AbstractNetwork, *, half: bool = False
) -> Path:
    """Writes a network alone to one file, which `load_network` reads.

    With `half` its matrices are stored in bfloat16.
    """
    path = Path(path)
    header = {
        "format": FORMAT,
        "version": __version__,
        "kind": "network",
        "network": describe(network),
    }
    arrays = named_arrays(jax.tree_util.tree_leaves_with_path(network))
    arrays = _halved(arrays) if half else arrays
    metadata = {"pushforward": json.dumps(header)}
    _files.write_bytes(path, safetensors.numpy.save(arrays, metadata))
    return path


def load_network(path: str | Path) -> AbstractNetwork:
    """Reads a network from a file of `save_network`."""
    path = Path(path)
    header, arrays = read_safetensors(path, kind="network")
    return fill(build(header.get("network")), arrays, path)


def _blank(network: dict[str, Any], structure: Structure) -> Sampler:
    """A sampler of the right shapes, whatever its values."""
    return Sampler(
        build(network, jax.random.key(0)),
        Whitening.identity(structure.size),
        jnp.zeros(()),
        structure,
    )


def fill(skeleton: Any, arrays: dict[str, np.ndarray], path: Path) -> Any:
    """Puts named arrays into a tree of shapes; refuses what does not fit."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(skeleton)
    names = [jax.tree_util.keystr(p) for p, _ in leaves]
    if set(names) != set(arrays):
        odd = sorted(set(names) ^ set(arrays))[0]
        raise FileError(f"{path} does not fit: the array {odd!r} is missing or extra.")
    values = []
    for name, (_, shape) in zip(names, leaves, strict=True):
        if arrays[name].shape != shape.shape:
            raise FileError(
                f"{path} does not fit: {name!r} has the shape {arrays[name].shape} "
                f"where {shape.shape} is needed."
            )
        # A file written in 64-bit is read in 32-bit too, and the other way round.
        values.append(jnp.asarray(arrays[name], shape.dtype))
    return jax.tree.unflatten(treedef, values)


def read_safetensors(
    path: Path, kind: Literal["sampler", "state", "network"]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The JSON header and the arrays of one of our files; refuses any other."""
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
    if not isinstance(header, dict) or header.get("kind") != kind:
        raise FileError(f"{path} is not a pushforward {kind} file.")
    if not isinstance(header.get("format"), int) or header["format"] > FORMAT:
        raise FileError(
            f"{path} was written by a newer pushforward ({header.get('version')}); "
            f"this is {__version__}: update it with pip install -U pushforward."
        )
    return header, arrays
