"""From the user's tree of parameters to a flat vector and back."""

import dataclasses
import difflib
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pushforward.errors import FileError, UsageError
from pushforward.targets.constraints import Constraint

_FREE = Constraint()


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array of the user's tree."""

    name: str
    shape: tuple[int, ...]
    constraint: Constraint = _FREE

    @property
    def free_shape(self) -> tuple[int, ...]:
        """Its shape in unconstrained coordinates."""
        return self.constraint.free_shape(self.shape)

    @property
    def size(self) -> int:
        """How many coordinates of the flat vector it takes."""
        return math.prod(self.free_shape)

    def coordinate_names(self) -> list[str]:
        """A name for each of its coordinates: `tau`, `theta[3]`."""
        indices = np.ndindex(*self.free_shape)
        label = self.name or "x"
        return [f"{label}[{','.join(map(str, i))}]" if i else label for i in indices]


def path_name(path: tuple[Any, ...]) -> str:
    """The name of a parameter inside others: theirs and its own, with dots between."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


@dataclasses.dataclass(frozen=True)
class Structure:
    """The shapes, names and constraints of a tree of parameters; hashable."""

    treedef: Any
    leaves: tuple[Leaf, ...]
    own_names: tuple[str, ...] | None = None

    @staticmethod
    def vector(dim: int, names: tuple[str, ...] | None = None) -> "Structure":
        """A bare vector of `dim` coordinates."""
        if not isinstance(dim, int | np.integer) or dim < 1:
            raise UsageError(f"dim must be a whole number of at least 1, not {dim!r}.")
        if names is not None and len(names) != dim:
            raise UsageError(
                f"names holds {len(names)} names but the density has {dim} coordinates."
            )
        treedef = jax.tree.structure(0)
        own = None if names is None else tuple(names)
        return Structure(treedef, (Leaf("", (int(dim),)),), own)

    @staticmethod
    def of(example: Any, constraints: Mapping[str, str] | None = None) -> "Structure":
        """The structure of a tree, with a constraint for some of its leaves."""
        paths, treedef = jax.tree_util.tree_flatten_with_path(example)
        names = [path_name(path) for path, _ in paths]
        constraints = dict(constraints or {})
        if len(set(names)) < len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise UsageError(
                f"Two parameters of example would be called {twice!r}; rename one."
            )
        for name in constraints:
            if name not in names:
                inside = [n for n in names if n.startswith(f"{name}.")]
                if inside:
                    raise UsageError(
                        f"There is a constraint on {name!r}, which is a group of "
                        f"parameters; name them one by one, such as {inside[0]!r}."
                    )
                near = difflib.get_close_matches(name, names, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"it has {names}."
                raise UsageError(
                    f"There is a constraint on {name!r}, which example lacks; {hint}"
                )
        leaves = []
        for name, (_, value) in zip(names, paths, strict=True):
            constraint = Constraint.parse(constraints.get(name, "real"), repr(name))
            leaf = Leaf(name, np.shape(value), constraint)
            if constraint.kind in ("simplex", "ordered") and (
                not leaf.shape or leaf.shape[-1] < 2
            ):
                raise UsageError(
                    f"The constraint '{constraint}' on {name!r} needs a vector of at "
                    f"least two numbers, and example gives the shape {leaf.shape}."
                )
            leaves.append(leaf)
        structure = Structure(treedef, tuple(leaves))
        if structure.size == 0:
            raise UsageError("example holds no numbers, so there is nothing to sample.")
        return structure

    @property
    def size(self) -> int:
        """The dimension of the flat, unconstrained vector."""
        return sum(leaf.size for leaf in self.leaves)

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each coordinate of the flat vector."""
        if self.own_names is not None:
            return self.own_names
        return tuple(n for leaf in self.leaves for n in leaf.coordinate_names())

    def _split(self, u: Float[Array, " d"]) -> list[Float[Array, "..."]]:
        ends = np.cumsum([leaf.size for leaf in self.leaves])[:-1]
        parts = jnp.split(u, ends)
        return [
            part.reshape(leaf.free_shape)
            for part, leaf in zip(parts, self.leaves, strict=True)
        ]

    def unflatten(self, u: Float[Array, " d"]) -> Any:
        """The user's (constrained) tree for the unconstrained vector `u`."""
        parts = zip(self._split(u), self.leaves, strict=True)
        values = [leaf.constraint.constrain(part) for part, leaf in parts]
        return jax.tree.unflatten(self.treedef, values)

    def flatten(self, tree: Any) -> Float[Array, " d"]:
        """The unconstrained vector of the user's tree (inverse of `unflatten`)."""
        values = jax.tree.leaves(tree)
        parts = zip(values, self.leaves, strict=True)
        return jnp.concatenate(
            [
                jnp.ravel(leaf.constraint.free(jnp.asarray(v, float)))
                for v, leaf in parts
            ]
        )

    def log_det(self, u: Float[Array, " d"]) -> Float[Array, ""]:
        """The log-determinant of the Jacobian of `unflatten` at `u`."""
        parts = zip(self._split(u), self.leaves, strict=True)
        return sum(
            (leaf.constraint.log_det(part) for part, leaf in parts),
            jnp.zeros((), u.dtype),
        )

    def flatten_draws(self, draws: Any) -> Float[Array, "n d"]:
        """Many draws, a tree with a leading axis n, as an n by d array."""
        if jax.tree.structure(draws) != self.treedef:
            raise UsageError(
                f"The draws have the structure {jax.tree.structure(draws)}, but the "
                f"target's parameters have {self.treedef}."
            )
        for leaf, value in zip(self.leaves, jax.tree.leaves(draws), strict=True):
            if np.shape(value)[1:] != leaf.shape or not np.ndim(value):
                what = f"The draws of {leaf.name!r}" if leaf.name else "The draws"
                raise UsageError(
                    f"{what} have the shape {np.shape(value)}, but the target needs "
                    f"(n, {', '.join(map(str, leaf.shape))})."
                )
        draws = jax.tree.map(lambda a: jnp.asarray(a, float), draws)
        return jax.vmap(self.flatten)(draws)

    def to_json(self) -> dict[str, Any]:
        """Plain names and numbers; `tree` is None where the tree has other nodes."""
        indices = jax.tree.unflatten(self.treedef, range(len(self.leaves)))
        tree = _encode(indices)
        return {
            "tree": tree,
            "names": None if self.own_names is None else list(self.own_names),
            "leaves": [
                {
                    "name": leaf.name,
                    "shape": list(leaf.shape),
                    "constraint": str(leaf.constraint),
                }
                for leaf in self.leaves
            ],
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> "Structure":
        """Inverse of `to_json`."""
        if data["tree"] is None:
            raise FileError(
                "This sampler's parameters are a tree of the author's own classes, "
                "which a file cannot hold; pass the target as load(path, target=...)."
            )
        try:
            leaves = tuple(
                Leaf(
                    str(leaf["name"]),
                    tuple(int(s) for s in leaf["shape"]),
                    Constraint.parse(leaf["constraint"]),
                )
                for leaf in data["leaves"]
            )
            treedef = jax.tree.structure(_decode(data["tree"]))
            names = None if data["names"] is None else tuple(map(str, data["names"]))
            structure = Structure(treedef, leaves, names)
            size = structure.size
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise FileError(
                f"The file's description of its parameters is damaged ({error!r})."
            ) from error
        if not (
            treedef.num_leaves == len(leaves)
            and size > 0
            and (names is None or len(names) == size)
        ):
            raise FileError(
                "The file's description of its parameters is damaged: its parts do not "
                "fit together."
            )
        return structure


def _encode(node: Any) -> Any:
    """Dicts, lists and tuples as JSON; None where anything else is met."""
    if isinstance(node, int):
        return {"leaf": node}
    if type(node) is dict and all(isinstance(k, str) for k in node):
        inner = {k: _encode(v) for k, v in node.items()}
        return None if None in inner.values() else {"dict": inner}
    if type(node) in (list, tuple):
        items = [_encode(v) for v in node]
        return None if None in items else {type(node).__name__: items}
    return None


def _decode(node: Any) -> Any:
    ((kind, value),) = node.items()
    if kind == "leaf":
        return int(value)
    if kind == "dict":
        return {k: _decode(v) for k, v in value.items()}
    return {"list": list, "tuple": tuple}[kind](_decode(v) for v in value)
