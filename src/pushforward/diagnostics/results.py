"""What a test found, and the three outcomes that it can have."""

import dataclasses
import enum
from typing import Any

from pushforward.errors import UsageError


class Outcome(enum.StrEnum):
    """The outcome of a test or of a whole verdict."""

    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"

    def __bool__(self) -> bool:
        raise UsageError(
            "An Outcome is neither true nor false, because it may be inconclusive; "
            "compare it with Outcome.PASSED."
        )


_MARKS = {Outcome.PASSED: "✓", Outcome.FAILED: "✗", Outcome.INCONCLUSIVE: "?"}


@dataclasses.dataclass(frozen=True)
class TestResult:
    """What one test found.

    Attributes:
        name: The name of the test.
        outcome: Passed, failed or inconclusive.
        sentence: What it found, in words.
        statistic: The value of its statistic for the draws.
        reference: The value for as many reference draws.
        p_value: How often exact draws would have a statistic as extreme; None where
            the outcome does not rest on a p-value.
        level: The test fails where the p-value is not above this.
        reference_p_value: The p-value of the reference draws themselves, for a test
            that needs no reference.
    """

    # pytest takes a class of this name for a test.
    __test__ = False

    name: str
    outcome: Outcome
    sentence: str
    statistic: float | None = None
    reference: float | None = None
    p_value: float | None = None
    level: float | None = None
    reference_p_value: float | None = None

    @staticmethod
    def of_p_value(
        name: str,
        p_value: float,
        level: float,
        *,
        failed: str,
        passed: str,
        **fields: Any,
    ) -> "TestResult":
        """The result of a test that fails where its p-value is not above its level.

        Args:
            name: The name of the test.
            p_value: The p-value; one that is not a number fails.
            level: The level.
            failed: The sentence where it fails.
            passed: The sentence where it passes.
            **fields: Other fields of the result.
        """
        ok = bool(p_value > level)
        return TestResult(
            name=name,
            outcome=Outcome.PASSED if ok else Outcome.FAILED,
            sentence=passed if ok else failed,
            p_value=float(p_value),
            level=level,
            **fields,
        )

    def __str__(self) -> str:
        figures = []
        if self.statistic is not None:
            figures.append(f"{self.statistic:.3g}")
        if self.reference is not None:
            figures.append(f"(reference {self.reference:.3g})")
        if self.p_value is not None:
            small = self.p_value < 1e-6
            figures.append("p < 1e-6" if small else f"p = {self.p_value:.2g}")
        words = ", ".join([*figures, self.sentence])
        return f"{_MARKS[self.outcome]} {self.name}: {words}".replace(", (", " (")
