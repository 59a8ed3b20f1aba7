"""What a network pass costs, counted from what it computes."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax


def multiplications(function: Callable[..., Any], *arguments: Any) -> int:
    """The multiplications in the matrix products and convolutions of a call.

    Counted from the program as JAX traces it, so that the answer is the same on every
    device. A transposed convolution is counted without the zeros it puts between
    pixels; the zeros around an image are counted, as is usual.
    """
    return _count(jax.make_jaxpr(function)(*arguments).jaxpr)


def _count(program: Any) -> int:
    total = 0
    for equation in program.eqns:
        name, parameters = equation.primitive.name, equation.params
        if name == "conv_general_dilated":
            total += _convolution(equation)
        elif name == "dot_general":
            (contracted, _), _ = parameters["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            out = math.prod(equation.outvars[0].aval.shape)
            total += out * math.prod(shape[i] for i in contracted)
        inside = sum(_count(inner) for inner in _programs(parameters))
        total += inside * (parameters["length"] if name == "scan" else 1)
    return total


def _convolution(equation: Any) -> int:
    kernel = equation.invars[1].aval.shape
    outputs = kernel[equation.params["dimension_numbers"].rhs_spec[0]]
    out = math.prod(equation.outvars[0].aval.shape)
    zeros = math.prod(equation.params["lhs_dilation"])
    return out * math.prod(kernel) // outputs // zeros


def _programs(parameters: dict[str, Any]) -> Iterator[Any]:
    for value in parameters.values():
        for part in value if isinstance(value, list | tuple) else (value,):
            inner = getattr(part, "jaxpr", part)
            if hasattr(inner, "eqns"):
                yield inner
