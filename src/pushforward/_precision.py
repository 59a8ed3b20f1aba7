"""Where precision changes: networks in float32, everything around them in full."""

import jax.numpy as jnp
from jaxtyping import Array, Float

NETWORK_DTYPE = jnp.float32


def narrow(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """To the networks' precision: float32, even when the user runs in 64-bit."""
    return x.astype(NETWORK_DTYPE)


def widen(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """To the default precision of the program around the networks."""
    return x.astype(jnp.result_type(float))
