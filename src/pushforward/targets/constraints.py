"""Named, invertible, serialisable constraints on parameters.

A constraint is stored as its text ("positive", "interval(0, 10)"), so that a sampler
file can rebuild it without running anybody's code. Each one is a bijection from
unconstrained `u` to constrained `x`, with the log-determinant of its Jacobian.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pushforward.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Bijection:
    """One kind of constraint; functions take the flat `u` or `x` and its arguments."""

    arguments: int
    forward: Callable[..., Array]
    inverse: Callable[..., Array]
    log_det: Callable[..., Array]
    # How many coordinates of the last axis the unconstrained point lacks.
    lost: int = 0


def _ordered(u: Array) -> Array:
    steps = jnp.concatenate([u[..., :1], jnp.exp(u[..., 1:])], axis=-1)
    return jnp.cumsum(steps, axis=-1)


def _unordered(x: Array) -> Array:
    return jnp.concatenate([x[..., :1], jnp.log(jnp.diff(x, axis=-1))], axis=-1)


def _log_softmax0(u: Array) -> Array:
    padded = jnp.concatenate([u, jnp.zeros_like(u[..., :1])], axis=-1)
    return jax.nn.log_softmax(padded, axis=-1)


def _strictly(x: Array, low: float = -math.inf, high: float = math.inf) -> Array:
    """`x` kept off its bounds, to which rounding takes it.

    A density may have a pole there, or divide by the distance to it.
    """
    kind = np.dtype(x.dtype).type
    # Around 0 numbers are so close that a device may take the next one for 0.
    smallest = kind(np.finfo(x.dtype).tiny)
    first = smallest if low == 0 else np.nextafter(kind(low), kind(math.inf))
    last = -smallest if high == 0 else np.nextafter(kind(high), kind(-math.inf))
    return jnp.clip(
        x, first if math.isfinite(low) else None, last if math.isfinite(high) else None
    )


def _sigmoid_log_det(u: Array) -> Array:
    return -jax.nn.softplus(u) - jax.nn.softplus(-u)


KINDS: dict[str, Bijection] = {
    "real": Bijection(0, lambda u: u, lambda x: x, lambda u: jnp.zeros_like(u)),
    "positive": Bijection(0, jnp.exp, jnp.log, lambda u: u),
    "greater_than": Bijection(
        1,
        lambda u, a: _strictly(a + jnp.exp(u), low=a),
        lambda x, a: jnp.log(x - a),
        lambda u, a: u,
    ),
    "less_than": Bijection(
        1,
        lambda u, b: _strictly(b - jnp.exp(u), high=b),
        lambda x, b: jnp.log(b - x),
        lambda u, b: u,
    ),
    "unit_interval": Bijection(
        0,
        lambda u: _strictly(jax.nn.sigmoid(u), 0.0, 1.0),
        lambda x: jnp.log(x) - jnp.log1p(-x),
        _sigmoid_log_det,
    ),
    "interval": Bijection(
        2,
        lambda u, a, b: _strictly(a + (b - a) * jax.nn.sigmoid(u), a, b),
        lambda x, a, b: jnp.log(x - a) - jnp.log(b - x),
        lambda u, a, b: _sigmoid_log_det(u) + math.log(b - a),
    ),
    "ordered": Bijection(0, _ordered, _unordered, lambda u: u[..., 1:]),
    # Additive log-ratio; the determinant of its Jacobian is the product of all x.
    "simplex": Bijection(
        0,
        lambda u: jnp.exp(_log_softmax0(u)),
        lambda x: jnp.log(x[..., :-1]) - jnp.log(x[..., -1:]),
        _log_softmax0,
        lost=1,
    ),
}


# What helps where a density is -inf or nan: messages end with it.
REMEDY = (
    "a constraint ('positive', 'greater_than(a)', 'less_than(b)' or 'interval(a, b)') "
    "with pushforward.constrained"
)


@dataclasses.dataclass(frozen=True)
class Constraint:
    """A named constraint and its numbers."""

    kind: str = "real"
    arguments: tuple[float, ...] = ()

    @staticmethod
    def parse(text: str, where: str = "a parameter") -> "Constraint":
        """Reads "positive" or "interval(0, 10)"."""
        match = re.fullmatch(r"\s*(\w+)\s*(?:\(([^()]*)\))?\s*", str(text))
        kind = match.group(1) if match else text
        if match is None or kind not in KINDS:
            raise UsageError(
                f"The constraint {text!r} on {where} is not known; the constraints are "
                f"{', '.join(sorted(KINDS))}."
            )
        inside = (match.group(2) or "").strip()
        words = inside.split(",") if inside else []
        try:
            arguments: tuple[float, ...] = tuple(float(w) for w in words)
        except ValueError:
            arguments = (math.nan,)
        wanted = KINDS[kind].arguments
        fine = len(arguments) == wanted and all(map(math.isfinite, arguments))
        if not fine or (wanted == 2 and arguments[0] >= arguments[-1]):
            shape = {0: kind, 1: f"{kind}(bound)", 2: f"{kind}(lower, upper)"}[wanted]
            raise UsageError(f"The constraint {text!r} on {where} must read {shape}.")
        return Constraint(kind, arguments)

    def __str__(self) -> str:
        if not self.arguments:
            return self.kind
        return f"{self.kind}({', '.join(f'{a:.17g}' for a in self.arguments)})"

    @property
    def bijection(self) -> Bijection:
        """The functions behind the name."""
        return KINDS[self.kind]

    def free_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The unconstrained shape of a parameter whose constrained shape is `shape`."""
        if not self.bijection.lost:
            return shape
        return (*shape[:-1], shape[-1] - self.bijection.lost)

    def constrain(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        """The constrained value of `u`."""
        return self.bijection.forward(u, *self.arguments)

    def free(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """The unconstrained value of `x`."""
        return self.bijection.inverse(x, *self.arguments)

    def log_det(self, u: Float[Array, "..."]) -> Float[Array, ""]:
        """The log-determinant of the Jacobian of `constrain` at `u`."""
        return jnp.sum(self.bijection.log_det(u, *self.arguments))


def constrained(
    log_density: Callable[[Any], Float[Array, ""]],
    constraints: Mapping[str, str],
    *,
    example: Any,
    sample: Callable[..., Any] | None = None,
):
    """A target whose density is written for constrained parameters.

    The log-Jacobian of each constraint is added here, and draws come back constrained.

    Args:
        log_density: log density of the constrained parameters, a tree like `example`.
        constraints: constraint by parameter name; names in nested trees are joined
            with dots ("group.tau").
        example: a tree of dicts, lists, tuples and arrays with the shapes wanted.
        sample: `sample(key, n)` giving exact (constrained) draws, where they exist.

    Returns:
        A `Target` on the unconstrained space.

    Example:
        >>> import jax.numpy as jnp
        >>> gamma = constrained(
        ...     lambda p: jnp.log(p["rate"]) - p["rate"],
        ...     {"rate": "positive"},
        ...     example={"rate": 1.0},
        ... )
        >>> float(gamma.log_density(jnp.zeros(1)))
        -1.0
    """
    from pushforward.targets.base import Target
    from pushforward.targets.structure import Structure

    structure = Structure.of(example, constraints)
    return Target(log_density, example=example, sample=sample, structure=structure)
