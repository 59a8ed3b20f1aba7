"""The user's own functions, called for the first time."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import checkify
from jaxtyping import Array, Float

from pushforward import _blame
from pushforward.errors import DensityError
from pushforward.targets.base import (
    AbstractTarget,
    MinibatchTarget,
    NoiseConditionalTarget,
    ScoreTarget,
    Target,
)


class Piece(NamedTuple):
    """One function of the user's: its name, and a call of it at a flat point."""

    name: str
    call: Callable[[Float[Array, " d"]], Any]
    shape: tuple[int, ...]


def pieces_of(target: AbstractTarget) -> list[Piece]:
    """The functions a target is made of, in the order of the parts of its density."""
    tree, d = target.structure.unflatten, (target.dim,)
    if isinstance(target, Target):
        return [Piece("log_density", lambda x: target.function(tree(x)), ())]
    if isinstance(target, MinibatchTarget):
        datum = jax.tree.map(lambda a: a[0], target.data)
        return [
            Piece("log_prior", lambda x: target.log_prior(tree(x)), ()),
            Piece(
                "log_likelihood", lambda x: target.log_likelihood(tree(x), datum), ()
            ),
        ]
    if isinstance(target, ScoreTarget):
        return [Piece("score", target.function, d)]
    if isinstance(target, NoiseConditionalTarget):
        low = jnp.asarray(target.sigma_range[0], float)
        return [Piece("score", lambda x: target.function(x, low), d)]
    if target.has_density:
        return [Piece("log_density", target.log_density, ())]
    return [Piece("score", target.score, d)]


def check_return(target: AbstractTarget, piece: Piece, x: Float[Array, " d"]) -> str:
    """Runs it on shapes alone: an exception, a shape or a type is told at once."""
    name = f"Your {piece.name}"
    try:
        out = jax.eval_shape(piece.call, x)
    except Exception as error:
        raise theirs(target, name, error) from error
    if not isinstance(out, jax.ShapeDtypeStruct):
        what = "nothing (is a return missing?)" if out is None else type(out).__name__
        raise DensityError(f"{name} returned {what}, and must return {_wanted(piece)}.")
    if out.shape != piece.shape:
        advice = "sum over the coordinates?" if not piece.shape else _dim_advice(target)
        raise DensityError(
            f"{name} returned an array of shape {out.shape}, and must return "
            f"{_wanted(piece)}: {advice}"
        )
    if not jnp.issubdtype(out.dtype, jnp.floating):
        raise DensityError(
            f"{name} returned {out.dtype}, and must return a floating-point number: is "
            "there an integer division, a comparison or a cast in it?"
        )
    return f"{name} runs and returns {_wanted(piece)}."


def _wanted(piece: Piece) -> str:
    return (
        f"an array of shape {piece.shape}" if piece.shape else "one number (a scalar)"
    )


def is_vector(target: AbstractTarget) -> bool:
    """Whether the parameters are a bare vector, given by dim."""
    leaves = target.structure.leaves
    return len(leaves) == 1 and not leaves[0].name


def _dim_advice(target: AbstractTarget) -> str:
    if is_vector(target):
        return f"dim is {target.dim}; is that the number of coordinates it expects?"
    return "do the shapes in example fit what it expects?"


def theirs(target: AbstractTarget, name: str, error: Exception) -> DensityError:
    """An exception of the user's code, shown as theirs, with a hint if there is one."""
    advice = _blame.hint(error, shapes=_dim_advice(target))
    if isinstance(error, KeyError) and not is_vector(target):
        names = [repr(leaf.name) for leaf in target.structure.leaves]
        more = " and others" if len(names) > 6 else ""
        advice = f"the parameters in example are {', '.join(names[:6])}{more}."
    if "string indexing" in str(error) and is_vector(target):
        advice = (
            "parameters with names need a Target with example= instead of dim, a tree "
            "such as {'a': 0.0, 'b': jnp.zeros(3)}."
        )
    if _blame.passed_through(error, "numpyro"):
        advice = (
            "a NumPyro model becomes a target by "
            "pushforward.bridges.from_numpyro(model, data)."
        )
    return DensityError(_blame.raised(name, error) + (f": {advice}" if advice else "."))


def check_indices(target: AbstractTarget, piece: Piece, x: Float[Array, " d"]) -> str:
    """Finds indices that are too large, where JAX reads the last element instead."""
    fine = f"Your {piece.name} stays inside its {target.dim} coordinates."
    program = str(jax.make_jaxpr(piece.call)(x))
    if "dynamic_slice[" not in program and "gather[" not in program:
        return fine
    try:
        checked = checkify.checkify(piece.call, errors=checkify.index_checks)
        message = jax.jit(checked)(x)[0].get() or ""
    except Exception:
        # What the checker cannot follow it cannot judge.
        return fine
    found = re.search(r"shape (\(.*?\)): index (\d+) is out of bounds", message)
    if found and found[1] in {str(leaf.shape) for leaf in target.structure.leaves}:
        raise DensityError(
            f"Your {piece.name} reads the element [{found[2]}] of parameters of shape "
            f"{found[1]}: {_dim_advice(target)}"
        )
    return fine


def check_gradient(
    target: AbstractTarget, pieces: list[Piece], x: Float[Array, " d"]
) -> str:
    """Differentiates each function, on shapes alone."""
    for piece in pieces:
        try:
            jax.eval_shape(jax.grad(piece.call), x)
        except Exception as error:
            name = f"Your {piece.name} cannot be differentiated: it"
            raise theirs(target, name, error) from error
    return "It can be differentiated."
