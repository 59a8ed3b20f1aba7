"""The engine: it sees `init` and `step`, and knows no method."""

from pushforward.training.api import Fit, fit, fit_many
from pushforward.training.tasks import Trained, train

__all__ = ["Fit", "Trained", "fit", "fit_many", "train"]
