"""The errors a user sees: one sentence that says what, where and what to do."""

__all__ = [
    "DamageWarning",
    "DensityError",
    "FileError",
    "MissingDependencyError",
    "PushforwardError",
    "TrainingError",
    "UnfinishedWarning",
    "UsageError",
]


class PushforwardError(Exception):
    """Base of every error pushforward raises on purpose."""


class UsageError(PushforwardError, ValueError):
    """What was asked for cannot be done; nothing was written."""


class DensityError(UsageError):
    """The user's density cannot be used, or has no finite integral."""


class FileError(UsageError):
    """A file is missing, truncated, foreign, too new, or cannot be written."""


class MissingDependencyError(PushforwardError, ImportError):
    """An optional dependency is not installed; the message holds the pip command."""


class UnfinishedWarning(UserWarning):
    """Ctrl-C ended a training; what was learnt by then was returned."""


class DamageWarning(UserWarning):
    """Part of a run was damaged and was left out; the message says which."""


class TrainingError(PushforwardError, RuntimeError):
    """Training could not go on; what was reached is still on disk."""
