"""How many evaluations of the target a check may spend, and has spent."""

import math

from pushforward.errors import UsageError


class Budget:
    """Counts evaluations of the target against a bound."""

    def __init__(self, most: int | float | None):
        """A budget of `most` evaluations; None means no bound."""
        if most is not None and not (isinstance(most, int | float) and most >= 1):
            raise UsageError(
                f"max_evaluations must be a number of at least 1, not {most!r}."
            )
        self.most = None if most is None else int(most)
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
