"""The engine: it sees `init` and `step`, and knows no method."""

from pushforward.training.api import fit, fit_many
from pushforward.training.calibrate import Calibration, calibrate
from pushforward.training.callback import Event
from pushforward.training.status import Fit, Status, Trained
from pushforward.training.tasks import train

__all__ = [
    "Calibration",
    "Event",
    "Fit",
    "Status",
    "Trained",
    "calibrate",
    "fit",
    "fit_many",
    "train",
]
