"""Groups under which a density does not change, for `symmetry=` of a target.

A user writes a group by the names of parameters, and `*` puts groups together:

    symmetry = permutations("mu", "sigma") * signs("loading")

`Group.bind` says what it is for the parameters at hand: an `Action`, which knows how
many elements there are, draws one at random, and moves points. Points are unconstrained
coordinates, on which every group here acts linearly and without changing volumes; so
`q(T x) = q(x)` there is the same as for the parameters themselves.

Rotations are no finite group. They have canonical coordinates: the first point lies
on the first axis, and in three dimensions the second in the plane of the first two. The
rotation is what is left, and its density is known.
"""

import abc
import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pushforward.errors import FileError, UsageError
from pushforward.targets.constraints import Constraint
from pushforward.targets.structure import Structure

# Averages over larger finite groups are not computed: 7 labels have as many.
MAX_ELEMENTS = 5040

Names = tuple[str, ...]
Axes = int | Mapping[str, int | tuple[int, ...]]
# One array for each parameter, as a group acts on them.
Values = list[Float[Array, "..."]]


class Group(abc.ABC):
    """A group of maps of the parameters; `*` is the product of two."""

    @property
    @abc.abstractmethod
    def factors(self) -> "tuple[AbstractFactor, ...]":
        """The groups that it is a product of."""

    def __mul__(self, other: "Group") -> "Group":
        if not isinstance(other, Group):
            return NotImplemented
        return Product((*self.factors, *other.factors))

    def constrain(self, structure: Structure) -> Structure:
        """The structure of parameters that the group's own constraints are met by."""
        for factor in self.factors:
            structure = factor.constrain(structure)
        return structure

    def bind(self, structure: Structure) -> "Action":
        """The group acting on parameters of this structure.

        Raises:
            UsageError: it does not fit them.
        """
        action = Action(structure, self.factors)
        # Misfits are told here and not where the action is first used.
        _ = action.bound
        return action

    def to_json(self) -> list[dict[str, Any]]:
        """Plain names and numbers, which `from_json` reads."""
        return [
            {"kind": factor.kind, **dataclasses.asdict(factor)}
            for factor in self.factors
        ]

    def __str__(self) -> str:
        return " * ".join(map(str, self.factors))


def from_json(data: Any) -> Group:
    """Inverse of `Group.to_json`."""
    try:
        factors = []
        for each in data:
            arguments = {k: _tupled(v) for k, v in each.items() if k != "kind"}
            factors.append(_KINDS[each["kind"]](**arguments))
        return Product(tuple(factors))
    except (
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise FileError(
            f"The file's description of a symmetry is damaged ({error!r})."
        ) from error


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value)) if isinstance(value, list) else value


@dataclasses.dataclass(frozen=True)
class Product(Group):
    """Several groups, one after the other."""

    parts: "tuple[AbstractFactor, ...]"

    @property
    def factors(self) -> "tuple[AbstractFactor, ...]":
        return self.parts

    def __str__(self) -> str:
        return " * ".join(map(str, self.factors))


@dataclasses.dataclass(frozen=True)
class AbstractFactor(Group):
    """A group that is no product."""

    names: Names

    @property
    def factors(self) -> "tuple[AbstractFactor, ...]":
        return (self,)

    @property
    @abc.abstractmethod
    def kind(self) -> str:
        """Its name in files and messages."""

    def constrain(self, structure: Structure) -> Structure:
        return structure

    @abc.abstractmethod
    def on(self, structure: Structure) -> "AbstractBound | None":
        """The group on these parameters; None where it has nothing to do."""

    def leaves(
        self, structure: Structure, *, everywhere: bool = False
    ) -> tuple[int, ...]:
        """Which arrays it acts on; without names the only one, or all."""
        known = [leaf.name for leaf in structure.leaves]
        if not self.names:
            if len(known) > 1 and not everywhere:
                raise UsageError(
                    f"The symmetry {self} must name the parameters that it moves, such "
                    f"as {self.kind}({known[0]!r})."
                )
            return tuple(range(len(known)))
        for name in self.names:
            if name not in known:
                raise UsageError(
                    f"The symmetry {self} names {name!r}, which is no parameter; there "
                    f"are {', '.join(map(repr, known))}."
                )
        return tuple(known.index(name) for name in self.names)

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(repr, self.names))})"


@dataclasses.dataclass(frozen=True)
class Permutations(AbstractFactor):
    """See `permutations`."""

    axes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    axis: int = 0
    blocks: int | None = None

    @property
    def kind(self) -> str:
        return "permutations"

    def on(self, structure: Structure) -> "AbstractBound":
        parts, lengths = [], []
        named = dict(self.axes)
        for i in self.leaves(structure):
            leaf = structure.leaves[i]
            what = repr(leaf.name) if leaf.name else "the vector"
            shape = leaf.shape
            if self.blocks is not None:
                if len(shape) != 1 or shape[0] % self.blocks or shape[0] == 0:
                    raise UsageError(
                        f"The symmetry {self} needs a vector of {self.blocks} equal "
                        f"blocks, and {what} has the shape {shape}."
                    )
                shape = (self.blocks, shape[0] // self.blocks)
            axes = named.get(leaf.name, (self.axis,))
            for axis in axes:
                if not -len(shape) <= axis < len(shape):
                    raise UsageError(
                        f"The symmetry {self} permutes the axis {axis} of {what}, "
                        f"whose shape is {shape}."
                    )
            axes = tuple(axis % len(shape) for axis in axes)
            if leaf.constraint.kind == "ordered" and len(shape) - 1 in axes:
                raise UsageError(
                    f"The symmetry {self} permutes {what}, which is ordered: that "
                    "constraint leaves one of the permutations; give one or the other."
                )
            parts.append(_Part(i, shape, axes))
            lengths += [shape[axis] for axis in axes]
        if len(set(lengths)) > 1:
            raise UsageError(
                f"The symmetry {self} permutes axes of different lengths, {lengths}; "
                "what is permuted together must be as long."
            )
        return BoundPermutations(tuple(parts), lengths[0])

    def __str__(self) -> str:
        words = [repr(name) for name in self.names]
        if self.blocks is not None:
            words.append(f"blocks={self.blocks}")
        if self.axes:
            words.append(f"axis={dict(self.axes)}")
        elif self.axis:
            words.append(f"axis={self.axis}")
        return f"permutations({', '.join(words)})"


@dataclasses.dataclass(frozen=True)
class Signs(AbstractFactor):
    """See `signs`."""

    axis: int | None = None

    @property
    def kind(self) -> str:
        return "signs"

    def on(self, structure: Structure) -> "AbstractBound":
        parts, lengths = [], []
        for i in self.leaves(structure, everywhere=True):
            leaf = structure.leaves[i]
            what = repr(leaf.name) if leaf.name else "the vector"
            plain = leaf.constraint.bijection.isometric
            if not plain and leaf.constraint.kind != "circular":
                raise UsageError(
                    f"The symmetry {self} changes the sign of {what}, whose constraint "
                    f"is '{leaf.constraint}'."
                )
            axes = ()
            if self.axis is not None:
                if not -len(leaf.shape) <= self.axis < len(leaf.shape):
                    raise UsageError(
                        f"The symmetry {self} has a sign for each place of the axis "
                        f"{self.axis} of {what}, whose shape is {leaf.shape}."
                    )
                axes = (self.axis % len(leaf.shape),)
                if leaf.constraint.kind == "centred" and axes == (0,):
                    raise UsageError(
                        f"The symmetry {self} moves the centre of {what}, which is "
                        "centred."
                    )
                lengths.append(leaf.shape[axes[0]])
            parts.append(_Part(i, leaf.shape, axes))
        if len(set(lengths)) > 1:
            raise UsageError(
                f"The symmetry {self} has signs along axes of different lengths, "
                f"{lengths}."
            )
        return BoundSigns(tuple(parts), lengths[0] if lengths else 1)

    def __str__(self) -> str:
        words = [repr(name) for name in self.names]
        if self.axis is not None:
            words.append(f"axis={self.axis}")
        return f"signs({', '.join(words)})"


@dataclasses.dataclass(frozen=True)
class Rotations(AbstractFactor):
    """See `rotations`."""

    reflections: bool = False
    dim: int | None = None

    @property
    def kind(self) -> str:
        return "rotations"

    def on(self, structure: Structure) -> "AbstractBound":
        parts, dims = [], []
        for i in self.leaves(structure):
            leaf = structure.leaves[i]
            what = repr(leaf.name) if leaf.name else "the vector"
            if not leaf.constraint.bijection.isometric:
                raise UsageError(
                    f"The symmetry {self} rotates {what}, whose constraint is "
                    f"'{leaf.constraint}'."
                )
            last = leaf.shape[-1] if leaf.shape else 0
            dim = last if self.dim is None else self.dim
            if dim not in (2, 3) or last % dim or not last:
                raise UsageError(
                    f"The symmetry {self} needs points of 2 or 3 coordinates along the "
                    f"last axis of {what}, whose shape is {leaf.shape}; for points one "
                    "after the other in a vector say dim=2 or dim=3."
                )
            dims.append(dim)
            parts.append(_Part(i, (*leaf.shape[:-1], last // dim, dim), ()))
        if len(set(dims)) > 1:
            raise UsageError(
                f"The symmetry {self} rotates points of {dims} coordinates together; "
                "they must have as many."
            )
        return BoundRotations(tuple(parts), dims[0], self.reflections)

    def __str__(self) -> str:
        words = [repr(name) for name in self.names]
        if self.dim is not None:
            words.append(f"dim={self.dim}")
        if self.reflections:
            words.append("reflections=True")
        return f"rotations({', '.join(words)})"


@dataclasses.dataclass(frozen=True)
class Translations(AbstractFactor):
    """See `translations`."""

    @property
    def kind(self) -> str:
        return "translations"

    def constrain(self, structure: Structure) -> Structure:
        leaves = list(structure.leaves)
        for i in self.leaves(structure):
            leaf = leaves[i]
            what = repr(leaf.name) if leaf.name else "the vector"
            if not leaf.constraint.bijection.isometric:
                raise UsageError(
                    f"The symmetry {self} moves {what}, whose constraint is "
                    f"'{leaf.constraint}'."
                )
            if len(leaf.shape) < 2 or leaf.shape[0] < 2:
                raise UsageError(
                    f"The symmetry {self} needs points along the first axis of {what}, "
                    f"as an array of the shape (n, d) has, and its shape is "
                    f"{leaf.shape}; give example=jnp.zeros((n, d)) instead of dim=."
                )
            leaves[i] = dataclasses.replace(leaf, constraint=Constraint("centred"))
        return Structure(structure.treedef, tuple(leaves))

    def on(self, structure: Structure) -> None:
        # What is centred is not moved any more.
        return None


def permutations(
    *names: str, axis: Axes = 0, blocks: int | None = None
) -> Permutations:
    """Any order of particles, or of the labels of a mixture.

    Args:
        names: the parameters that are permuted together; none for a single array.
        axis: the axis along which they are permuted, for all, or by name where that
            differs; a tuple of axes is permuted together, as both of the matrix of
            transitions between hidden states are.
        blocks: how many blocks of coordinates a vector consists of.

    Example:
        >>> str(permutations("mu", "weights"))
        "permutations('mu', 'weights')"
    """
    _require_names("permutations", names)
    axes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    if isinstance(axis, Mapping):
        axes = tuple(
            (name, (each,) if isinstance(each, int) else tuple(each))
            for name, each in axis.items()
        )
        for name, _ in axes:
            if name not in names:
                raise UsageError(
                    f"permutations: axis names {name!r}, which is not among the "
                    f"parameters {list(names)}."
                )
        axis = 0
    if blocks is not None and (not isinstance(blocks, int) or blocks < 1):
        raise UsageError(
            f"permutations: blocks must be a whole number, not {blocks!r}."
        )
    return Permutations(names, axes, axis, blocks)


def signs(*names: str, axis: int | None = None) -> Signs:
    """A change of sign, of all named parameters together.

    Args:
        names: the parameters; none for all of them.
        axis: with it, each place along this axis has a sign of its own, the same in all
            parameters: as a factor and its loadings have.

    Example:
        >>> str(signs("factor", "loading", axis=0))
        "signs('factor', 'loading', axis=0)"
    """
    _require_names("signs", names)
    return Signs(names, axis)


def rotations(
    *names: str, reflections: bool = False, dim: int | None = None
) -> Rotations:
    """Rotations about the origin, in two or three dimensions.

    Args:
        names: the parameters that are rotated together, whose last axis holds the
            coordinates of a point; none for a single array.
        reflections: whether mirror images are as likely.
        dim: 2 or 3, where the points stand one after the other in a vector.

    Example:
        >>> str(rotations(dim=2, reflections=True))
        'rotations(dim=2, reflections=True)'
    """
    _require_names("rotations", names)
    return Rotations(names, bool(reflections), dim)


def translations(*names: str) -> Translations:
    """Shifts of all points together: the mean of the points is fixed at 0.

    No density can be the same under all shifts. One that depends on differences alone
    is taken on the points whose mean is 0 (the constraint 'centred').

    Args:
        names: the parameters, arrays of the shape (n, d); none for a single array.
    """
    _require_names("translations", names)
    return Translations(names)


def particles(name: str | None = None, *, reflections: bool = False) -> Group:
    """Identical particles in free space: permutations, rotations and translations.

    Args:
        name: the array of positions, of the shape (n, d); None for a single array.
        reflections: whether mirror images are as likely.
    """
    names = () if name is None else (name,)
    return (
        permutations(*names)
        * rotations(*names, reflections=reflections)
        * translations(*names)
    )


def _require_names(what: str, names: Sequence[Any]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise UsageError(
                f"{what} takes names of parameters, such as {what}('mu'), not "
                f"{type(name).__name__}."
            )


_KINDS: dict[str, Any] = {
    "permutations": Permutations,
    "signs": Signs,
    "rotations": Rotations,
    "translations": Translations,
}


@dataclasses.dataclass(frozen=True)
class _Part:
    """What a group does with one array: its index, its shape for that, and axes."""

    leaf: int
    shape: tuple[int, ...]
    axes: tuple[int, ...]

    def view(self, values: Values) -> Float[Array, "..."]:
        return values[self.leaf].reshape(self.shape)


@dataclasses.dataclass(frozen=True)
class AbstractBound(abc.ABC):
    """A group bound to arrays."""

    parts: tuple[_Part, ...]

    @property
    @abc.abstractmethod
    def size(self) -> int | None:
        """How many elements it has; None where they are not finitely many."""

    @property
    @abc.abstractmethod
    def finite_size(self) -> int:
        """How many elements canonical coordinates leave."""

    @abc.abstractmethod
    def random(self, key: PRNGKeyArray) -> Array:
        """An element, each as likely."""

    @abc.abstractmethod
    def elements(self) -> np.ndarray:
        """All elements that canonical coordinates leave."""

    @abc.abstractmethod
    def move(self, element: Array, value: Array, part: _Part) -> Array:
        """One array, in its shape for this group, moved by an element."""

    def act(self, element: Array, values: Values) -> Values:
        values = list(values)
        for part in self.parts:
            moved = self.move(element, part.view(values), part)
            values[part.leaf] = moved.reshape(values[part.leaf].shape)
        return values


@dataclasses.dataclass(frozen=True)
class BoundPermutations(AbstractBound):
    """Bound permutations."""

    n: int

    @property
    def size(self) -> int:
        return math.factorial(self.n)

    @property
    def finite_size(self) -> int:
        return self.size

    def random(self, key: PRNGKeyArray) -> Int[Array, " n"]:
        return jax.random.permutation(key, self.n).astype(jnp.int32)

    def elements(self) -> np.ndarray:
        return np.array(list(itertools.permutations(range(self.n))), np.int32)

    def move(self, element: Array, value: Array, part: _Part) -> Array:
        for axis in part.axes:
            value = jnp.take(value, element, axis=axis)
        return value

    def features(self, values: Values) -> list[Float[Array, "n f"]]:
        """For each array, what is moved with each of the n places."""
        found = []
        for part in self.parts:
            value = part.view(values)
            for axis in sorted(part.axes[1:], reverse=True):
                # Of what is permuted along several axes, the diagonal.
                value = jnp.moveaxis(
                    jnp.diagonal(value, axis1=part.axes[0], axis2=axis),
                    -1,
                    part.axes[0],
                )
            found.append(jnp.moveaxis(value, part.axes[0], 0).reshape(self.n, -1))
        return found


@dataclasses.dataclass(frozen=True)
class BoundSigns(AbstractBound):
    """Bound signs."""

    n: int

    @property
    def size(self) -> int:
        return 2**self.n

    @property
    def finite_size(self) -> int:
        return self.size

    def random(self, key: PRNGKeyArray) -> Float[Array, " n"]:
        return jax.random.rademacher(key, (self.n,), jnp.result_type(float))

    def elements(self) -> np.ndarray:
        signs = list(itertools.product((1.0, -1.0), repeat=self.n))
        return np.array(signs).reshape(-1, self.n)

    def move(self, element: Array, value: Array, part: _Part) -> Array:
        if not part.axes:
            return value * element[0].astype(value.dtype)
        shape = [1] * value.ndim
        shape[part.axes[0]] = self.n
        return value * element.astype(value.dtype).reshape(shape)


@dataclasses.dataclass(frozen=True)
class BoundRotations(AbstractBound):
    """Bound rotations."""

    dim: int
    reflections: bool

    @property
    def size(self) -> None:
        return None

    @property
    def finite_size(self) -> int:
        return 2 if self.reflections else 1

    def random(self, key: PRNGKeyArray) -> Float[Array, "d d"]:
        dtype = jnp.result_type(float)
        turn_key, flip_key = jax.random.split(key)
        if self.dim == 2:
            angle = jax.random.uniform(turn_key, (), dtype, -math.pi, math.pi)
            c, s = jnp.cos(angle), jnp.sin(angle)
            matrix = jnp.stack([jnp.stack([c, -s]), jnp.stack([s, c])])
        else:
            # A unit quaternion, uniform on the sphere.
            q = jax.random.normal(turn_key, (4,), dtype)
            w, x, y, z = q / jnp.sqrt(jnp.sum(q**2))
            rows = [
                [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
                [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
                [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
            ]
            matrix = jnp.stack([jnp.stack(row) for row in rows])
        if self.reflections:
            flip = jnp.ones(self.dim, dtype)
            flip = flip.at[-1].set(jax.random.rademacher(flip_key, (), dtype))
            matrix = matrix * flip[None]
        return matrix

    def elements(self) -> np.ndarray:
        mirror = np.diag([*[1.0] * (self.dim - 1), -1.0])
        return np.stack([np.eye(self.dim), mirror][: self.finite_size])

    def move(self, element: Array, value: Array, part: _Part) -> Array:
        turned = value @ element.T.astype(value.dtype)
        return turned


@dataclasses.dataclass(frozen=True)
class Action:
    """A group acting on parameters of one structure; hashable.

    Attributes:
        structure: the parameters.
        factors: the group.
    """

    structure: Structure
    factors: tuple[AbstractFactor, ...]

    @functools.cached_property
    def bound(self) -> tuple[AbstractBound, ...]:
        """The groups that move something, rotations first.

        So a point that is uniformly rotated is what the others move.
        """
        found = [factor.on(self.structure) for factor in self.factors]
        parts = [each for each in found if each is not None]
        if len(set(parts)) < len(parts):
            raise UsageError(f"The symmetry {self} has the same group twice.")
        turns = [each for each in parts if isinstance(each, BoundRotations)]
        if len(turns) > 1:
            raise UsageError(
                f"The symmetry {self} has rotations twice; what is rotated by itself "
                "cannot be told here, so leave one of them out."
            )
        return (*turns, *(each for each in parts if each not in turns))

    @property
    def rotations(self) -> BoundRotations | None:
        """The rotations, where there are any."""
        first = self.bound[0] if self.bound else None
        return first if isinstance(first, BoundRotations) else None

    def __str__(self) -> str:
        return " * ".join(map(str, self.factors))

    def to_json(self) -> list[dict[str, Any]]:
        """The group as plain names and numbers."""
        return Product(self.factors).to_json()

    @property
    def size(self) -> int | None:
        """How many elements the group has; None where they are not finitely many."""
        sizes = [each.size for each in self.bound]
        return None if None in sizes else math.prod(s for s in sizes if s is not None)

    @property
    def finite_size(self) -> int:
        """How many elements are left by canonical coordinates."""
        return math.prod(each.finite_size for each in self.bound)

    @property
    def can_average(self) -> bool:
        """Whether an average over what canonical coordinates leave can be computed."""
        return self.finite_size <= MAX_ELEMENTS

    def describe(self) -> str:
        """The group and its size, in words."""
        if self.size is not None:
            count = f"{self.size:,} element{'s' * (self.size != 1)}"
        else:
            count = "a continuous group"
        return f"{self} ({count})"

    def lift(self, u: Float[Array, " d"]) -> Values:
        """The arrays on which the group acts, linear in the coordinates."""
        parts = zip(self.structure.split(u), self.structure.leaves, strict=True)
        return [leaf.constraint.lift(part) for part, leaf in parts]

    def lower(self, values: Values) -> Float[Array, " d"]:
        """Inverse of `lift`."""
        parts = zip(values, self.structure.leaves, strict=True)
        return jnp.concatenate(
            [jnp.ravel(leaf.constraint.lower(value)) for value, leaf in parts]
        )

    def random(self, key: PRNGKeyArray) -> tuple[Array, ...]:
        """An element of the group, each as likely."""
        return tuple(
            each.random(jax.random.fold_in(key, i)) for i, each in enumerate(self.bound)
        )

    def act(
        self, element: tuple[Array, ...], u: Float[Array, " d"]
    ) -> Float[Array, " d"]:
        """A point moved by an element."""
        with jax.default_matmul_precision("highest"):
            values = self.lift(u)
            for each, part in zip(self.bound, element, strict=True):
                values = each.act(part, values)
            return self.lower(values)

    def move_randomly(
        self, key: PRNGKeyArray, u: Float[Array, " d"]
    ) -> Float[Array, " d"]:
        """A point moved by a random element."""
        return self.act(self.random(key), u)

    def average(self, log_density: Any, u: Float[Array, " d"]) -> Float[Array, ""]:
        """The log density at `u` of draws that a random element has moved.

        Args:
            log_density: that of the draws before, which are uniformly rotated where the
                group has rotations.
            u: a point.
        """
        assert self.can_average
        if not self.bound or self.finite_size == 1:
            return log_density(u)
        tables = [each.elements() for each in self.bound]
        rows = np.array(list(itertools.product(*(range(len(t)) for t in tables))))
        stacked = tuple(
            jnp.asarray(table[rows[:, i]]) for i, table in enumerate(tables)
        )

        def one(element):
            # The inverses of all elements are undone in the opposite order.
            values = self.lift(u)
            for each, part in list(zip(self.bound, element, strict=True))[::-1]:
                values = each.act(part, values)
            return log_density(self.lower(values))

        logs = jax.lax.map(one, stacked, batch_size=min(len(rows), _TOGETHER))
        return jax.nn.logsumexp(logs) - math.log(len(rows))

    # Canonical coordinates.

    @functools.cached_property
    def _points(self) -> Int[np.ndarray, "m d"]:
        """The coordinates of the points that are rotated, a row for each."""
        turns = self.rotations
        if turns is None:
            return np.zeros((0, 2), int)
        ends = np.cumsum([0, *(leaf.size for leaf in self.structure.leaves)])
        rows = [
            np.arange(ends[p.leaf], ends[p.leaf + 1]).reshape(-1, turns.dim)
            for p in turns.parts
        ]
        return np.concatenate(rows)

    @property
    def _gauges(self) -> int:
        """How many points the canonical coordinates fix a direction of."""
        turns = self.rotations
        return 0 if turns is None else min(len(self._points), turns.dim - 1)

    @functools.cached_property
    def _dropped(self) -> Int[np.ndarray, " k"]:
        """The coordinates that are 0 in canonical position."""
        return np.concatenate(
            [np.zeros(0, int)] + [self._points[i, i + 1 :] for i in range(self._gauges)]
        )

    @functools.cached_property
    def _logged(self) -> Int[np.ndarray, " k"]:
        """The coordinates that are positive in canonical position."""
        return np.array([self._points[i, i] for i in range(self._gauges)], int)

    @functools.cached_property
    def _kept(self) -> Int[np.ndarray, " k"]:
        return np.setdiff1d(np.arange(self.structure.size), self._dropped)

    @property
    def canonical_dim(self) -> int:
        """How many canonical coordinates there are."""
        return len(self._kept)

    def section(self, y: Float[Array, " k"]) -> Float[Array, " d"]:
        """The point in canonical position with these canonical coordinates."""
        if not self._gauges:
            return y
        at = np.searchsorted(self._kept, self._logged)
        y = y.at[at].set(jnp.exp(y[at]))
        return jnp.zeros(self.structure.size, y.dtype).at[self._kept].set(y)

    def canonical(self, u: Float[Array, " d"]) -> Float[Array, " k"]:
        """The canonical coordinates of any point."""
        if not self._gauges:
            return u
        v = u[self._points]
        axes, sizes = [], []
        for i in range(self._gauges):
            rest = v[i]
            for axis in axes:
                rest = rest - jnp.sum(rest * axis) * axis
            size = jnp.sqrt(jnp.sum(rest**2))
            axes.append(rest / size)
            sizes.append(size)
        axes += _completed(axes)
        turned = jnp.matmul(v, jnp.stack(axes).T, precision="highest")
        y = u.at[self._points].set(turned)
        y = y.at[self._logged].set(jnp.log(jnp.stack(sizes)))
        return y[self._kept]

    def log_volume(self, y: Float[Array, " k"]) -> Float[Array, ""]:
        """The log of the volume of all rotations of a point, per canonical volume.

        With `x = R section(y)`: `dx = exp(log_volume(y)) dy dR`, where `dR` is the
        uniform distribution of rotations.
        """
        if not self._gauges:
            return jnp.zeros((), y.dtype)
        d = self._points.shape[1]
        at = np.searchsorted(self._kept, self._logged)
        # The i-th direction lies on a sphere of dimension d - 1 - i.
        spheres = [d - 1 - i for i in range(self._gauges)]
        areas = [
            math.log(2) + 0.5 * (k + 1) * math.log(math.pi) - math.lgamma(0.5 * (k + 1))
            for k in spheres
        ]
        powers = jnp.asarray([k + 1.0 for k in spheres], y.dtype)
        return jnp.sum(powers * y[at]) + sum(areas)


# Elements of a group whose log densities are computed at once.
_TOGETHER = 128


def _completed(axes: list[Float[Array, " d"]]) -> list[Float[Array, " d"]]:
    """The directions that make right-handed axes of some first ones."""
    d = axes[0].shape[0]
    if d == 2:
        return [jnp.stack([-axes[0][1], axes[0][0]])]
    if len(axes) == 2:
        return [jnp.cross(axes[0], axes[1])]
    # One point alone in space: any direction across will do.
    least = jnp.eye(3, dtype=axes[0].dtype)[jnp.argmin(jnp.abs(axes[0]))]
    second = least - jnp.sum(least * axes[0]) * axes[0]
    second = second / jnp.sqrt(jnp.sum(second**2))
    return [second, jnp.cross(axes[0], second)]
