"""What a run of chains returns."""

import equinox as eqx
from jaxtyping import Array, Float


class MCMCResult(eqx.Module):
    """Where the chains ended, and what it cost.

    Attributes:
        positions: The last point of each chain.
        evaluations: The number of scores that were computed.
        acceptance: The mean acceptance probability; None without an accept step.
    """

    positions: Float[Array, "n d"]
    evaluations: int = eqx.field(static=True)
    acceptance: Float[Array, ""] | None = None
