"""The engine: it sees `init` and `step`, and knows no method."""

from pushforward.training.api import Fit, fit, fit_many

__all__ = ["Fit", "fit", "fit_many"]
