"""What a test of draws is, and what it is given."""

import dataclasses
import enum
from collections.abc import Callable

import numpy as np
from jaxtyping import Float, PRNGKeyArray

from pushforward.diagnostics.evaluation import Sample
from pushforward.diagnostics.reference import Reference
from pushforward.diagnostics.results import TestResult
from pushforward.sampler import Sampler
from pushforward.targets.base import AbstractTarget


class Need(enum.Enum):
    """What a test needs besides the draws and their scores."""

    LOG_DENSITY = "log density"
    REFERENCE = "reference"
    SAMPLER_DENSITY = "sampler whose own density is known"


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What the tests are given.

    Attributes:
        target: The target.
        sample: The draws that are tested.
        reference: What they are compared with, or None.
        near: Reference draws to compare with, nearly independent; None without a
            reference.
        far: Other reference draws, which play the role of the tested draws.
        bounded: Whether the caller set a bound on the evaluations.
        sampler: Where the draws come from, in unconstrained coordinates, if its own
            density is known.
    """

    target: AbstractTarget
    sample: Sample
    reference: Reference | None = None
    near: Float[np.ndarray, "a d"] | None = None
    far: Sample | None = None
    bounded: bool = False
    sampler: Sampler | None = None

    def has(self, need: Need) -> bool:
        """Whether a need is met."""
        if need is Need.LOG_DENSITY:
            return self.target.why_no_density() is None
        if need is Need.SAMPLER_DENSITY:
            return self.sampler is not None
        return self.reference is not None and self.far is not None


@dataclasses.dataclass(frozen=True)
class StatisticalTest:
    """One test of whether draws follow a target.

    Attributes:
        name: Its name in the verdict.
        needs: What it needs besides the draws and their scores. A test that needs a
            reference is inconclusive where the reference cannot be trusted.
        run: `run(key, evidence, level)` makes the test at a level.
        skip: `skip(evidence)` is a result where there is nothing to test, else None.
        evaluations: `evaluations(evidence)` bounds what `run` spends.
    """

    name: str
    needs: frozenset[Need]
    run: Callable[[PRNGKeyArray, Evidence, float], TestResult]
    skip: Callable[[Evidence], TestResult | None] = lambda evidence: None
    evaluations: Callable[[Evidence], int] = lambda evidence: 0

    def applies(self, evidence: Evidence) -> bool:
        """Whether its needs are met."""
        return all(evidence.has(need) for need in self.needs)
