"""The trained thing: a distribution with one network pass per draw, and its file."""

import functools
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Protocol,
    TypeVar,
    cast,
    runtime_checkable,
)

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PRNGKeyArray, UInt

from pushforward import _files, _io
from pushforward._io import Arrays
from pushforward._precision import NETWORK_DTYPE, narrow, widen
from pushforward._text import shown
from pushforward._validate import finite, whole_number
from pushforward.draws import write_draws
from pushforward.errors import FileError, MissingDependencyError, UsageError
from pushforward.networks import (
    AbstractDensityNetwork,
    AbstractNetwork,
    AbstractStoredNetwork,
    build,
    describe,
)
from pushforward.targets import symmetries
from pushforward.targets.arguments import as_target, one_key
from pushforward.targets.base import AbstractTarget
from pushforward.targets.preconditioner import Preconditioner
from pushforward.targets.structure import Structure
from pushforward.targets.symmetries import MAX_ELEMENTS, Action

# Draws are made in blocks of at most so many, and of at most so many numbers: memory
# for what is between the layers of a network does not grow with their number.
BLOCK, BLOCK_NUMBERS = 16_384, 2**20
# One key makes at most so many draws: each has an index of 32 bits.
MOST = 2**32
# Folded into the key of a draw for the group's element that moves it.
_ELEMENT = 0x73796D
# In more dimensions the identity is written out, a matrix of so many rows: a small file
# must not claim a large one.
IDENTITY = 8192

# What exported programs run on.
_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")

Shape = int | tuple[int, ...]


@runtime_checkable
class Network(Protocol):
    """What a sampler needs of a network: any such module will do."""

    @property
    def in_size(self) -> Any:
        """How many latent numbers it takes."""
        ...

    @property
    def out_size(self) -> Any:
        """How many coordinates it gives."""
        ...

    def __call__(self, x: Float[Array, " i"]) -> Float[Array, " o"]:
        """The network at one point."""
        ...


class _Method:
    """A method that `jax.jit` takes: the bound methods of a module cannot be hashed."""

    def __init__(self, function: Callable):
        functools.update_wrapper(cast(Any, self), function)
        self.function = function

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self.function
        # A tree of arrays, as bound methods of a module are, and known by its identity.
        return jax.tree_util.Partial(self.function, instance)


if TYPE_CHECKING:
    F = TypeVar("F", bound=Callable)

    def _method(function: F) -> F:
        return function
else:
    _method = _Method


class Sampler(eqx.Module):
    """A distribution over the user's parameters: `x = C(W(g(z) + noise_scale * eps))`.

    `z` and `eps` are standard normal, `g` is a network, `W` a preconditioner, and `C`
    the map from unconstrained coordinates to the user's tree and constraints. With a
    symmetry a random element of the group moves each draw before `C`, and densities are
    averages over the group.

    Draw `i` of a key is the same whatever the shape, up to rounding: `sample(key, 10)`
    is the beginning of `sample(key, 1000)`, and `sample(key, (3, 5))` is
    `sample(key, 15)` in another shape.

    `sample`, `sample_and_log_prob` and `log_prob` are functions of JAX: they work under
    `jax.jit`, `jax.vmap` and `jax.grad`, and their results stay on the device.

    Densities are with respect to the Lebesgue measure of the parameters as the user
    writes them, constraints and all. For a simplex it is that of all its numbers but
    the last, and for an ordered vector that of its numbers. For matrices it is that of
    the numbers below the diagonal (and on it, for covariances); for vectors whose sum
    is 0, or whose length is 1, it is the area of the plane or the sphere.

    Attributes:
        network: from latent numbers to preconditioned coordinates.
        preconditioner: from these to the target's unconstrained coordinates.
        structure: the shapes, names and constraints of the user's parameters.
        noise_scale: the noise on the network's output; None is no noise.
        symmetry: the group under which the distribution does not change.
    """

    network: Any
    preconditioner: Preconditioner
    structure: Structure = eqx.field(static=True)
    noise_scale: Float[Array, ""] | None
    symmetry: Action | None = eqx.field(static=True, default=None)

    def __init__(
        self,
        network: Network,
        preconditioner: Preconditioner,
        structure: Structure,
        noise_scale: float | Float[Array, ""] | None = None,
        symmetry: Action | None = None,
    ):
        self.symmetry = symmetry
        self.network, self.preconditioner = network, preconditioner
        self.structure = structure
        # Whether there is noise is known without looking at numbers, under jit too.
        if noise_scale is not None and not isinstance(noise_scale, Tracer):
            noise_scale = None if noise_scale == 0 else noise_scale
        if noise_scale is not None:
            noise_scale = jnp.asarray(noise_scale, float)
        self.noise_scale = noise_scale

    @staticmethod
    def from_network(
        network: Network,
        dim: int | None = None,
        *,
        target: AbstractTarget | None = None,
        preconditioner: Preconditioner | None = None,
        noise_scale: float = 0.0,
    ) -> "Sampler":
        """A sampler from a network.

        Args:
            network: a module with `in_size` and `out_size` that maps one latent point
                to one point: one of `pushforward.networks`, an `equinox.nn.MLP`, or
                one's own.
            dim: the number of coordinates; by default the network's `out_size`, or the
                target's.
            target: draws have the parameters, constraints and symmetry of this target;
                without one they are vectors.
            preconditioner: from the network's coordinates to the target's; by default
                they are the same.
            noise_scale: the noise on the network's output.

        Example:
            >>> from pushforward.networks import AffineMap
            >>> sampler = Sampler.from_network(AffineMap(2))
            >>> sampler.sample(jax.random.key(0), 5).shape
            (5, 2)
            >>> round(float(sampler.log_prob(jnp.zeros(2))), 3)
            -1.838
        """
        if not (callable(network) and isinstance(network, Network)):
            raise UsageError(
                "The network must be a module with in_size and out_size that can be "
                f"called with one point, not a {type(network).__name__}."
            )
        target = None if target is None else as_target(target)
        noise_scale = finite("noise_scale", noise_scale)
        if dim is None:
            dim = int(network.out_size) if target is None else target.dim
        structure = Structure.vector(dim) if target is None else target.structure
        symmetry = None if target is None else target.symmetry
        canonical = dim if symmetry is None else symmetry.canonical_dim
        if structure.size != dim or network.out_size not in (dim, canonical):
            raise UsageError(
                f"The network gives {network.out_size} numbers, and there are "
                f"{structure.size if target is not None else dim} coordinates; give "
                "it as many outputs."
            )
        if preconditioner is None:
            preconditioner = Preconditioner.identity(int(network.out_size))
        return Sampler(network, preconditioner, structure, noise_scale, symmetry)

    @property
    def dim(self) -> int:
        """The number of unconstrained coordinates."""
        return self.structure.size

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each coordinate."""
        return self.structure.names

    @property
    def has_density(self) -> bool:
        """Whether `log_prob` and `sample_and_log_prob` are there."""
        return (
            self.why_no_average is None
            and self.noise_scale is None
            and isinstance(self.network, AbstractDensityNetwork)
            and self.network.has_density
        )

    @property
    def _is_canonical(self) -> bool:
        """Whether the network gives canonical coordinates of the group."""
        return self._size != self.dim

    @property
    def _size(self) -> int:
        """How many coordinates the network gives."""
        return self.dim if self.symmetry is None else int(self.network.out_size)

    @property
    def why_no_average(self) -> str | None:
        """Why the average over the group cannot be computed, where it cannot."""
        group = self.symmetry
        if group is None:
            return None
        if not group.can_average:
            return (
                f"is symmetric under {group}, whose {group.finite_size:.3g} elements "
                f"are too many to average over (at most {MAX_ELEMENTS:,} are)"
            )
        if group.rotations is not None and not self._is_canonical:
            return f"is symmetric under {group}, and not in canonical coordinates"
        return None

    def unconstrained(self) -> "Sampler":
        """The same distribution over vectors of unconstrained coordinates."""
        return Sampler(
            self.network,
            self.preconditioner,
            Structure.vector(self.dim, self.names),
            self.noise_scale,
            self.symmetry,
        )

    def coordinates(self, x: Float[Array, " d"]) -> Float[Array, " k"]:
        """The network's coordinates of one point of unconstrained coordinates."""
        if self._is_canonical and self.symmetry is not None:
            x = self.symmetry.canonical(x)
        return self.preconditioner.from_target(x)

    @_method
    def sample(self, key: PRNGKeyArray, shape: Shape = ()) -> Any:
        """Draws from the distribution.

        Args:
            key: random key.
            shape: how many draws, an int or a tuple; () is one draw.

        Returns:
            The user's tree, each array with `shape` in front of its own shape.
        """
        return _sample(self, one_key(key), _shape(shape))

    @_method
    def sample_and_log_prob(
        self, key: PRNGKeyArray, shape: Shape = ()
    ) -> tuple[Any, Float[Array, "*shape"]]:
        """Draws, and the log density of the distribution at each.

        It costs no more than `sample`, and less than `log_prob` of the draws.
        """
        self._require_density("sample_and_log_prob")
        return _sample_and_log_prob(self, one_key(key), _shape(shape))

    @_method
    def log_prob(self, x: Any) -> Float[Array, "*shape"]:
        """The log density of the distribution.

        Args:
            x: the user's tree, each array with the same leading shape (or none) in
                front of its own.

        Returns:
            An array of the leading shape; -inf outside the constraints.
        """
        self._require_density("log_prob")
        return _log_prob(self, x)

    def _require_density(self, name: str) -> None:
        if self.has_density:
            return
        if self.why_no_average is not None:
            raise UsageError(
                f"{name} needs a density, and this sampler {self.why_no_average}: "
                "that of one copy would not be that of the draws."
            )
        reason = "adds noise to its draws"
        if self.noise_scale is None:
            reason = f"has a network ({type(self.network).__name__}) without a density"
        raise UsageError(
            f"{name} needs a sampler whose density is known, and this one {reason}; "
            "train one with methods.Transport(), methods.Flow() or methods.Gaussian()."
        )

    @property
    def block_size(self) -> int:
        """How many draws are made in one pass."""
        return min(BLOCK, max(BLOCK_NUMBERS // self.dim, 1))

    def _latent(self, key: PRNGKeyArray, i: UInt[Array, ""]):
        """The latent numbers of draw `i`, and its noise."""
        size = self.network.in_size
        noise = 0 if self.noise_scale is None else self.network.out_size
        numbers = jax.random.normal(
            jax.random.fold_in(key, i), (size + noise,), NETWORK_DTYPE
        )
        return numbers[:size], numbers[size:]

    def _place(
        self, z: Float[Array, " i"], noise: Float[Array, " e"]
    ) -> Float[Array, " d"]:
        """The unconstrained coordinates of a latent point."""
        u = self.network(z)
        if self.noise_scale is not None:
            u = u + self.noise_scale.astype(noise.dtype) * noise
        # Networks may compute as they like, coordinates may not.
        with jax.default_matmul_precision("highest"):
            return self.preconditioner.to_target(widen(u))

    def _moved(
        self, key: PRNGKeyArray, i: UInt[Array, ""], x: Float[Array, " k"]
    ) -> Float[Array, " d"]:
        """A point of one copy, moved by the group's element for draw `i`."""
        if self.symmetry is None:
            return x
        if self._is_canonical:
            x = self.symmetry.section(x)
        at = jax.random.fold_in(jax.random.fold_in(key, i), _ELEMENT)
        return self.symmetry.move_randomly(at, x)

    def _draw(self, key: PRNGKeyArray, i: UInt[Array, ""]) -> Any:
        x = self._place(*self._latent(key, i))
        return self.structure.unflatten(self._moved(key, i, x))

    def _draw_with_log_prob(self, key: PRNGKeyArray, i: UInt[Array, ""]):
        z, _ = self._latent(key, i)
        if self.symmetry is not None:
            # Which copies reach a point is known from the point alone.
            none = jnp.zeros(0, NETWORK_DTYPE)
            x = self._moved(key, i, self._place(z, none))
            return self.structure.unflatten(x), self._log_prob_at(x)
        # As exact as `log_prob`, which undoes each layer.
        with jax.default_matmul_precision("highest"):
            u, log_p = self.network.with_log_density(z)
            u, log_p = widen(u), widen(log_p)
            x = self.preconditioner.to_target(u)
            log_p = log_p - self.preconditioner.log_det(u)
        return self.structure.unflatten(x), log_p - self.structure.log_det(x)

    def _log_prob(self, tree: Any) -> Float[Array, ""]:
        """The log density at one point."""
        inside = self.structure.contains(tree)
        # Outside, a point that is inside takes its place: derivatives are 0, not nan.
        safe = self.structure.unflatten(jnp.zeros(self.dim))
        tree = jax.tree.map(lambda a, b: jnp.where(inside, a, b), tree, safe)
        log_p = self._log_prob_at(self.structure.flatten(tree))
        return jnp.where(inside, log_p, -jnp.inf)

    def _log_prob_at(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The log density of the parameters at one point, unconstrained."""
        if self.symmetry is None:
            log_p = self._log_prob_of_copy(x)
        else:
            log_p = self.symmetry.average(self._log_prob_of_copy, x)
        return log_p - self.structure.log_det(x)

    def _log_prob_of_copy(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The log density of points that no element of a finite group has moved."""
        volume = jnp.zeros((), x.dtype)
        if self._is_canonical and self.symmetry is not None:
            x = self.symmetry.canonical(x)
            volume = self.symmetry.log_volume(x)
        with jax.default_matmul_precision("highest"):
            u = self.preconditioner.from_target(x)
            log_p = widen(self.network.log_density(narrow(u)))
            return log_p - self.preconditioner.log_det(u) - volume

    def iter_batches(
        self, key: PRNGKeyArray, n: int, size: int | None = None
    ) -> Iterator[Any]:
        """The draws of `sample(key, n)`, `size` at a time, as NumPy arrays.

        Args:
            key: random key.
            n: how many draws there are in all.
            size: how many come at once; chosen here if None. The last may be fewer.
        """
        key, shape = one_key(key), _shape(n)
        if len(shape) != 1:
            raise UsageError(f"n must be a whole number of at least 0, not {shown(n)}.")
        (n,) = shape
        size = self.block_size if size is None else whole_number("size", size)
        size = min(size, n)
        return self._iter_batches(key, n, size)

    def _iter_batches(self, key, n: int, size: int) -> Iterator[Any]:
        starts = range(0, n, size) if n else ()
        ahead = _slice(self, key, _index(0), size) if n else None
        for start in starts:
            # The next ones are computed while these are copied out.
            current, ahead = ahead, None
            if start + size < n:
                ahead = _slice(self, key, _index(start + size), size)
            keep = min(size, n - start)
            yield jax.tree.map(lambda a, keep=keep: np.asarray(a)[:keep], current)

    def stream(
        self, key: PRNGKeyArray, n: int, path: str | Path, *, progress: bool = False
    ) -> Path:
        """Writes the draws of `sample(key, n)` to a file, in the format of its ending.

        Memory does not grow with `n`. The file appears under its name only when it is
        complete. `.npz`, `.h5` and `.zarr` have an array per leaf of the tree; `.npy`,
        `.csv` and `.parquet` hold one table. `pushforward.read_draws` reads them all.

        Args:
            key: random key.
            n: how many draws.
            path: the file.
            progress: show on stderr how far it is.

        Returns:
            `path`.
        """
        batches = self.iter_batches(key, n)
        return write_draws(Path(path), self.structure, n, batches, progress=progress)

    def export(self, path: str | Path, *, log_prob: bool = False) -> Path:
        """Writes the sampler as a program that needs JAX (and flatbuffers) alone.

        Where pushforward is not installed:

            program = jax.export.deserialize(open(path, "rb").read())
            numbers = jax.numpy.arange(1000, dtype="uint32")
            draws = program.call(jax.random.key_data(key), numbers)

        gives `sample(key, 1000)`. Draws that are not wanted are left out: other numbers
        are other draws of the same key. It runs on CPUs, GPUs and TPUs.

        Args:
            path: the file.
            log_prob: the program returns `(draws, log_prob)`, as `sample_and_log_prob`
                does.

        Returns:
            `path`.
        """
        path = Path(path)
        if log_prob:
            self._require_density("export(log_prob=True)")
        if self.structure.to_json()["tree"] is None:
            raise UsageError(
                "The parameters are a tree of your own classes, which an exported "
                "program cannot hold; export sampler.unconstrained()."
            )
        draw = self._draw_with_log_prob if log_prob else self._draw

        def program(key_data, numbers):
            key = jax.random.wrap_key_data(key_data)
            return jax.vmap(lambda i: draw(key, i))(numbers)

        key_data = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
        (n,) = jax.export.symbolic_shape("n")
        numbers = jax.ShapeDtypeStruct((n,), jnp.uint32)
        exported = jax.export.export(jax.jit(program), platforms=_PLATFORMS)(
            key_data, numbers
        )
        try:
            data = bytes(exported.serialize())
        except ImportError as error:
            raise MissingDependencyError(
                "export needs the package flatbuffers, as does the program that reads "
                "the file; install it with pip install 'pushforward[export]'."
            ) from error
        _files.write_bytes(path, data)
        return path

    def arrays(self) -> dict[str, Any]:
        """Every array, by its name in a file."""
        noise = {} if self.noise_scale is None else {"noise_scale": self.noise_scale}
        return {
            **noise,
            **_io.with_prefix("preconditioner", self.preconditioner.arrays()),
            **_io.with_prefix("network", arrays_of(self.network)),
        }

    def save(self, path: str | Path, dtype: Literal["bfloat16"] | None = None) -> Path:
        """Writes the sampler to one file, which `load` reads.

        Args:
            path: the file.
            dtype: "bfloat16" stores the network's matrices in half the space.

        Returns:
            `path`.
        """
        path = Path(path)
        arrays = {name: np.asarray(a) for name, a in self.arrays().items()}
        _require_finite("sampler", arrays)
        header: dict[str, Any] = {
            "network": describe(self.network),
            "structure": self.structure.to_json(),
        }
        if self.symmetry is not None:
            header["symmetry"] = self.symmetry.to_json()
        plain = _io.with_prefix("preconditioner", _identity(self._size))
        same = all(np.array_equal(arrays[name], plain[name]) for name in plain)
        if same and self._size <= IDENTITY:
            # For an image it would be larger than the network.
            header["preconditioner"] = "none"
            arrays = {k: v for k, v in arrays.items() if k not in plain}
        _io.write(path, SAMPLER, header, _stored_as(dtype, arrays))
        return path

    def __repr__(self) -> str:
        arrays = jax.tree.leaves(eqx.filter(self.network, eqx.is_array))
        noise = "" if self.noise_scale is None else " and noise"
        known = "known" if self.has_density else "not known"
        group = "" if self.symmetry is None else f"\n  the same under {self.symmetry}"
        return (
            f"Sampler of {self.structure}{group}\n"
            f"  by {type(self.network).__name__} with "
            f"{sum(a.size for a in arrays):,} numbers{noise}; density {known}"
        )


@eqx.filter_jit
def _sample(sampler: Sampler, key: PRNGKeyArray, shape: tuple[int, ...]):
    return _for_each(sampler, shape, lambda i: sampler._draw(key, i))


@eqx.filter_jit
def _sample_and_log_prob(sampler: Sampler, key: PRNGKeyArray, shape: tuple[int, ...]):
    return _for_each(sampler, shape, lambda i: sampler._draw_with_log_prob(key, i))


@eqx.filter_jit
def _slice(sampler: Sampler, key: PRNGKeyArray, start: UInt[Array, ""], size: int):
    """The draws from number `start` on."""
    indices = start + jnp.arange(size, dtype=jnp.uint32)
    return jax.vmap(lambda i: sampler._draw(key, i))(indices)


@eqx.filter_jit
def _log_prob(sampler: Sampler, x: Any):
    x, shape = sampler.structure.batched(x)
    flat = jax.tree.map(lambda a: a.reshape(-1, *a.shape[len(shape) :]), x)
    if math.prod(shape) <= sampler.block_size:
        log_p = jax.vmap(sampler._log_prob)(flat)
    else:
        log_p = jax.lax.map(sampler._log_prob, flat, batch_size=sampler.block_size)
    return log_p.reshape(shape)


def _for_each(sampler: Sampler, shape: tuple[int, ...], function: Callable) -> Any:
    """`function` at the indices of as many draws, a block at a time."""
    n = math.prod(shape)
    count = max(-(-n // sampler.block_size), 1)
    # Blocks of one size, the smallest that will do: one program, and little in vain.
    size = -(-n // count)
    indices = jnp.arange(size, dtype=jnp.uint32)
    if count == 1:
        draws = jax.vmap(function)(indices)
    else:
        starts = jnp.arange(count, dtype=jnp.uint32) * np.uint32(size)
        blocks = jax.lax.map(lambda s: jax.vmap(function)(s + indices), starts)
        draws = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:n], blocks)
    return jax.tree.map(lambda a: a.reshape(*shape, *a.shape[1:]), draws)


def _index(i: int) -> UInt[Array, ""]:
    # An array, not a Python number: a number would be compiled in.
    return jnp.asarray(i, jnp.uint32)


def _shape(shape: Any) -> tuple[int, ...]:
    sizes = shape if isinstance(shape, tuple | list) else (shape,)
    for size in sizes:
        if not isinstance(size, int | np.integer) or size < 0:
            raise UsageError(
                "The number of draws must be a whole number of at least 0, or a tuple "
                f"of them, not {shown(shape)}."
            )
    if math.prod(map(int, sizes)) > MOST:
        raise UsageError(
            f"One key gives at most {MOST:,} draws, not {shown(shape)}; use several "
            "keys."
        )
    return tuple(int(size) for size in sizes)


def arrays_of(network: Any) -> dict[str, Any]:
    """The arrays of a network by name; those of classes unknown here, by path."""
    if isinstance(network, AbstractStoredNetwork):
        return network.arrays()
    return _io.by_path(network)


def _identity(dim: int) -> Arrays:
    """The arrays of a preconditioner that changes nothing."""
    identity = Preconditioner.identity(dim).arrays()
    return {name: np.asarray(a) for name, a in identity.items()}


def _require_finite(what: str, arrays: Arrays) -> None:
    """Refuses to write what `load` would refuse to read."""
    for name, array in arrays.items():
        floats = jnp.issubdtype(array.dtype, jnp.inexact)
        if floats and not np.isfinite(array).all():
            raise UsageError(
                f"The {what} holds numbers that are not finite, in {name!r}, and "
                "was not written; train again."
            )


def _stored_as(dtype: str | None, arrays: Arrays) -> Arrays:
    """A network's matrices in `dtype`; its vectors are small and stay as they are."""
    if dtype is None:
        return arrays
    if dtype != "bfloat16":
        raise UsageError(f"dtype must be None or 'bfloat16', not {dtype!r}.")
    return {
        k: v.astype(jnp.bfloat16)
        if v.ndim > 1 and not k.startswith("preconditioner.")
        else v
        for k, v in arrays.items()
    }


def load(
    path: str | Path, like: Sampler | Network | AbstractTarget | None = None
) -> Sampler:
    """Reads a sampler from a file of `Sampler.save`, or from a run directory.

    Args:
        path: the file, or a directory that `fit(..., out=)` wrote.
        like: what a file cannot hold. Needed where the class of the network is not
            known to files (`networks.register`): a network, or a sampler with one, of
            the same sizes. Needed where the parameters are a tree of one's own classes:
            the target, or a sampler of such parameters.
    """
    path = Path(path)
    _files.require_name(path)
    if path.is_dir():
        _files.require_name(path / "sampler.safetensors")
        if not (path / "sampler.safetensors").exists():
            raise FileError(
                f"There is no finished run in {path}; finish it with fit(..., "
                "resume=True), or name the file of a sampler."
            )
        path = path / "sampler.safetensors"
    header, arrays = _io.read(path, SAMPLER)
    network: Any = like.network if isinstance(like, Sampler) else like
    if isinstance(like, AbstractTarget):
        network = None
    structure = None
    if isinstance(like, Sampler | AbstractTarget):
        structure = like.structure
    try:
        structure = _read_structure(path, header["structure"], structure)
        network = _skeleton(path, header["network"], arrays, network)
        symmetry = header.get("symmetry")
        if symmetry is not None:
            symmetry = _read_symmetry(symmetry, structure)
        sizes = {structure.size}
        if symmetry is not None:
            sizes.add(symmetry.canonical_dim)
        if network.out_size not in sizes:
            raise FileError(
                f"{path} is damaged: its network has {network.out_size} outputs for "
                f"{structure.size} coordinates."
            )
        size = int(network.out_size)
        if header.get("preconditioner") == "none":
            if size > IDENTITY:
                raise FileError(
                    f"{path} is damaged: in {structure.size} dimensions it must hold a "
                    "preconditioner."
                )
            # Of the network's size only once its own arrays have been compared.
            _compare(path, network, arrays)
            arrays |= _io.with_prefix("preconditioner", _identity(size))
        preconditioner = eqx.filter_eval_shape(Preconditioner.identity, size)
        noise = jax.ShapeDtypeStruct((), jnp.result_type(float))
        skeleton = eqx.tree_at(
            lambda s: s.noise_scale,
            Sampler(network, preconditioner, structure, symmetry=symmetry),
            noise if "noise_scale" in arrays else None,
            is_leaf=lambda x: x is None,
        )
    except _io.MALFORMED as error:
        raise FileError(
            f"{path} is not a sampler file this version can read ({error!r})."
        ) from error
    names: Any = Sampler.arrays
    return _io.restore(skeleton, arrays, path, names, finite=True)


def _read_structure(path: Path, stored: Any, own: Structure | None) -> Structure:
    structure = Structure.from_json(stored) if own is None else own
    if structure.to_json()["leaves"] != stored["leaves"]:
        raise FileError(
            f"{path} holds a sampler for other parameters than those of `like`; name "
            "the target that it was trained for."
        )
    return structure


def _read_symmetry(stored: Any, structure: Structure) -> Action:
    try:
        return symmetries.from_json(stored).bind(structure)
    except UsageError as error:
        raise FileError(
            f"The file's symmetry does not fit its parameters: {error}"
        ) from error


# Arguments of networks that count layers, and how many there may be.
_COUNTS, _LAYERS = ("depth", "layers"), 1000


def _skeleton(path: Path, description: Any, arrays: Arrays, like: Any) -> Any:
    """The shapes of a network, from its description or from one like it."""
    if like is not None:
        return _io.shapes(like)
    if isinstance(description, dict) and "class" in description:
        raise FileError(
            f"{path} holds a network of the class {description['class']!r}, which is "
            "not part of pushforward; pass a network of that class and of the same "
            "sizes as load(path, like=network)."
        )
    # No number in the description of a network exceeds that of its weights; what is
    # built layer by layer has few.
    weights = sum(a.size for a in arrays.values())
    for name, value in description.items() if isinstance(description, dict) else ():
        most = min(weights, _LAYERS) if name in _COUNTS else weights
        if isinstance(value, int) and not -1 <= value <= max(most, 1):
            raise FileError(
                f"{path} is damaged: its network has {name}={value}, which does not "
                f"fit the {weights} numbers of the file."
            )
    return build(description)


def _compare(path: Path, network: Any, arrays: Arrays) -> None:
    """Refuses a file whose network is not of the shapes in its description."""
    prefix = "network."
    own = {k[len(prefix) :]: v for k, v in arrays.items() if k.startswith(prefix)}
    _io.restore(network, own, path, arrays_of)


def save_network(
    path: str | Path,
    network: AbstractNetwork,
    dtype: Literal["bfloat16"] | None = None,
) -> Path:
    """Writes a network alone to one file, which `load_network` reads.

    With `dtype="bfloat16"` its matrices take half the space.
    """
    path = Path(path)
    arrays = {name: np.asarray(a) for name, a in arrays_of(network).items()}
    _require_finite("network", arrays)
    header = {"network": describe(network)}
    _io.write(path, NETWORK, header, _stored_as(dtype, arrays))
    return path


def load_network(path: str | Path, like: Any = None) -> Any:
    """Reads a network from a file of `save_network`.

    A network that is not of `pushforward.networks` needs `like`, one of the same sizes.
    """
    path = Path(path)
    header, arrays = _io.read(path, NETWORK)
    skeleton = _skeleton(path, header.get("network"), arrays, like)
    return _io.restore(skeleton, arrays, path, arrays_of, finite=True)


# The networks of version 1 that have got names of their own for their arrays.
_DOTTED = (
    "AffineMap",
    "CouplingMap",
    "FlowMap",
    "MLP",
    "MixtureMap",
    "ResidualMap",
    "ScoreMLP",
)


def _upgrade_network_1(
    header: dict[str, Any], arrays: Arrays
) -> tuple[dict[str, Any], Arrays]:
    """Version 1 named arrays by their paths: `.layers[0].weight`."""
    dotted = header["network"]["kind"] in _DOTTED
    arrays = {_new_name(k, dotted=dotted): v for k, v in arrays.items()}
    if header["network"]["kind"] == "FlowMap":
        return _as_coupling_map(header, arrays)
    return header, arrays


def _as_coupling_map(
    header: dict[str, Any], arrays: Arrays
) -> tuple[dict[str, Any], Arrays]:
    """A flow of version 1, which flipped the coordinates after each layer.

    Without the flips its layers keep the first coordinates and the last in turn. Where
    their number is odd the latent numbers are in the opposite order.
    """
    network = {**header["network"], "kind": "CouplingMap", "halves": "alternating"}
    dim, layers = network["in_size"], network["layers"]
    names = sorted(
        (name for name in arrays if re.search(r"weights\.\d+$", name)),
        key=lambda name: int(name.rpartition(".")[2]),
    )
    first, last, bias = names[0], names[-2], names[-1]
    if not 2 <= dim <= arrays[bias].size:
        raise ValueError(f"in_size={dim}")
    # Before anything is made of these sizes.
    if arrays[first].shape[::2] != (layers, dim // 2) or arrays[last].ndim < 2:
        raise ValueError(f"layers={layers}, in_size={dim}")
    kept, changed = np.arange(dim // 2), np.arange(dim // 2, dim)
    arrays = dict(arrays)
    # It saw the kept half alone, and gave a shift and a scale for each of the others.
    inputs = np.zeros((*arrays[first].shape[:2], dim), arrays[first].dtype)
    for i in range(layers):
        inputs[i][:, _flipped(kept, i, layers, dim)] = arrays[first][i]
    arrays[first] = inputs
    for name in (last, bias):
        rest = arrays[name].shape[2:]
        outputs = np.zeros((layers, 2 * dim, *rest), arrays[name].dtype)
        pairs = arrays[name].reshape(layers, dim - dim // 2, 2, *rest)
        for i in range(layers):
            places = _flipped(changed, i, layers, dim)
            outputs[i, places] = pairs[i, :, 1]
            outputs[i, dim + places] = pairs[i, :, 0]
        arrays[name] = outputs
    return {**header, "network": network}, arrays


def _flipped(places: np.ndarray, i: int, layers: int, dim: int) -> np.ndarray:
    return places if (layers - i) % 2 == 0 else dim - 1 - places


def _new_name(name: str, *, dotted: bool) -> str:
    name = name.removeprefix(".")
    return re.sub(r"\[(\d+)\]", r".\1", name) if dotted else name


def _upgrade_sampler_1(
    header: dict[str, Any], arrays: Arrays
) -> tuple[dict[str, Any], Arrays]:
    """Version 1 called the preconditioner a whitening, and stored a noise of 0."""
    header, arrays = _upgrade_network_1(header, arrays)
    header = dict(header)
    if header.pop("whitening", None) == "none":
        header["preconditioner"] = "none"
    arrays = {
        re.sub(r"^whitening\.", "preconditioner.", name): value
        for name, value in arrays.items()
    }
    if arrays["noise_scale"] == 0:
        del arrays["noise_scale"]
    return header, arrays


def _upgrade_sampler_2(
    header: dict[str, Any], arrays: Arrays
) -> tuple[dict[str, Any], Arrays]:
    """Version 2 knew no symmetry."""
    return {k: v for k, v in header.items() if k != "symmetry"}, arrays


SAMPLER = _io.Format("sampler", 3, {1: _upgrade_sampler_1, 2: _upgrade_sampler_2})
NETWORK = _io.Format("network", 2, {1: _upgrade_network_1})
