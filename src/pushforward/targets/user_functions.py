"""First calls of the user's functions: what they return, read and differentiate to."""

import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import checkify
from jaxtyping import Array, Float

from pushforward import _user_errors
from pushforward.errors import DensityError
from pushforward.targets.base import AbstractTarget, UserFunction
from pushforward.targets.indices import reads_outside


class Doubt(Exception):
    """What may be wrong with a target that can be used."""


def check_return(
    target: AbstractTarget, function: UserFunction, x: Float[Array, " d"]
) -> str:
    """Traces the function without running it: reports exceptions, shapes and types."""
    name = f"Your {function.name}"
    try:
        out = jax.eval_shape(function.call, x)
    except Exception as error:
        raise user_error(target, name, error) from error
    wanted = function.returns
    if jax.tree.structure(out) != jax.tree.structure(wanted):
        what = "nothing (is a return missing?)" if out is None else _kind(out)
        raise DensityError(f"{name} returned {what}, and must return {_words(wanted)}.")
    for value, want in zip(jax.tree.leaves(out), jax.tree.leaves(wanted), strict=True):
        if value.shape != want.shape:
            advice = _dim_advice(target) if want.shape else "sum over the coordinates?"
            raise DensityError(
                f"{name} returned an array of shape {value.shape}, and must return "
                f"{_words(wanted)}: {advice}"
            )
        if not jnp.issubdtype(value.dtype, jnp.floating):
            raise DensityError(
                f"{name} returned {value.dtype}, and must return a floating-point "
                "number: is there an integer division, a comparison or a cast in it?"
            )
    return f"{name} runs and returns {_words(wanted)}."


def _kind(tree: Any) -> str:
    return type(tree).__name__


def _words(wanted: Any) -> str:
    """What a function must return."""
    if not isinstance(wanted, jax.ShapeDtypeStruct):
        shapes = jax.tree.map(lambda leaf: leaf.shape, wanted)
        return f"a tree like the parameters, with the shapes {shapes}"
    return (
        f"an array of shape {wanted.shape}" if wanted.shape else "one number (a scalar)"
    )


def _dim_advice(target: AbstractTarget) -> str:
    if target.structure.is_vector:
        return f"dim is {target.dim}; is that the number of coordinates it expects?"
    return "do the shapes in example fit what it expects?"


def user_error(target: AbstractTarget, name: str, error: Exception) -> DensityError:
    """A `DensityError` for an exception of the user's code, with a hint if possible."""
    advice = _user_errors.hint(error, shapes=_dim_advice(target))
    if isinstance(error, KeyError) and not target.structure.is_vector:
        names = [repr(leaf.name) for leaf in target.structure.leaves]
        more = " and others" if len(names) > 6 else ""
        advice = f"the parameters in example are {', '.join(names[:6])}{more}."
    if "string indexing" in str(error) and target.structure.is_vector:
        advice = (
            "parameters with names need a Target with example= instead of dim, a tree "
            "such as {'a': 0.0, 'b': jnp.zeros(3)}."
        )
    advice = _user_errors.package_hint(error) or advice
    return _user_errors.density_error(name, error, advice)


def check_indices(
    target: AbstractTarget, function: UserFunction, x: Float[Array, " d"]
) -> str:
    """Reports indices out of bounds, for which JAX reads the last element instead."""
    fine = f"Your {function.name} stays inside its {target.dim} coordinates."
    shapes = [leaf.shape for leaf in target.structure.leaves]
    try:
        program = jax.make_jaxpr(function.call)(x)
        certain = reads_outside(program, x, shapes)
        if not certain and not reads_outside(program, x, shapes, clipped=True):
            return fine
        checked = checkify.checkify(function.call, errors=checkify.index_checks)
        message = jax.jit(checked)(x)[0].get() or ""
    except Exception:
        # Not every operation can be looked into; then there is nothing to report.
        return fine
    found = re.search(r"shape (\(.*?\)): index (\d+) is out of bounds", message)
    what = "an element beyond the ends of its parameters"
    if found and found[1] in map(str, shapes):
        what = f"the element [{found[2]}] of parameters of shape {found[1]}"
    if not certain:
        raise Doubt(
            f"Your {function.name} reads {what}, in place of which JAX takes the "
            f"nearest: {_dim_advice(target)}"
        )
    raise DensityError(f"Your {function.name} reads {what}: {_dim_advice(target)}")


def check_gradient(
    target: AbstractTarget, functions: Sequence[UserFunction], x: Float[Array, " d"]
) -> str:
    """Differentiates each function, on shapes alone."""
    for function in functions:
        try:
            jax.eval_shape(jax.grad(function.call), x)
        except Exception as error:
            name = f"Your {function.name} cannot be differentiated: it"
            raise user_error(target, name, error) from error
    return "It can be differentiated."
