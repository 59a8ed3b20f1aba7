"""In what convolutions are computed."""

from typing import Any

import jax

from pushforward.networks import build, describe


def compute_dtype() -> str:
    """In what convolutions are computed here: bfloat16 is hopelessly slow on a CPU."""
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"


def computing_in(network: Any, compute: str) -> Any:
    """The same weights in a network whose convolutions are computed in `compute`."""
    other = build({**describe(network), "compute": compute})
    return jax.tree.unflatten(jax.tree.structure(other), jax.tree.leaves(network))
