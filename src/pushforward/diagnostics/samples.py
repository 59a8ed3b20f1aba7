"""What two samples must be, to be compared."""

from typing import Any

import jax.numpy as jnp
import numpy as np


def require_two_samples(name: str, x: Any, y: Any, *, least: int = 1) -> None:
    """Refuses what is not two samples of one space.

    Args:
        name: the function that was called.
        x: draws, one in each row.
        y: other draws.
        least: how many draws each must have.
    """
    for label, sample in (("x", x), ("y", y)):
        shape = np.shape(sample)
        if len(shape) != 2 or shape[0] < least or shape[1] < 1:
            enough = " of at least two draws" if least > 1 else ""
            raise ValueError(
                f"{name}: {label} must be an (n, d) array{enough}, but its shape is "
                f"{shape}; reshape it so that each row is one draw."
            )
        if not jnp.issubdtype(sample.dtype, jnp.floating):
            raise ValueError(
                f"{name}: {label} has dtype {sample.dtype}; convert it to floating "
                "point."
            )
    if np.shape(x)[1] != np.shape(y)[1]:
        raise ValueError(
            f"{name}: x has {np.shape(x)[1]} coordinates and y has {np.shape(y)[1]}; "
            "give two samples of the same space."
        )
