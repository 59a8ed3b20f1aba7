"""From the user's tree of parameters to a flat vector and back."""

import dataclasses
import difflib
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from pushforward._text import is_text, printable
from pushforward._validate import whole_number
from pushforward.errors import FileError, UsageError
from pushforward.targets.constraints import Constraint

_FREE = Constraint()
# How many parameters are named in one line.
_SHOWN = 6


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

    def __str__(self) -> str:
        shape = f"[{','.join(map(str, self.shape))}]" if self.shape else ""
        constraint = "" if self.constraint.is_linear else f" {self.constraint}"
        return f"{self.name or 'x'}{shape}{constraint}"

    def coordinate_names(self) -> list[str]:
        """A name for each of its coordinates: `tau`, `theta[3]`."""
        indices = np.ndindex(*self.free_shape)
        label = self.name or "x"
        return [f"{label}[{','.join(map(str, i))}]" if i else label for i in indices]


def _leaf(name: str, shape: tuple[int, ...], constraint: Constraint) -> Leaf:
    """A leaf that the constraint fits."""
    _require_text(name)
    where = f" on {name!r}" if name else ""
    kind = constraint.bijection
    if kind.coordinates is not None:
        if len(shape) < 2 or shape[-1] != shape[-2] or shape[-1] < kind.least:
            raise UsageError(
                f"The constraint '{constraint}'{where} needs a square matrix of at "
                f"least {kind.least} rows, and its shape is {shape}."
            )
    elif kind.least and (not shape or shape[kind.axis] < kind.least):
        raise UsageError(
            f"The constraint '{constraint}'{where} needs a vector of at least "
            f"{kind.least} numbers, and its shape is {shape}."
        )
    bounds = constraint.bounds_shape
    try:
        fits = np.broadcast_shapes(bounds, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise UsageError(
            f"The constraint '{constraint.kind}'{where} has bounds of the shape "
            f"{bounds}, and the parameter has {shape}; give a bound for each number."
        )
    return Leaf(name, shape, constraint)


def _require_text(name: str) -> None:
    """Refuses a name that no file can hold."""
    if not is_text(name):
        raise UsageError(
            f"The name {name!r} of a parameter cannot be written to a file; choose "
            "another one."
        )


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
    def vector(
        dim: int,
        names: tuple[str, ...] | None = None,
        constraints: str | Constraint | Mapping[str, str | Constraint] | None = None,
    ) -> "Structure":
        """A bare vector of `dim` numbers, all under one constraint."""
        dim = whole_number("dim", dim, most=2**31 - 1)
        if isinstance(constraints, Mapping):
            raise UsageError(
                "A vector (dim=) has one constraint for all of its numbers, such as "
                "constraints='positive'; for constraints by name give example=, a dict "
                "such as {'a': 0.0, 'b': jnp.zeros(3)}."
            )
        given = "real" if constraints is None else constraints
        leaf = _leaf("", (dim,), Constraint.of(given, "the vector"))
        if names is not None and len(names) != leaf.size:
            raise UsageError(
                f"names holds {len(names)} names but the density has {leaf.size} "
                "coordinates."
            )
        treedef = jax.tree.structure(0)
        own = None if names is None else tuple(names)
        for name in own or ():
            _require_text(name)
        return Structure(treedef, (leaf,), own)

    @staticmethod
    def of(
        example: Any,
        constraints: str | Constraint | Mapping[str, str | Constraint] | None = None,
    ) -> "Structure":
        """The structure of a tree, with a constraint for some of its leaves."""
        paths, treedef = jax.tree_util.tree_flatten_with_path(example)
        names = [path_name(path) for path, _ in paths]
        if isinstance(constraints, str | Constraint):
            if names != [""]:
                raise UsageError(
                    "A single constraint is for parameters that are one array; for a "
                    f"tree give constraints by name, such as {{{names[0]!r}: "
                    f"{str(constraints)!r}}}."
                )
            constraints = {"": constraints}
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
            constraint = Constraint.of(constraints.get(name, "real"), repr(name))
            leaves.append(_leaf(name, np.shape(value), constraint))
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

    def split(self, u: Float[Array, " d"]) -> list[Float[Array, "..."]]:
        """The unconstrained coordinates of each array, in its free shape."""
        ends = np.cumsum([leaf.size for leaf in self.leaves])[:-1]
        parts = jnp.split(u, ends)
        return [
            part.reshape(leaf.free_shape)
            for part, leaf in zip(parts, self.leaves, strict=True)
        ]

    def unflatten(self, u: Float[Array, " d"]) -> Any:
        """The user's (constrained) tree for the unconstrained vector `u`."""
        parts = zip(self.split(u), self.leaves, strict=True)
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

    def contains(self, tree: Any) -> Bool[Array, ""]:
        """Whether every parameter of a tree is strictly inside its bounds."""
        values = zip(jax.tree.leaves(tree), self.leaves, strict=True)
        inside = [leaf.constraint.contains(jnp.asarray(v, float)) for v, leaf in values]
        return jnp.all(jnp.stack(inside))

    def log_det(self, u: Float[Array, " d"]) -> Float[Array, ""]:
        """The log-determinant of the Jacobian of `unflatten` at `u`."""
        parts = zip(self.split(u), self.leaves, strict=True)
        return sum(
            (leaf.constraint.log_det(part) for part, leaf in parts),
            jnp.zeros((), u.dtype),
        )

    def shapes(self) -> Any:
        """The user's tree, with the shape of each parameter in its place."""
        floats = [jax.ShapeDtypeStruct(leaf.shape, np.float32) for leaf in self.leaves]
        return jax.tree.unflatten(self.treedef, floats)

    def pull_back(self, score: Any, u: Float[Array, " d"]) -> Float[Array, " d"]:
        """The score of the unconstrained vector from that of the user's tree.

        With `x = unflatten(u)` and its Jacobian J: `J' score + grad log_det(u)`.

        Args:
            score: a tree like the parameters, the gradient at `x`.
            u: the unconstrained vector.
        """
        if self.is_linear:
            if self.is_vector:
                return score
            parts = [jnp.ravel(jnp.asarray(s, u.dtype)) for s in jax.tree.leaves(score)]
            return jnp.concatenate(parts)
        tree, transpose = jax.vjp(self.unflatten, u)
        like = jax.tree.map(lambda s, x: jnp.asarray(s, x.dtype), score, tree)
        return transpose(like)[0] + jax.grad(self.log_det)(u)

    @property
    def is_linear(self) -> bool:
        """Whether no parameter is constrained."""
        return all(leaf.constraint.is_linear for leaf in self.leaves)

    @property
    def is_vector(self) -> bool:
        """Whether the parameters are one array without a name."""
        return len(self.leaves) == 1 and not self.leaves[0].name

    def __str__(self) -> str:
        shown = [str(leaf) for leaf in self.leaves[:_SHOWN]]
        if self.own_names is not None:
            shown = list(self.own_names[:_SHOWN])
        elif self.is_vector and self.leaves[0].constraint.is_linear:
            shown = []
        total = len(self.own_names or self.leaves)
        shown += ["..."] if total > _SHOWN else []
        inner = f" ({printable(', '.join(shown))})" if shown else ""
        return f"{self.size} coordinates{inner}"

    def batched(self, tree: Any) -> tuple[Any, tuple[int, ...]]:
        """A tree of points as arrays of floats, and the leading shape they share."""
        self._check_tree(tree)
        try:
            tree = jax.tree.map(lambda a: jnp.asarray(a, float), tree)
        except (TypeError, ValueError) as error:
            raise UsageError(f"The points must be numbers ({error}).") from error
        leading = None
        for leaf, value in zip(self.leaves, jax.tree.leaves(tree), strict=True):
            cut = value.ndim - len(leaf.shape)
            what = f"The array {leaf.name!r}" if leaf.name else "The array"
            if cut < 0 or value.shape[cut:] != leaf.shape:
                raise UsageError(
                    f"{what} has the shape {value.shape}, which does not end in "
                    f"{leaf.shape}, the shape of one point."
                )
            if leading is not None and value.shape[:cut] != leading:
                raise UsageError(
                    f"{what} has the leading shape {value.shape[:cut]}, and those "
                    f"before it have {leading}; all arrays need the same."
                )
            leading = value.shape[:cut]
        assert leading is not None
        return tree, leading

    def _check_tree(self, tree: Any) -> None:
        if jax.tree.structure(tree) != self.treedef:
            raise UsageError(
                f"The draws have the structure {jax.tree.structure(tree)}, but the "
                f"target's parameters have {self.treedef}."
            )

    def flatten_draws(self, draws: Any) -> Float[Array, "n d"]:
        """Many draws, a tree with a leading axis n, as an n by d array."""
        self._check_tree(draws)
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
                "which a file cannot hold; pass the target as load(path, like=target)."
            )
        try:
            leaves = tuple(
                _leaf(
                    _name(leaf["name"]),
                    tuple(_length(s) for s in leaf["shape"]),
                    Constraint.parse(leaf["constraint"]),
                )
                for leaf in data["leaves"]
            )
            treedef = jax.tree.structure(_decode(data["tree"]))
            names = None if data["names"] is None else tuple(map(_name, data["names"]))
            structure = Structure(treedef, leaves, names)
            size = structure.size
        except (
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
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


def _length(value: Any) -> int:
    """The length of an axis, as a file holds it."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"an axis of length {value!r}")
    return value


def _name(value: Any) -> str:
    """A name as a file holds it; one that a terminal would obey is refused."""
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(f"the name {value!r}")
    return value


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
