"""From a Stan model to a target."""

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from pushforward._optional import require
from pushforward.errors import UsageError
from pushforward.targets import Target
from pushforward.targets.foreign import CallbackDensity

# Points that are evaluated side by side, where the library lets others run meanwhile.
_THREADS = 8


def from_stan(model_or_code: Any, data: Mapping[str, Any] | None = None) -> Target:
    """The posterior of a Stan model.

    Its coordinates are Stan's unconstrained ones; `bridges.constrain(target, draws)`
    brings draws back as the parameters of the model, transformed ones and generated
    quantities included.

    Values and gradients are Stan's own, by calls of the host. BridgeStan answers
    within microseconds; pystan asks a server, some hundred times a second. What it
    costs is measured, and `fit` says so.

    Args:
        model_or_code: A `bridgestan.StanModel`; a model that pystan has built
            (`stan.build`); or the code of one, which pystan builds.
        data: The data, where code is given.
    """
    model = model_or_code
    if isinstance(model, str):
        model = _built(model, data)
    elif data is not None:
        raise UsageError(
            "from_stan: a model that is built has its data already; leave data out."
        )
    if hasattr(model, "log_density_gradient") and hasattr(model, "param_unc_num"):
        return _from_bridgestan(model)
    if hasattr(model, "grad_log_prob") and hasattr(model, "constrain_pars"):
        return _from_pystan(model)
    raise UsageError(
        "from_stan needs a bridgestan.StanModel, a model of stan.build, or the code of "
        f"a model, not a {type(model).__name__}."
    )


def _built(code: str, data: Mapping[str, Any] | None) -> Any:
    stan = require("stan", "stan", "from_stan, to build a model from its code,")
    return stan.build(code, data=dict(data or {}))


def _from_bridgestan(model: Any) -> Target:
    dim = int(model.param_unc_num())
    names = tuple(model.param_unc_names())
    constrained = list(model.param_names(include_tp=True, include_gq=False))

    def value_and_gradient(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        def one(point: np.ndarray) -> tuple[float, np.ndarray]:
            try:
                return model.log_density_gradient(np.ascontiguousarray(point))
            except RuntimeError:
                # Where Stan rejects a point the density is zero.
                return -np.inf, np.zeros(dim)

        return _gathered(one, x, dim)

    def product(x: np.ndarray, v: np.ndarray) -> np.ndarray:
        found = [
            model.log_density_hessian_vector_product(
                np.ascontiguousarray(p), np.ascontiguousarray(u)
            )[1]
            for p, u in zip(x, v, strict=True)
        ]
        return np.stack(found) if found else np.zeros_like(x)

    def constrain(x: np.ndarray) -> dict[str, np.ndarray]:
        rows = [
            model.param_constrain(np.ascontiguousarray(p), include_tp=True) for p in x
        ]
        return _by_name(constrained, np.array(rows).reshape(len(x), -1))

    has_product = hasattr(model, "log_density_hessian_vector_product")
    density = CallbackDensity(
        "from_stan",
        dim,
        value_and_gradient,
        product if has_product else None,
        constrain,
    )
    return Target(density, dim, names=names)


def _from_pystan(model: Any) -> Target:
    names = list(model.constrained_param_names)
    dim = _pystan_dim(model)

    def value_and_gradient(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        def one(point: np.ndarray) -> tuple[float, np.ndarray]:
            values = point.tolist()
            try:
                value = model.log_prob(values)
                return float(value), np.asarray(model.grad_log_prob(values), float)
            except RuntimeError:
                return -np.inf, np.zeros(dim)

        return _gathered(one, x, dim)

    def constrain(x: np.ndarray) -> dict[str, np.ndarray]:
        rows = [model.constrain_pars(point.tolist()) for point in x]
        return _by_name(names, np.array(rows).reshape(len(x), -1))

    density = CallbackDensity("from_stan", dim, value_and_gradient, None, constrain)
    return Target(density, dim)


def _pystan_dim(model: Any) -> int:
    """The number of unconstrained coordinates, which pystan tells by a refusal."""
    most = max(len(model.constrained_param_names), 1)
    for dim in range(1, most + 1):
        try:
            model.log_prob([0.1] * dim)
            return dim
        except (RuntimeError, ValueError):
            continue
    raise UsageError(
        "from_stan: the model's density could not be evaluated near 0 in any number of "
        "coordinates; give it as a bridgestan.StanModel."
    )


def _gathered(one: Any, x: np.ndarray, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Values and gradients point by point, several at a time."""
    if len(x) > 1:
        with ThreadPoolExecutor(_THREADS) as pool:
            found = list(pool.map(one, x))
    else:
        found = [one(point) for point in x]
    values = np.array([value for value, _ in found], float)
    gradients = np.array([gradient for _, gradient in found], float)
    return values, gradients.reshape(-1, dim)


def _by_name(names: list[str], table: np.ndarray) -> dict[str, np.ndarray]:
    """Arrays from Stan's columns: `theta.1.2` is a number of `theta`."""
    columns: dict[str, dict[tuple[int, ...], np.ndarray]] = {}
    for name, column in zip(names, table.T, strict=True):
        base, *index = re.split(r"\.", name)
        columns.setdefault(base, {})[tuple(int(i) - 1 for i in index)] = column
    found = {}
    for base, places in columns.items():
        shape = tuple(max(axis) + 1 for axis in zip(*places, strict=True))
        ordered = [places[index] for index in sorted(places)]
        found[base] = np.stack(ordered, axis=1).reshape(len(table), *shape)
    return found
