"""What a run's config holds, and which changes a resume accepts."""

import dataclasses
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeGuard

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from pushforward import _validate
from pushforward._version import __version__
from pushforward.errors import FileError
from pushforward.mcmc.copies import how_learnt
from pushforward.methods.base import AbstractTask, describe
from pushforward.targets.base import AbstractTarget
from pushforward.targets.examine import fingerprint, same_target
from pushforward.training.rundir import CONFIG_FORMAT, OF_0_1

# Steps are counted in 32 bits.
MOST_STEPS = 2**31 - 1

Config = dict[str, Any]


def whole_number(name: str, value: Any, most: int = MOST_STEPS) -> int:
    """The value of an argument that must be a whole number of at least 1."""
    return _validate.whole_number(name, value, most=most)


def describe_target(
    target: AbstractTarget, spec: Any, doubts: Iterable[str] = ()
) -> Config:
    """The target of a run in its config.

    Args:
        target: the target.
        spec: where to find it again.
        doubts: what its examination could not settle.
    """
    return {
        "kind": type(target).__name__,
        "dim": target.dim,
        "names": list(target.names),
        "spec": spec,
        "fingerprint": fingerprint(target),
        "doubts": list(doubts),
        **({} if target.symmetry is None else {"symmetry": how_learnt(target)}),
    }


def describe_data(data: Any) -> Config:
    """The data of a run in its config."""
    return {"kind": "data", "checksum": checksum(data)}


def checksum(data: Any) -> int:
    """A number that other arrays would hardly share."""
    total = 0
    for leaf in jax.tree.leaves(eqx.filter(data, eqx.is_array_like)):
        array = np.asarray(leaf)
        total = zlib.crc32(f"{array.dtype}{array.shape}".encode(), total)
        total = zlib.crc32(array.tobytes(), total)
    return total


def new_config(
    learner: AbstractTask,
    steps: int,
    key: PRNGKeyArray,
    target: Config,
    max_evaluations: int | None = None,
) -> Config:
    """The config of a new run of so many steps: plain names and numbers."""
    budget = {} if max_evaluations is None else {"max_evaluations": max_evaluations}
    return {
        "format": CONFIG_FORMAT.version,
        "version": __version__,
        "method": learner.describe(),
        "steps": steps,
        **budget,
        "key": _key_numbers(key),
        "target": target,
        "precision": str(jnp.result_type(float)),
        "device": jax.devices()[0].device_kind,
        "versions": {"jax": jax.__version__, "numpy": np.__version__},
    }


def _key_numbers(key: PRNGKeyArray) -> list[int]:
    return np.asarray(jax.random.key_data(key)).ravel().tolist()


def same_budget(stored: Config, asked: int | None) -> int | None:
    """The budget of evaluations of a run, which no resume may change."""
    budget = stored.get("max_evaluations")
    if asked is not None and asked != budget:
        raise FileError(
            f"This run was started with max_evaluations={budget} and cannot go on with "
            f"{asked}; leave it out, or start a new run."
        )
    return budget


def reconcile(
    stored: Config,
    learner: AbstractTask,
    steps: int | None,
    key: PRNGKeyArray,
    data: Any,
    target: Config,
) -> tuple[AbstractTask, Config]:
    """The method and config to go on with; refuses any change but more steps.

    The method is the caller's: a config cannot hold a network or an optimiser. Its
    fields that are None ("choose for me") take what was chosen when the run began.

    Args:
        stored: the config of the run.
        learner: the method that the caller names.
        steps: the number of steps that the caller names, if any.
        key: the key that the caller names.
        data: the target that the caller names.
        target: the same as it stands in a config.
    """
    if OF_0_1 in stored["method"]:
        raise FileError(
            "This run was started by version 0.1, whose methods had other parts, and "
            "cannot be continued; the sampler that it saved can still be loaded."
        )
    old = _with_defaults(learner, stored["method"])
    if old["name"] != learner.name:
        raise FileError(
            f"This run was started with the method {old['name']!r} and cannot go on "
            f"with {learner.name!r}; choose another directory."
        )
    learner = _completed(learner, old).resolve(data)
    now = learner.describe()
    _require_same_method(old, now)
    if steps is None:
        # Those of the method, if they are others than when the run began.
        same = _steps_in(now) == _steps_in(old)
        steps = stored["steps"] if same else learner.steps
    if steps < stored["steps"]:
        raise FileError(
            f"This run has {stored['steps']} steps and cannot be cut to {steps}; only "
            "a larger number of steps may differ."
        )
    if _key_numbers(key) != stored["key"]:
        raise FileError(
            "This run was started with another key; pass the same key (or --seed), or "
            "choose another directory."
        )
    if str(jnp.result_type(float)) != stored["precision"]:
        raise FileError(
            f"This run was started in {stored['precision']} and cannot go on in "
            f"{jnp.result_type(float)}; set JAX_ENABLE_X64 as it was."
        )
    _require_same_target(stored["target"], target, data)
    return learner.with_sizes(steps=steps), {**stored, "steps": steps}


# Where the description of a method holds its number of steps, which may differ.
_STEPS = ("steps", "training.steps")


def _steps_in(method: Config) -> list[Any]:
    return [method.get("steps"), (method.get("training") or {}).get("steps")]


def _require_same_method(old: Config, asked: Config) -> None:
    for name, was, now in _differences(old, asked):
        if name not in _STEPS:
            raise FileError(
                f"This run was started with {name}={_in_words(was)} and cannot go on "
                f"with {_in_words(now)}; only the number of steps may grow."
            )


def _with_defaults(part: Any, old: Config) -> Config:
    """What a run was started with; it may be older than a field of the method.

    A new field has a default that leaves all as it was.
    """
    found = dict(old)
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if field.name not in old and field.default is not dataclasses.MISSING:
            found[field.name] = describe(field.default)
        elif _is_ours(old.get(field.name)) and dataclasses.is_dataclass(value):
            found[field.name] = _with_defaults(value, old[field.name])
    return found


def _is_ours(part: Any) -> TypeGuard[dict[str, Any]]:
    """Whether a part of a config is described field by field."""
    return isinstance(part, dict) and "own" not in part


def _differences(old: Any, asked: Any, name: str = "") -> Iterator[tuple]:
    """The fields that were asked for and are not what they were: name, old, new."""
    if asked is None:
        return
    if isinstance(old, dict) and isinstance(asked, dict) and "kind" in asked:
        for field, now in asked.items():
            inner = f"{name}.{field}" if name else field
            yield from _differences(old.get(field), now, inner)
    elif old != asked:
        yield name, old, asked


def _in_words(part: Any) -> str:
    if isinstance(part, dict):
        return f"your own {part['own']}" if "own" in part else str(part.get("kind"))
    return repr(part)


def _completed(part: Any, old: Config) -> Any:
    """The method with its None fields as they were resolved when the run began."""
    changes = {}
    for field in dataclasses.fields(part):
        value, was = getattr(part, field.name), old.get(field.name)
        if value is None and was is not None and not isinstance(was, dict):
            changes[field.name] = tuple(was) if isinstance(was, list) else was
        elif _is_ours(was) and dataclasses.is_dataclass(value):
            completed = _completed(value, was)
            if completed is not value:
                changes[field.name] = completed
    return dataclasses.replace(part, **changes) if changes else part


def _require_same_target(old: Config, now: Config, data: Any) -> None:
    # Runs of earlier versions do not say what their data were.
    if "checksum" in now and old.get("checksum") not in (None, now["checksum"]):
        raise FileError(
            "This run was started with another data set and cannot go on with this "
            "one; choose another directory."
        )
    if old.get("symmetry") != now.get("symmetry"):
        raise FileError(
            "This run was started with another symmetry of its target; choose another "
            "directory."
        )
    if "fingerprint" in now and not same_target(
        data, now["fingerprint"], old["fingerprint"]
    ):
        raise FileError(
            "The target is not the one this run was started with (its log density or "
            "score differs at the points compared); choose another directory."
        )
