"""How many evaluations of the target a check may spend, and has spent."""

import math
from typing import Any

from pushforward._validate import at_least


class Budget:
    """Counts evaluations of the target against a bound."""

    def __init__(self, most: Any):
        """A budget of `most` evaluations; None, and infinity, mean no bound."""
        if most is not None:
            most = at_least("max_evaluations", most, 1)
        self.most = None if most in (None, math.inf) else int(most)
        self.spent = 0
        # Kept back for later.
        self.reserved = 0

    @property
    def left(self) -> float:
        """How many evaluations are left, besides those kept back."""
        if self.most is None:
            return math.inf
        return float(max(0, self.most - self.spent - self.reserved))

    def spend(self, evaluations: int) -> None:
        """Counts evaluations."""
        self.spent += int(evaluations)

    def lacks(self, evaluations: int, what: str) -> str | None:
        """None where the evaluations can be afforded; else a sentence about it."""
        if evaluations <= self.left:
            return None
        return (
            f"{what} takes up to {evaluations:,} target evaluations, and "
            f"max_evaluations={self.most:,} leaves {int(self.left):,}"
        )
