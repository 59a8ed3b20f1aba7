"""From functions of NumPy to a target."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pushforward.errors import UsageError
from pushforward.targets import Target
from pushforward.targets.base import Constraints, make_structure
from pushforward.targets.foreign import CallbackDensity, as_batches, near_zero
from pushforward.targets.structure import Structure


def from_numpy(
    log_density: Callable[[Any], Any],
    gradient: Callable[[Any], Any],
    dim: int,
    *,
    constraints: Constraints | None = None,
    names: tuple[str, ...] | None = None,
) -> Target:
    """A target from a log density and its gradient, written with NumPy.

    Each evaluation is a call of the host, which costs more than a density in JAX and
    runs on the CPU. What it costs is measured, and `fit` says so where it is much.

    Args:
        log_density: A function of an n by dim array of points that returns n numbers,
            or of one point that returns one. Of many points at once it is much faster.
        gradient: A function that returns the gradient in the same way.
        dim: The number of coordinates.
        constraints: As for `Target`; both functions are of the constrained point.
        names: A name for each coordinate.

    Raises:
        UsageError: The functions fail, return other shapes, or the gradient is not
            that of the log density.
    """
    if not (callable(log_density) and callable(gradient)):
        raise UsageError(
            "from_numpy needs two functions, the log density and its gradient."
        )
    structure = make_structure(dim, None, names, constraints)
    probe = probe_points(structure)
    value = as_batches("from_numpy", log_density, probe).call
    slope = as_batches("from_numpy", gradient, probe).call
    _require_gradient(value, slope, probe[:8])
    density = CallbackDensity(
        "from_numpy", dim, lambda x: (value(x), slope(x)), probe=probe
    )
    return Target(density, example=structure)


def probe_points(structure: Structure) -> np.ndarray:
    """Points of a vector of parameters, inside their bounds."""
    x = jnp.asarray(near_zero(structure.size), float)
    return np.asarray(jax.vmap(structure.unflatten)(x), float)


def _require_gradient(
    value: Callable[[np.ndarray], np.ndarray],
    slope: Callable[[np.ndarray], np.ndarray],
    x: np.ndarray,
) -> None:
    """Refuses a gradient that differs from differences of the log density."""
    # Coarse enough for functions in single precision.
    v, h = np.random.default_rng(2).normal(size=x.shape), 1e-3
    found = np.asarray(slope(x), float)
    if found.shape != x.shape:
        raise UsageError(
            f"from_numpy: for {x.shape} numbers the gradient has the shape "
            f"{found.shape}; it must have the same."
        )
    along = (found * v).sum(axis=1)
    expected = (np.asarray(value(x + h * v)) - np.asarray(value(x - h * v))) / (2 * h)
    known = np.isfinite(along) & np.isfinite(expected)
    size = np.abs(found * v).sum(axis=1) + np.abs(expected)
    off = np.abs(along - expected) > 3e-2 * size + 1e-3 * np.abs(value(x)) + 1e-5
    # A point may lie on a kink, or where the density ends: most of them may not.
    if known.any() and (off & known).sum() > known.sum() / 2:
        i = int(np.argmax(off & known))
        raise UsageError(
            "from_numpy: the gradient is not that of the log density: along one "
            f"direction at {x[i].round(3).tolist()} it is {along[i]:.4g}, and by "
            f"differences {expected[i]:.4g}."
        )
