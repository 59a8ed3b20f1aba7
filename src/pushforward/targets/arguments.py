"""Validation of the two arguments that most functions share: a key and a target."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from pushforward._programs import note
from pushforward.errors import UsageError
from pushforward.targets.base import AbstractTarget


def as_key(key: Any) -> Key[Array, "..."]:
    """A typed random key, also from an old-style one (`jax.random.PRNGKey`)."""
    if isinstance(key, jax.Array):
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            return key
        if key.dtype == jnp.uint32 and key.ndim >= 1:
            return jax.random.wrap_key_data(key)
    raise UsageError(
        "The first argument must be a random key, such as jax.random.key(0), not a "
        f"{type(key).__name__}."
    )


def one_key(key: Any) -> Key[Array, ""]:
    """A single random key."""
    key = as_key(key)
    if key.shape:
        raise UsageError(
            f"A single random key is needed here, not an array of {key.shape} of them; "
            "take one of them, or map over all with jax.vmap."
        )
    return key


def as_target(target: Any) -> AbstractTarget:
    """The target, or a `UsageError` that says how to make one.

    The public functions come by here: programs of earlier densities are let go of.
    """
    if isinstance(target, AbstractTarget):
        note(target)
        return target
    hint = "use pushforward.Target, or one of the built-in pushforward.targets"
    if callable(target):
        hint = "wrap the function: pushforward.Target(log_density, dim=2)"
    raise UsageError(f"Expected a Target, got {type(target).__name__}; {hint}.")
