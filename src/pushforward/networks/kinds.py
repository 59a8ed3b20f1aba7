"""The kinds of network that a file can name, and the way back from a name to a network.

A file names a kind and its constructor's arguments, plain names and numbers. Only a
registered class is ever built: a file cannot name code that nobody has vouched for.
"""

import dataclasses
import inspect
import math
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from pushforward.errors import FileError, UsageError
from pushforward.networks.base import AbstractNetwork

# What a file can name.
KINDS: dict[str, type[AbstractNetwork]] = {}

Kind = TypeVar("Kind")


def register(kind: Kind) -> Kind:
    """Makes a class of network known to files, by the name of the class.

    The arguments of its constructor, but for `key`, must be static fields of the same
    names: they are what a file holds beside the arrays. Whoever loads such a file
    imports the module that registers the class first.

    Args:
        kind: a subclass of `AbstractNetwork`, whose constructor takes `key=`.

    Returns:
        `kind`, so that it may stand above the class as a decorator.
    """
    cls: Any = kind
    if not (isinstance(cls, type) and issubclass(cls, AbstractNetwork)):
        raise UsageError(
            f"networks.register takes a subclass of AbstractNetwork, not {kind!r}."
        )
    name, known = cls.__name__, KINDS.get(cls.__name__)
    # A cell of a notebook that is run again defines the same class once more.
    if known is not None and _home(known) != _home(cls):
        raise UsageError(
            f"The kind {name!r} is that of {_home(known)} already; give {_home(cls)} "
            "another name."
        )
    arguments = _arguments(cls)
    if "key" not in arguments:
        raise UsageError(f"The constructor of {name} must take key=, a random key.")
    static = {f.name for f in dataclasses.fields(cls) if f.metadata.get("static")}
    missing = sorted(arguments - static - {"key"})
    if missing:
        raise UsageError(
            f"A file could not hold {', '.join(missing)} of {name}: every argument of "
            "its constructor but key must be a field of the same name, marked with "
            "eqx.field(static=True)."
        )
    KINDS[name] = cls
    return kind


def describe(network: Any) -> dict[str, Any]:
    """The network's kind and constructor arguments, as plain names and numbers.

    Of a class that is not registered, only its name.
    """
    kind = type(network)
    if KINDS.get(kind.__name__) is not kind:
        return {"class": _home(kind)}
    arguments = _arguments(kind)
    names = [f.name for f in dataclasses.fields(network) if f.name in arguments]
    return {"kind": kind.__name__, **{name: getattr(network, name) for name in names}}


def build(description: Any, key: PRNGKeyArray | None = None) -> Any:
    """A network from its description; without a key, only its shapes."""
    arguments = dict(description) if isinstance(description, dict) else {}
    kind = arguments.pop("kind", None)
    make: Any = KINDS.get(kind) if isinstance(kind, str) else None
    if make is None:
        raise FileError(
            f"The file holds a network of the kind {kind!r}, which is not known here; "
            "import the module that defines it, which must call networks.register, or "
            "update pushforward."
        )
    try:
        _require_types(make, arguments)
        if key is not None:
            return make(**arguments, key=key)
        return eqx.filter_eval_shape(
            lambda key: make(**arguments, key=key), jax.random.key(0)
        )
    except (
        TypeError,
        ValueError,
        ArithmeticError,
        LookupError,
        AttributeError,
        AssertionError,
        StopIteration,
        RecursionError,
        MemoryError,
    ) as error:
        raise FileError(
            f"The file's description of its {kind} network does not fit the class of "
            f"that name ({error})."
        ) from error


# What may stand in a file for an argument of a type. A truth value is no number.
_STORED: dict[Any, tuple[type, ...]] = {
    int: (int, np.integer),
    float: (int, float, np.integer, np.floating),
    bool: (bool,),
    str: (str,),
}


def _require_types(make: Any, arguments: dict[str, Any]) -> None:
    """Refuses an argument of another type than the constructor says."""
    parameters = inspect.signature(make.__init__).parameters
    for name, value in arguments.items():
        wanted = parameters[name].annotation
        allowed = _STORED.get(wanted)
        if allowed is None:
            continue
        truth = isinstance(value, bool)
        if truth != (wanted is bool) or not isinstance(value, allowed):
            raise TypeError(f"{name}={value!r}")
        if wanted is float and not math.isfinite(value):
            raise ValueError(f"{name}={value!r}")


def _arguments(kind: type) -> set[str]:
    return set(inspect.signature(kind.__init__).parameters) - {"self"}


def _home(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
