"""How far draws can be trusted: discrepancies, distances, modes and the verdict."""

from pushforward.diagnostics.baseline import BaselineComparison, ExactBaseline
from pushforward.diagnostics.bridge import Bridge, bridge, bridge_of
from pushforward.diagnostics.ksd import KSD, ksd
from pushforward.diagnostics.mmd import MMD, mmd
from pushforward.diagnostics.modes import (
    ModeComparison,
    Modes,
    compare_modes,
    find_modes,
    mode_weights,
)
from pushforward.diagnostics.ranks import Ranks
from pushforward.diagnostics.reference import Reference, make_reference
from pushforward.diagnostics.results import Outcome, TestResult
from pushforward.diagnostics.verdict import Verdict, check
from pushforward.diagnostics.wasserstein import sliced_w2, w2
from pushforward.diagnostics.weights import ImportanceSample, weigh
from pushforward.objectives.stein_kernel import stein_kernel

__all__ = [
    "KSD",
    "MMD",
    "BaselineComparison",
    "Bridge",
    "ExactBaseline",
    "ImportanceSample",
    "ModeComparison",
    "Modes",
    "Outcome",
    "Ranks",
    "Reference",
    "TestResult",
    "Verdict",
    "bridge",
    "bridge_of",
    "check",
    "compare_modes",
    "find_modes",
    "ksd",
    "make_reference",
    "mmd",
    "mode_weights",
    "sliced_w2",
    "stein_kernel",
    "w2",
    "weigh",
]
