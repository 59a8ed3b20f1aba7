"""What callers hand over in place of what was meant, and the sentence they get."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from pushforward.errors import UsageError
from pushforward.targets.base import AbstractTarget


def as_key(key: Any) -> Key[Array, "..."]:
    """A random key; one of the old style (`jax.random.PRNGKey`) is made a new one."""
    if isinstance(key, jax.Array):
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            return key
        if key.dtype == jnp.uint32 and key.ndim >= 1:
            return jax.random.wrap_key_data(key)
    raise UsageError(
        "The first argument must be a random key, such as jax.random.key(0), not a "
        f"{type(key).__name__}."
    )


def as_target(target: Any) -> AbstractTarget:
    """A target, or a sentence that says how to make one."""
    if isinstance(target, AbstractTarget):
        return target
    hint = "use pushforward.Target, or one of the built-in pushforward.targets"
    if callable(target):
        hint = "wrap the function: pushforward.Target(log_density, dim=2)"
    raise UsageError(f"A {type(target).__name__} is no target; {hint}.")
