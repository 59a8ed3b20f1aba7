"""Densities that another library computes, called back from compiled programs.

The value, the gradient and products with the Hessian each are one call of the host for
a whole batch of points. The derivative of the value is the gradient, and that of the
gradient the product with the Hessian: methods that differentiate the score work too.
"""

import abc
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from pushforward import _user_errors
from pushforward.errors import UsageError

# Of many points at once, from values and gradients to both together.
Batch = Float[np.ndarray, "n d"]
ValueAndGradient = Callable[[Batch], tuple[np.ndarray, np.ndarray]]
HessianProduct = Callable[[Batch, Batch], np.ndarray]

# Points of a batch that the cost is measured with, and how often.
_MEASURED, _REPEATS = 256, 3
# A call that is slower than this many times a second is said to be slow.
_SLOW = 20_000.0
# Central differences of a gradient in double precision lose the fewest digits at this
# part of the size of a point: the cube root of the rounding error.
_STEP = 6e-6


def near_zero(dim: int) -> Batch:
    """Points that a density of unconstrained coordinates is looked at."""
    return 0.1 * np.random.default_rng(0).normal(size=(_MEASURED, dim))


class AbstractForeign(abc.ABC):
    """A log density that another library computes.

    It is a function of one unconstrained point, and knows what it costs.
    """

    @abc.abstractmethod
    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The log density at one point."""

    @abc.abstractmethod
    def constrain(self, draws: Batch) -> dict[str, np.ndarray]:
        """The parameters as the other library names them, of many points."""

    @abc.abstractmethod
    def remark(self) -> str | None:
        """What a user should know of its cost before a training; None is nothing."""


class CallbackDensity(AbstractForeign):
    """A log density and its gradient by calls of the host."""

    def __init__(
        self,
        bridge: str,
        dim: int,
        value_and_gradient: ValueAndGradient,
        hessian_product: HessianProduct | None = None,
        constrain: Callable[[Batch], dict[str, np.ndarray]] | None = None,
        probe: Batch | None = None,
    ):
        """A density from a function of the host.

        Args:
            bridge: the name of the bridge, for messages.
            dim: the number of coordinates.
            value_and_gradient: of a batch of points, in double precision.
            hessian_product: of a batch of points and one of directions; by default
                central differences of the gradient.
            constrain: the parameters by name, of a batch of points.
            probe: points to measure the cost at; by default some near 0.
        """
        self._probe = near_zero(dim) if probe is None else probe
        self.bridge, self.dim = bridge, dim
        self._value_and_gradient = value_and_gradient
        self._hessian_product = hessian_product or self._differences
        self._constrain = constrain
        self._call = _differentiable(self._host, self._host_product)
        self.rate = self._measure()

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        return self._call(x)

    def constrain(self, draws: Batch) -> dict[str, np.ndarray]:
        if self._constrain is None:
            return {"x": np.asarray(draws)}
        return self._constrain(np.asarray(draws, np.float64))

    def remark(self) -> str | None:
        if self.rate > _SLOW:
            return None
        return (
            f"each evaluation of the density is a call of {self.bridge}: "
            f"{self.rate:,.0f} a second, measured on batches of {_MEASURED}; a fit "
            "makes millions, unless its method is given fewer steps or a "
            "max_evaluations"
        )

    def _measure(self) -> float:
        """How many points a second it takes; refuses a density that fails."""
        x = self._probe
        # The first call may compile something; a slow one is measured on fewer points.
        start = time.perf_counter()
        self._host(x[:1])
        first = time.perf_counter() - start
        x = x[: max(1, min(_MEASURED, int(0.5 / max(first, 1e-9))))]
        times = []
        for _ in range(_REPEATS):
            start = time.perf_counter()
            self._host(x)
            times.append(time.perf_counter() - start)
        return len(x) / max(min(times), 1e-9)

    def _host(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values and gradients for an array of points of any leading shape."""
        flat = np.asarray(x, np.float64).reshape(-1, self.dim)
        value, gradient = self._guarded(self._value_and_gradient, flat)
        value, gradient = np.asarray(value), np.asarray(gradient)
        if value.shape != (len(flat),) or gradient.shape != flat.shape:
            raise UsageError(
                f"{self.bridge}: for points of the shape {flat.shape} the values have "
                f"the shape {value.shape} and the gradients {gradient.shape}; they "
                f"must have ({len(flat)},) and {flat.shape}."
            )
        return value.reshape(x.shape[:-1]), gradient.reshape(x.shape)

    def _host_product(self, x: np.ndarray, v: np.ndarray) -> np.ndarray:
        flat, directions = (
            np.asarray(a, np.float64).reshape(-1, self.dim) for a in (x, v)
        )
        found = self._guarded(self._hessian_product, flat, directions)
        return np.asarray(found).reshape(np.shape(x))

    def _guarded(self, function: Callable[..., Any], *arrays: np.ndarray) -> Any:
        try:
            return function(*arrays)
        except UsageError:
            raise
        except Exception as error:
            sentence = f"{self.bridge}: your density"
            raise _user_errors.density_error(sentence, error) from error

    def _differences(self, x: Batch, v: Batch) -> np.ndarray:
        """Products with the Hessian by central differences of the gradient."""
        size = np.linalg.norm(v, axis=1, keepdims=True)
        direction = v / np.where(size > 0, size, 1.0)
        step = _STEP * np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
        _, ahead = self._value_and_gradient(x + step * direction)
        _, behind = self._value_and_gradient(x - step * direction)
        return size * (np.asarray(ahead) - np.asarray(behind)) / (2 * step)


def _differentiable(
    host: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    product: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> Callable[[Float[Array, " d"]], Float[Array, ""]]:
    """A function of one point for JAX, twice differentiable in every direction."""

    def call(x):
        shapes = (
            jax.ShapeDtypeStruct(x.shape[:-1], x.dtype),
            jax.ShapeDtypeStruct(x.shape, x.dtype),
        )

        def run(x):
            x = np.asarray(x)
            return tuple(a.astype(x.dtype) for a in host(x))

        return jax.pure_callback(run, shapes, x, vmap_method="broadcast_all")

    def call_product(x, v):
        def run(x, v):
            x, v = np.asarray(x), np.asarray(v)
            return product(x, v).astype(x.dtype)

        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(run, shape, x, v, vmap_method="broadcast_all")

    @jax.custom_jvp
    def value_and_gradient(x):
        return call(x)

    @value_and_gradient.defjvp
    def _(primals, tangents):
        (x,), (v,) = primals, tangents
        value, gradient = value_and_gradient(x)
        # The Hessian is symmetric. So it is its own transpose, which JAX must know to
        # go backwards; a callback it could not transpose.
        still = jax.lax.stop_gradient(x)
        turned = jax.lax.custom_linear_solve(
            lambda u: u, v, solve=lambda _, b: call_product(still, b), symmetric=True
        )
        return (value, gradient), (gradient @ v, turned)

    @jax.custom_jvp
    def value(x):
        return value_and_gradient(x)[0]

    @value.defjvp
    def _(primals, tangents):
        (x,), (v,) = primals, tangents
        at, gradient = value_and_gradient(x)
        return at, gradient @ v

    return value


class Batched(NamedTuple):
    """A function of an array of points.

    Attributes:
        call: the function.
        together: whether the one that was given takes many points at once.
    """

    call: Callable[[Batch], np.ndarray]
    together: bool


def as_batches(
    bridge: str,
    function: Callable[[Any], Any],
    probe: Batch,
    convert: Callable[[Any], Any] = np.asarray,
) -> Batched:
    """A function of many points, whether the given one takes many or a single one.

    Args:
        bridge: the name of the bridge, for messages.
        function: of an array of points, or of one point.
        probe: points at which it is looked at.
        convert: from its result to an array.
    """

    def at_once(x: Batch) -> np.ndarray:
        return np.asarray(convert(function(x)))

    def one_by_one(x: Batch) -> np.ndarray:
        return np.stack([np.asarray(convert(function(point))) for point in x])

    x = probe[:3]
    try:
        expected = one_by_one(x)
    except Exception as alone:
        try:
            together = at_once(x)
        except Exception:
            sentence = f"{bridge}: your function"
            raise _user_errors.density_error(sentence, alone) from alone
        if together.shape[:1] != (3,):
            raise UsageError(
                f"{bridge}: for points of the shape {x.shape} your function returned "
                f"the shape {together.shape}; it must return a result for each."
            ) from None
        return Batched(at_once, True)
    # Only what is the same for many points at once is called so.
    try:
        together = at_once(x)
        same = together.shape == expected.shape and np.allclose(together, expected)
    except Exception:
        same = False
    return Batched(at_once if same else one_by_one, same)
