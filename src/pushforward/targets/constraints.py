"""Named, invertible, serialisable constraints on parameters.

A constraint is stored as its text ("positive", "interval(0, 10)"), so that a sampler
file can rebuild it without running anybody's code. Each one is a bijection from
unconstrained `u` to constrained `x`, with the log-determinant of its Jacobian. Bounds
may be arrays, one for each number: "interval([0, 1], [2, 3])".
"""

import dataclasses
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from pushforward._text import shown
from pushforward.errors import UsageError
from pushforward.targets import matrices


@dataclasses.dataclass(frozen=True)
class Bijection:
    """One kind of constraint; functions take the flat `u` or `x` and its arguments."""

    arguments: int
    forward: Callable[..., Array]
    inverse: Callable[..., Array]
    log_det: Callable[..., Array]
    # Which of the numbers are inside; a vector that is one point may give one answer.
    inside: Callable[..., Array]
    # How many coordinates of its axis the unconstrained point lacks.
    lost: int = 0
    # The shortest axis it makes sense on; 0 where it is of single numbers.
    least: int = 0
    # For square matrices: how many coordinates one of n rows has.
    coordinates: Callable[[int], int] | None = None
    # The axis along which it holds.
    axis: int = -1
    # Whether `x` is linear in `u` and keeps lengths.
    isometric: bool = False
    # Numbers on which symmetries act, linear in `u` and of the shape of `x`, and back.
    lift: Callable[[Array], Array] = lambda u: u
    lower: Callable[[Array], Array] = lambda x: x


def _log_ratios(u: Array) -> Array:
    """Logs of a simplex less their mean: every order of them is as good."""
    padded = jnp.concatenate([u, jnp.zeros_like(u[..., :1])], axis=-1)
    return padded - jnp.mean(padded, axis=-1, keepdims=True)


def _below_pi(x: Array) -> Array:
    """Angles in [-pi, pi), out of which rounding may take them."""
    kind = np.dtype(x.dtype).type
    # In 32 bits pi is rounded up.
    low, high = kind(-math.pi), kind(math.pi)
    if float(high) > math.pi:
        low, high = np.nextafter(low, kind(0)), np.nextafter(high, kind(0))
    return jnp.clip(x, low, np.nextafter(high, kind(0)))


def _uncoiled(x: Array) -> Array:
    """The coordinate of any angle: finite, also at the seam where -pi meets pi."""
    inside = _below_pi(x - 2 * math.pi * jnp.floor((x + math.pi) / (2 * math.pi)))
    share = (inside + math.pi) / (2 * math.pi)
    eps = jnp.finfo(x.dtype).eps
    return jax.scipy.special.ndtri(jnp.clip(share, 0.5 * eps, 1 - 0.5 * eps))


def _helmert(n: int, dtype: Any) -> Array:
    """Orthonormal columns whose sums are 0, an n by n - 1 matrix."""
    i, k = np.ogrid[:n, 1:n]
    columns = np.where(i < k, 1.0, 0.0) - np.where(i == k, 1.0 * k, 0.0)
    return jnp.asarray(columns / np.sqrt(k * (k + 1.0)), dtype)


def _centred(u: Array) -> Array:
    basis = _helmert(u.shape[0] + 1, u.dtype)
    return jnp.tensordot(basis, u, axes=1, precision="highest")


def _uncentred(x: Array) -> Array:
    basis = _helmert(x.shape[0], x.dtype)
    return jnp.tensordot(basis.T, x, axes=1, precision="highest")


def _is_centred(x: Array) -> Array:
    # The mean of many numbers is rounded by more than each of them.
    mean = jnp.mean(x, axis=0)
    return jnp.all(jnp.abs(mean) <= 1e-4 * (1 + jnp.max(jnp.abs(x))))


def _ordered(u: Array) -> Array:
    steps = jnp.concatenate([u[..., :1], jnp.exp(u[..., 1:])], axis=-1)
    return jnp.cumsum(steps, axis=-1)


def _unordered(x: Array) -> Array:
    return jnp.concatenate([x[..., :1], jnp.log(jnp.diff(x, axis=-1))], axis=-1)


def _log_softmax0(u: Array) -> Array:
    padded = jnp.concatenate([u, jnp.zeros_like(u[..., :1])], axis=-1)
    return jax.nn.log_softmax(padded, axis=-1)


# The bound of all numbers, or rows of bounds of each of them.
Bound = float | tuple["Bound", ...]


def _strictly(x: Array, low: Any = None, high: Any = None) -> Array:
    """`x` kept off its bounds, to which rounding takes it.

    A density may have a pole there, or divide by the distance to it.
    """
    # Around 0 numbers are so close that a device may take the next one for 0.
    smallest, infinity = np.finfo(x.dtype).tiny, np.array(np.inf, x.dtype)
    if low is not None:
        low = np.asarray(low, x.dtype)
        first = np.where(low == 0, smallest, np.nextafter(low, infinity))
        x = jnp.maximum(x, jnp.broadcast_to(first.astype(x.dtype), x.shape))
    if high is not None:
        high = np.asarray(high, x.dtype)
        last = np.where(high == 0, -smallest, np.nextafter(high, -infinity))
        x = jnp.minimum(x, jnp.broadcast_to(last.astype(x.dtype), x.shape))
    return x


def _in_simplex(x: Array) -> Array:
    # Rounding of many numbers adds up; what is further off was not meant as a simplex.
    total = jnp.sum(x, axis=-1, keepdims=True)
    return (x > 0) & (jnp.abs(total - 1) < 1e-3)


def _sigmoid_log_det(u: Array) -> Array:
    return -jax.nn.softplus(u) - jax.nn.softplus(-u)


KINDS: dict[str, Bijection] = {
    "real": Bijection(
        0, lambda u: u, lambda x: x, jnp.zeros_like, jnp.isfinite, isometric=True
    ),
    "positive": Bijection(0, jnp.exp, jnp.log, lambda u: u, lambda x: x > 0),
    "greater_than": Bijection(
        1,
        lambda u, a: _strictly(a + jnp.exp(u), low=a),
        lambda x, a: jnp.log(x - a),
        lambda u, a: u,
        lambda x, a: x > a,
    ),
    "less_than": Bijection(
        1,
        lambda u, b: _strictly(b - jnp.exp(u), high=b),
        lambda x, b: jnp.log(b - x),
        lambda u, b: u,
        lambda x, b: x < b,
    ),
    "unit_interval": Bijection(
        0,
        lambda u: _strictly(jax.nn.sigmoid(u), 0.0, 1.0),
        lambda x: jnp.log(x) - jnp.log1p(-x),
        _sigmoid_log_det,
        lambda x: (x > 0) & (x < 1),
    ),
    "interval": Bijection(
        2,
        lambda u, a, b: _strictly(a + (b - a) * jax.nn.sigmoid(u), a, b),
        lambda x, a, b: jnp.log(x - a) - jnp.log(b - x),
        lambda u, a, b: _sigmoid_log_det(u) + np.log(b - a),
        lambda x, a, b: (x > a) & (x < b),
    ),
    "ordered": Bijection(
        0,
        _ordered,
        _unordered,
        lambda u: u[..., 1:],
        lambda x: jnp.diff(x, axis=-1) > 0,
        least=2,
    ),
    # Additive log-ratio. The density is one of all numbers but the last, and the
    # determinant of that Jacobian is the product of all of them.
    "simplex": Bijection(
        0,
        lambda u: jnp.exp(_log_softmax0(u)),
        lambda x: jnp.log(x[..., :-1]) - jnp.log(x[..., -1:]),
        _log_softmax0,
        _in_simplex,
        lost=1,
        least=2,
        lift=_log_ratios,
        lower=lambda x: x[..., :-1] - x[..., -1:],
    ),
    # Angles. What is uniform on the circle is standard normal in the coordinate; an
    # angle and the same with a full turn more are one.
    "circular": Bijection(
        0,
        lambda u: _below_pi(2 * math.pi * jax.scipy.stats.norm.cdf(u) - math.pi),
        _uncoiled,
        lambda u: jax.scipy.stats.norm.logpdf(u) + math.log(2 * math.pi),
        jnp.isfinite,
    ),
    # Points along the first axis whose mean is 0. The coordinates are orthonormal, so
    # the density is one of volumes in the space of such points.
    "centred": Bijection(
        0,
        _centred,
        _uncentred,
        jnp.zeros_like,
        _is_centred,
        lost=1,
        least=2,
        axis=0,
        isometric=True,
        lift=_centred,
        lower=_uncentred,
    ),
    # Volume on the plane, and on the sphere: these densities are of all numbers.
    "zero_sum": Bijection(
        0,
        matrices.to_zero_sum,
        matrices.from_zero_sum,
        jnp.zeros_like,
        matrices.is_zero_sum,
        lost=1,
        least=2,
    ),
    "unit_vector": Bijection(
        0,
        matrices.to_unit_vector,
        matrices.from_unit_vector,
        matrices.log_det_unit_vector,
        matrices.is_unit_vector,
        lost=1,
        least=2,
    ),
    "cholesky_correlation": Bijection(
        0,
        matrices.to_cholesky_correlation,
        matrices.from_cholesky_correlation,
        matrices.log_det_cholesky_correlation,
        matrices.is_cholesky_correlation,
        least=2,
        coordinates=lambda n: n * (n - 1) // 2,
    ),
    "correlation": Bijection(
        0,
        matrices.to_correlation,
        matrices.from_correlation,
        matrices.log_det_correlation,
        matrices.is_correlation,
        least=2,
        coordinates=lambda n: n * (n - 1) // 2,
    ),
    "cholesky_covariance": Bijection(
        0,
        matrices.to_cholesky_covariance,
        matrices.from_cholesky_covariance,
        matrices.log_det_cholesky_covariance,
        matrices.is_triangle,
        least=1,
        coordinates=lambda n: n * (n + 1) // 2,
    ),
    "covariance": Bijection(
        0,
        matrices.to_covariance,
        matrices.from_covariance,
        matrices.log_det_covariance,
        matrices.is_covariance,
        least=1,
        coordinates=lambda n: n * (n + 1) // 2,
    ),
}


# What helps where a density is -inf or nan: messages end with it.
CONSTRAINT_HINT = (
    "a constraint ('positive', 'greater_than(a)', 'less_than(b)' or 'interval(a, b)') "
    "with constraints="
)


@dataclasses.dataclass(frozen=True)
class Constraint:
    """A named constraint and its numbers."""

    kind: str = "real"
    arguments: tuple[Bound, ...] = ()

    @staticmethod
    def parse(text: str, where: str = "a parameter") -> "Constraint":
        """Reads "positive", "interval(0, 10)" or "greater_than([0, 1])"."""
        match = re.fullmatch(r"\s*(\w+)\s*(?:\(([^()]*)\))?\s*", str(text))
        kind = match.group(1) if match else text
        if match is None or kind not in KINDS:
            raise UsageError(
                f"The constraint {text!r} on {where} is not known; the constraints are "
                f"{', '.join(sorted(KINDS))}."
            )
        constraint = Constraint(kind, _read_bounds((match.group(2) or "").strip()))
        wanted = KINDS[kind].arguments
        if not constraint._fits(wanted):
            shape = {0: kind, 1: f"{kind}(bound)", 2: f"{kind}(lower, upper)"}[wanted]
            order = " with lower < upper" if wanted == 2 else ""
            raise UsageError(
                f"The constraint {text!r} on {where} must read {shape}{order}."
            )
        return constraint

    def _fits(self, wanted: int) -> bool:
        """Whether there are so many bounds, finite ones, in their order."""
        if len(self.arguments) != wanted:
            return False
        try:
            bounds = np.broadcast_arrays(*(np.array(a, float) for a in self.arguments))
        except (TypeError, ValueError):
            return False
        if not all(b.size and np.isfinite(b).all() for b in bounds):
            return False
        return wanted < 2 or bool(np.all(bounds[0] < bounds[-1]))

    def __str__(self) -> str:
        if not self.arguments:
            return self.kind
        return f"{self.kind}({', '.join(map(_write_bound, self.arguments))})"

    @property
    def bounds_shape(self) -> tuple[int, ...]:
        """The shape of the bounds: () where they are the same for all numbers."""
        return np.broadcast_shapes(*(np.shape(a) for a in self.arguments))

    @staticmethod
    def of(given: Any, where: str = "a parameter") -> "Constraint":
        """A constraint that was given as such or as its text."""
        if isinstance(given, Constraint):
            return given
        if not isinstance(given, str):
            raise UsageError(
                f"The constraint on {where} is a {type(given).__name__}; a constraint "
                "is a text such as 'positive' or 'interval(0, 10)', or an object such "
                "as pushforward.constraints.positive."
            )
        return Constraint.parse(given, where)

    @property
    def is_linear(self) -> bool:
        """Whether the constrained parameter is the unconstrained one."""
        return self.kind == "real"

    @property
    def bijection(self) -> Bijection:
        """The functions behind the name."""
        return KINDS[self.kind]

    def free_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The unconstrained shape of a parameter whose constrained shape is `shape`."""
        bijection = self.bijection
        if bijection.coordinates is not None:
            return (*shape[:-2], bijection.coordinates(shape[-1]))
        if not bijection.lost:
            return shape
        free = list(shape)
        free[bijection.axis] -= bijection.lost
        return tuple(free)

    def constrain(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        """The constrained value of `u`."""
        return self.bijection.forward(u, *self._bounds(u))

    def free(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """The unconstrained value of `x`."""
        return self.bijection.inverse(x, *self._bounds(x))

    def lift(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        """Numbers of the shape of the parameter on which symmetries act."""
        return self.bijection.lift(u)

    def lower(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Inverse of `lift`."""
        return self.bijection.lower(x)

    def contains(self, x: Float[Array, "..."]) -> Bool[Array, ""]:
        """Whether `x` is strictly inside the bounds."""
        return jnp.all(self.bijection.inside(x, *self._bounds(x)))

    def log_det(self, u: Float[Array, "..."]) -> Float[Array, ""]:
        """The log-determinant of the Jacobian of `constrain` at `u`."""
        return jnp.sum(self.bijection.log_det(u, *self._bounds(u)))

    def _bounds(self, at: Float[Array, "..."]) -> list[np.ndarray]:
        """The bounds as arrays of the shape and the precision of the parameter."""
        arrays = (np.array(a, at.dtype) for a in self.arguments)
        # Numbers stay numbers, for programs that do not copy them.
        return [np.broadcast_to(a, at.shape) if a.ndim else a for a in arrays]


def _read_bounds(text: str) -> tuple[Bound, ...]:
    """The bounds in the text of a constraint; nan where there is no number."""
    try:
        if "[" in text:
            return tuple(map(_as_bound, json.loads(f"[{text}]")))
        return tuple(float(w) for w in text.split(",")) if text else ()
    except (RecursionError, TypeError, ValueError):
        return (math.nan,)


def _as_bound(given: Any) -> Bound:
    if isinstance(given, list):
        return tuple(map(_as_bound, given))
    return float(given)


def _write_bound(bound: Bound) -> str:
    if isinstance(bound, tuple):
        return f"[{', '.join(map(_write_bound, bound))}]"
    return f"{bound:.17g}"


real = Constraint("real")
positive = Constraint("positive")
unit_interval = Constraint("unit_interval")
ordered = Constraint("ordered")
simplex = Constraint("simplex")
centred = Constraint("centred")
circular = Constraint("circular")


zero_sum = Constraint("zero_sum")
unit_vector = Constraint("unit_vector")
cholesky_correlation = Constraint("cholesky_correlation")
correlation = Constraint("correlation")
cholesky_covariance = Constraint("cholesky_covariance")
covariance = Constraint("covariance")

Bounds = float | int | Sequence[Any] | np.ndarray | Array


def _bounded(kind: str, *bounds: Any) -> Constraint:
    try:
        arrays = [np.asarray(bound) for bound in bounds]
        fine = all(array.dtype.kind in "biuf" for array in arrays)
    except (OverflowError, TypeError, ValueError):
        arrays, fine = [], False
    if not fine:
        raise UsageError(
            f"The bounds of {kind} must be numbers or arrays of them, not "
            f"{', '.join(map(shown, bounds))}."
        )
    numbers = tuple(_as_bound(array.tolist()) for array in arrays)
    return Constraint.parse(str(Constraint(kind, numbers)))


def greater_than(lower: Bounds) -> Constraint:
    """Numbers above `lower`, one bound for all or an array of them."""
    return _bounded("greater_than", lower)


def less_than(upper: Bounds) -> Constraint:
    """Numbers below `upper`, one bound for all or an array of them."""
    return _bounded("less_than", upper)


def interval(lower: Bounds, upper: Bounds) -> Constraint:
    """Numbers between `lower` and `upper`, each one for all or an array."""
    return _bounded("interval", lower, upper)
