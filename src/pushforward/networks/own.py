"""A module of the user's as a network: its arrays, and apart from them all the rest."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pushforward._precision import NETWORK_DTYPE, narrow
from pushforward.errors import UsageError
from pushforward.networks.base import AbstractNetwork


class OwnNetwork(AbstractNetwork):
    """Any module with `in_size` and `out_size`, while it is trained.

    The leaves of a state are arrays, and those of a module may be functions or numbers
    too: these are set apart. Weights are kept in the networks' precision.
    """

    arrays: Any
    rest: Any = eqx.field(static=True)
    in_size: int = eqx.field(static=True)
    out_size: int = eqx.field(static=True)

    def __init__(self, module: eqx.Module, in_size: int, out_size: int):
        self.in_size, self.out_size = in_size, out_size
        self.arrays, self.rest = eqx.partition(
            jax.tree.map(_in_network_precision, module), eqx.is_array
        )

    @property
    def module(self) -> Any:
        """The user's module itself."""
        return eqx.combine(self.arrays, self.rest)

    def __call__(
        self, x: Float[Array, " i"], *more: Float[Array, ""]
    ) -> Float[Array, " o"]:
        """The module at one point (and noise level, where it is a model of a score)."""
        return narrow(self.module(x, *more))


def own_network(role: str, module: Any) -> AbstractNetwork:
    """The user's module as a network; refuses what cannot be one."""
    if isinstance(module, AbstractNetwork):
        if not all(eqx.is_array(leaf) for leaf in jax.tree.leaves(module)):
            raise UsageError(
                f"The {role}, a {type(module).__name__}, has leaves that are not "
                "arrays; mark these fields with eqx.field(static=True)."
            )
        return module
    sizes = [getattr(module, name, None) for name in ("in_size", "out_size")]
    if not isinstance(module, eqx.Module) or not callable(module):
        raise UsageError(
            f"The {role} must be an eqx.Module that can be called with one point, not "
            f"a {type(module).__name__}."
        )
    if not all(isinstance(size, int | np.integer) for size in sizes):
        raise UsageError(
            f"The {role}, a {type(module).__name__}, must have the attributes in_size "
            "and out_size, two whole numbers, as eqx.nn.MLP has."
        )
    return OwnNetwork(module, *(int(size) for size in sizes if size is not None))


def check_output(role: str, network: AbstractNetwork, dim: int, *inputs: Any) -> None:
    """Refuses a network that does not give `dim` numbers for these shapes."""
    try:
        out = eqx.filter_eval_shape(network, *inputs)
    except Exception as error:
        shapes = " and ".join(str(a.shape) for a in inputs)
        raise UsageError(
            f"The {role} failed at inputs of the shapes {shapes} "
            f"({type(error).__name__}: {str(error).splitlines()[0]})."
        ) from error
    shape = getattr(out, "shape", None)
    if shape != (dim,):
        raise UsageError(
            f"The {role} must give {dim} numbers, one for each coordinate of the "
            f"target; its output has the shape {shape}."
        )


def _in_network_precision(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        leaf = jnp.asarray(leaf)
    return leaf.astype(NETWORK_DTYPE) if eqx.is_inexact_array(leaf) else leaf
