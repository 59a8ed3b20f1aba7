"""What a run's config holds, and which changes a resume accepts."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from pushforward._version import __version__
from pushforward.errors import FileError, UsageError
from pushforward.methods import REGISTRY, AbstractMethod
from pushforward.methods.base import replace
from pushforward.sampler import FORMAT
from pushforward.targets.base import AbstractTarget
from pushforward.targets.examine import resembles


def whole_number(name: str, value: Any) -> int:
    """The value of an argument that must be a whole number of at least 1."""
    if not isinstance(value, int | np.integer) or value < 1:
        raise UsageError(f"{name} must be a whole number of at least 1, not {value!r}.")
    return int(value)


def method_fields(method: AbstractMethod) -> dict[str, Any]:
    """A method's name and numbers."""
    fields = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
    names = {cls: name for name, cls in REGISTRY.items()}
    return {"kind": names.get(type(method), type(method).__name__), **fields}


def describe(
    method: AbstractMethod,
    key: PRNGKeyArray,
    target: AbstractTarget,
    marks: list[float],
    spec: Any,
) -> dict[str, Any]:
    """The config of a new run: plain names and numbers."""
    return {
        "format": FORMAT,
        "version": __version__,
        "method": method_fields(method),
        "key": key_numbers(key),
        "target": {
            "kind": type(target).__name__,
            "dim": target.dim,
            "names": list(target.names),
            "spec": spec,
            "fingerprint": marks,
        },
        "precision": str(jnp.result_type(float)),
        "device": jax.devices()[0].device_kind,
        "versions": {"jax": jax.__version__, "numpy": np.__version__},
    }


def key_numbers(key: PRNGKeyArray) -> list[int]:
    """A key as it stands in a config."""
    return np.asarray(jax.random.key_data(key)).ravel().tolist()


def reconcile(
    stored: dict[str, Any],
    method: AbstractMethod,
    key: PRNGKeyArray,
    target: AbstractTarget,
    marks: list[float],
) -> tuple[AbstractMethod, dict[str, Any]]:
    """The method and config to go on with; refuses any change but more steps.

    Fields that are None ("choose for me") take what was chosen when the run began,
    perhaps on another device.
    """
    # A field that is newer than the run has the value that leaves all as it was.
    defaults = {f.name: f.default for f in dataclasses.fields(method)}
    old = defaults | stored["method"]
    asked = method_fields(method)
    steps = asked.pop("steps")
    if old["kind"] != asked["kind"]:
        raise FileError(
            f"This run was started with the method {old['kind']!r} and cannot go on "
            f"with {asked['kind']!r}; choose another directory."
        )
    for name, value in asked.items():
        if value is not None and old[name] != value:
            raise FileError(
                f"This run was started with {name}={old[name]!r} and cannot go on "
                f"with {value!r}; only the number of steps may grow."
            )
    if steps is not None and steps < old["steps"]:
        raise FileError(
            f"This run has {old['steps']} steps and cannot be cut to {steps}; only a "
            "larger number of steps may differ."
        )
    if key_numbers(key) != stored["key"]:
        raise FileError(
            "This run was started with another key; pass the same key (or --seed), or "
            "choose another directory."
        )
    if str(jnp.result_type(float)) != stored["precision"]:
        raise FileError(
            f"This run was started in {stored['precision']} and cannot go on in "
            f"{jnp.result_type(float)}; set JAX_ENABLE_X64 as it was."
        )
    if not resembles(target, marks, stored["target"]["fingerprint"]):
        raise FileError(
            "The target is not the one this run was started with (its log density or "
            "score differs at the points compared); choose another directory."
        )
    fields = {k: v for k, v in old.items() if k != "kind"}
    try:
        method = replace(method, **fields)
    except TypeError as error:
        raise UsageError(
            f"The run's config does not fit its method ({error})."
        ) from error
    config = {**stored, "method": dict(stored["method"])}
    if steps is not None and steps > old["steps"]:
        method = replace(method, steps=steps)
        config["method"]["steps"] = steps
    return method, config


def require_extensible(method: AbstractMethod, position: dict[str, Any] | None) -> None:
    """Refuses more steps once the first of several stages has made its share."""
    if position is None or len(method.stages()) == 1:
        return
    if position["stage"] > 0 or position["step"] >= position["steps"]:
        raise FileError(
            "This run's method has several stages and the first is done, so it cannot "
            "be given more steps; leave their number as it was, or start a new run."
        )
