"""Whether a function of parameters reads beyond their end, and the result shows it.

JAX reads the last element instead of one that is out of bounds. Libraries rely on
that, and so does a model that masks what it read; so an index is wrong only where it
is taken from the parameters themselves and where the result depends on what is read.
"""

import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend import core
from jaxtyping import Array, Bool, Float

# What is read out of bounds is changed by so much; it matters where the result differs
# by more than rounding.
_CHANGE, _ROUNDING = 1.0, 1e-4
# Calls whose program is read as if it stood in their place.
_CALLS = frozenset({
    "jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2",
    "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr",
})  # fmt: skip
# What leaves parameters parameters: the same numbers, or a constraint on each of them.
_TRANSPARENT = frozenset({
    "slice", "split", "reshape", "squeeze", "broadcast_in_dim", "copy",
    "convert_element_type", "stop_gradient", "exp", "log", "log1p", "expm1", "neg",
    "tanh", "logistic", "add", "sub", "mul", "div", "max", "min", "clamp", "select_n",
})  # fmt: skip
# Integers of more elements are not computed while the program is read.
_FEW = 4096


def reads_outside(
    program: core.ClosedJaxpr,
    x: Float[Array, " d"],
    shapes: Sequence[tuple[int, ...]],
    *,
    clipped: bool = False,
) -> bool:
    """Whether the result at `x` depends on an element beyond the end of a parameter.

    Args:
        program: a function of one point, whose parts are parameters, as it was traced.
        x: the point.
        shapes: the shapes of the parameters.
        clipped: look at reads that are clipped to the bounds. An index of one element
            under `vmap` becomes such a read; others are meant.
    """
    reader = _Reader(frozenset(shapes), clipped)

    def changed(x: Array) -> list[Any]:
        return reader.run(program.jaxpr, program.consts, [x], [True])[0]

    traced = jax.make_jaxpr(changed)(x)
    if not reader.found:
        return False
    here, there = (jax.jit(core.jaxpr_as_fun(p))(x) for p in (program, traced))
    return any(
        bool(np.any(np.abs(np.asarray(a) - b) > _ROUNDING * (1 + np.abs(a))))
        for a, b in zip(here, map(np.asarray, there), strict=True)
    )


class _Reader:
    """Runs a program with what it reads out of bounds changed."""

    def __init__(self, shapes: frozenset[tuple[int, ...]], clipped: bool):
        self.shapes, self.clipped = shapes, clipped
        modes = lax.GatherScatterMode
        self.mode = modes.CLIP if clipped else modes.PROMISE_IN_BOUNDS
        # Whether anything was read that may lie out of bounds.
        self.found = False

    def run(
        self,
        program: Any,
        consts: Sequence[Any],
        values: Sequence[Any],
        flags: Sequence[bool],
    ) -> tuple[list[Any], list[bool]]:
        """The results of a program, and which are parameters as some arguments are."""
        known: dict[Any, Any] = dict(zip(program.constvars, consts, strict=True))
        known |= zip(program.invars, values, strict=True)
        is_parameter = {
            v for v, flag in zip(program.invars, flags, strict=True) if flag
        }

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, core.Literal) else known[atom]

        for eqn in program.eqns:
            taken = [read(v) for v in eqn.invars]
            of_parameters = [
                not isinstance(v, core.Literal) and v in is_parameter
                for v in eqn.invars
            ]
            inner, name = _inner(eqn), eqn.primitive.name
            if inner is not None:
                results, kept = self.run(
                    inner.jaxpr, inner.consts, taken, of_parameters
                )
            else:
                if name == "scan" and any(of_parameters):
                    results = self._scan(eqn, taken, of_parameters)
                else:
                    results = _bind(eqn, taken)
                if name in ("gather", "dynamic_slice") and of_parameters[0]:
                    results = self._read(eqn, taken, results)
                others = zip(taken, of_parameters, strict=True)
                alone = not any(_is_traced(v) for v, of in others if not of)
                same = name in _TRANSPARENT and any(of_parameters) and alone
                kept = [same] * len(results)
            known |= zip(eqn.outvars, results, strict=True)
            is_parameter |= {v for v, of in zip(eqn.outvars, kept, strict=True) if of}
        of_results = [
            not isinstance(v, core.Literal) and v in is_parameter
            for v in program.outvars
        ]
        return [read(v) for v in program.outvars], of_results

    def _scan(self, eqn: Any, taken: list[Any], of_parameters: list[bool]) -> list[Any]:
        """A loop, in whose body the constants may be parameters."""
        body, fixed = eqn.params["jaxpr"], eqn.params["num_consts"]
        flags = [flag and i < fixed for i, flag in enumerate(of_parameters)]

        def changed(*values: Any) -> list[Any]:
            return self.run(body.jaxpr, body.consts, values, flags)[0]

        avals = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in body.in_avals]
        params = {**eqn.params, "jaxpr": jax.make_jaxpr(changed)(*avals)}
        return eqn.primitive.bind(*taken, **params)

    def _read(self, eqn: Any, taken: list[Any], results: list[Any]) -> list[Any]:
        """What is read from parameters, changed where it lies out of bounds."""
        operand = taken[0]
        if operand.shape not in self.shapes:
            return results
        if eqn.primitive.name == "gather":
            # Whoever asks for a number to fill in has thought of it.
            if eqn.params["mode"] != self.mode:
                return results
            outside = _outside_gather(eqn, operand, taken[1])
        elif self.clipped:
            return results
        else:
            sizes = eqn.params["slice_sizes"]
            room = [n - k for n, k in zip(operand.shape, sizes, strict=True)]
            starts = zip(taken[1 : 1 + len(room)], room, strict=True)
            outside = _any([_beyond(start, most) for start, most in starts])
        if not _is_traced(outside) and not np.any(outside):
            return results
        self.found = True
        (result,) = results
        change = jnp.asarray(outside).astype(result.dtype) * _CHANGE
        if change.ndim:
            numbers = eqn.params["dimension_numbers"]
            places = [i for i in range(result.ndim) if i not in numbers.offset_dims]
            change = lax.broadcast_in_dim(change, result.shape, places)
        return [result + change]


def _inner(eqn: Any) -> Any:
    """The program of a call; None where an equation is none."""
    if eqn.primitive.name not in _CALLS:
        return None
    inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
    return core.ClosedJaxpr(inner, ()) if isinstance(inner, core.Jaxpr) else inner


def _is_traced(value: Any) -> bool:
    """Whether a number depends on the point, and is not known yet."""
    return isinstance(value, Tracer)


def _beyond(start: Any, most: int) -> Any:
    start = start if _is_traced(start) else np.asarray(start)
    return (start < 0) | (start > most)


def _any(parts: list[Any]) -> Any:
    return functools.reduce(operator.or_, parts)


def _outside_gather(eqn: Any, operand: Any, indices: Any) -> Bool[Any, "..."]:
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    if not _is_traced(indices):
        indices = np.asarray(indices)
    return _any([
        _beyond(indices[..., k], operand.shape[dim] - sizes[dim])
        for k, dim in enumerate(numbers.start_index_map)
    ])  # fmt: skip


def _bind(eqn: Any, taken: list[Any]) -> list[Any]:
    is_index = all(
        jnp.issubdtype(v.aval.dtype, jnp.integer) or v.aval.dtype == bool
        for v in eqn.outvars
    )
    few = all(v.aval.size <= _FEW for v in eqn.outvars)
    if is_index and few and not any(map(_is_traced, taken)):
        # An index that depends on no parameter is known already.
        with jax.ensure_compile_time_eval():
            results = eqn.primitive.bind(*taken, **eqn.params)
    else:
        results = eqn.primitive.bind(*taken, **eqn.params)
    return list(results) if eqn.primitive.multiple_results else [results]
