"""How far draws can be trusted: discrepancies, distances, modes and the verdict."""

from pushforward.diagnostics.floor import Floor, Score
from pushforward.diagnostics.frechet import Moments, frechet, moments
from pushforward.diagnostics.ksd import KSD, ksd, stein_kernel
from pushforward.diagnostics.mmd import MMD, mmd
from pushforward.diagnostics.modes import (
    ModeComparison,
    Modes,
    compare_modes,
    find_modes,
    mode_weights,
)
from pushforward.diagnostics.verdict import Finding, Verdict, check
from pushforward.diagnostics.wasserstein import sliced_w2, w2
from pushforward.diagnostics.weights import Weighed, weigh

__all__ = [
    "KSD",
    "MMD",
    "Finding",
    "Floor",
    "ModeComparison",
    "Modes",
    "Moments",
    "Score",
    "Verdict",
    "Weighed",
    "check",
    "compare_modes",
    "find_modes",
    "frechet",
    "ksd",
    "mmd",
    "mode_weights",
    "moments",
    "sliced_w2",
    "stein_kernel",
    "w2",
    "weigh",
]
