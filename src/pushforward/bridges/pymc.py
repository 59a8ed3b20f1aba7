"""From a PyMC model to a target."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pushforward._optional import require
from pushforward.errors import UsageError
from pushforward.targets import Target
from pushforward.targets.foreign import AbstractForeign


class _PyMCDensity(AbstractForeign):
    """The log density of a model, which PyTensor has turned into a function of JAX."""

    def __init__(
        self,
        shapes: dict[str, tuple[int, ...]],
        log_density: Callable[..., Any],
        outputs: Callable[..., Any],
        names: list[str],
    ):
        self.shapes, self._log_density = shapes, log_density
        self._outputs, self._names = outputs, names

    def __call__(self, x: dict[str, Array]) -> Float[Array, ""]:  # type: ignore[override]
        with _quietly():
            (value,) = self._log_density(*(x[name] for name in self.shapes))
        return jnp.asarray(value, float)

    def constrain(self, draws: Any) -> dict[str, np.ndarray]:
        values = [jnp.asarray(draws[name], float) for name in self.shapes]
        with _quietly():
            found = jax.jit(jax.vmap(self._outputs))(*values)
        return {n: np.asarray(a) for n, a in zip(self._names, found, strict=True)}

    def remark(self) -> str | None:
        return None


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """PyTensor's programs are written for 64-bit and mix types and ranks."""
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message=".*requested.*is not available")
        yield


@contextlib.contextmanager
def _own_precision() -> Iterator[None]:
    """What PyMC does to JAX's precision when it is imported is undone."""
    before = jax.config.read("jax_enable_x64")
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


def from_pymc(model: Any) -> Target:
    """The posterior of a PyMC model.

    Its coordinates are PyMC's unconstrained value variables, by their names (`tau` is
    `tau_log__`). `bridges.constrain(target, draws)` brings draws back as the model's
    variables, with its `Deterministic`s; `bridges.to_arviz` of these is what
    `pymc.sample_posterior_predictive` takes.

    The density is compiled to JAX by PyTensor: it runs on the device, without calls of
    the host. That PyMC turns on 64-bit when it is imported is undone.

    Args:
        model: A `pymc.Model` with its data.
    """
    with _own_precision():
        pymc = require("pymc", "pymc", "from_pymc")
        jaxify = require("pymc.sampling.jax", "pymc", "from_pymc").get_jaxified_graph
    if not isinstance(model, pymc.Model):
        raise UsageError(
            f"from_pymc needs a pymc.Model, not a {type(model).__name__}; give the "
            "model of `with pymc.Model() as model:`."
        )
    if model.discrete_value_vars:
        names = ", ".join(v.name for v in model.discrete_value_vars)
        raise UsageError(
            f"The model has the discrete variables {names}, and only real numbers can "
            "be drawn by a network: sum over them, as pymc.Mixture does, or give them "
            "as data."
        )
    variables = list(model.value_vars)
    if not variables:
        raise UsageError(
            "The model has no free variables, so there is nothing to draw."
        )
    point = model.initial_point()
    shapes = {v.name: np.shape(point[v.name]) for v in variables}
    with _own_precision():
        log_density = jaxify(inputs=variables, outputs=[model.logp()])
        free = [*model.free_RVs, *model.deterministics]
        values = model.replace_rvs_by_values(free)
        outputs = jaxify(inputs=variables, outputs=values)
    density = _PyMCDensity(shapes, log_density, outputs, [v.name for v in free])
    example = {name: np.zeros(shape) for name, shape in shapes.items()}
    return Target(density, example=example)
