"""Settings for images, as they were found on an energy model of digits."""

from typing import Any, TypeVar

from pushforward.errors import UsageError
from pushforward.methods.alternating import AbstractAlternating
from pushforward.methods.dft import DFT
from pushforward.methods.kl import KL

Method = TypeVar("Method", bound=AbstractAlternating)

_SETTINGS: dict[str, Any] = {
    "shape": "image",
    "codes": 32,
    "steps": 12_000,
    "batch_size": 128,
    "score_steps": 1,
    "learning_rate": 6e-4,
    "score_learning_rate": 6e-4,
    "momentum": 0.0,
    "schedule": "constant",
    "antithetic": False,
    # The target is not whitened: a few particles for the first look.
    "particles": 8,
}
# The paper's pseudo-code weighs DFT's gradient by sigma^2 g^2, where g^2, for levels in
# geometric order, goes as sigma^2. DFT's own gradient goes as 1 / sigma^3, KL's as
# 1 / sigma: two powers less.
_OWN: dict[type, dict[str, Any]] = {
    DFT: {"w1": 0.0, "sigma_power": 4.0},
    KL: {"sigma_power": 2.0},
}


def for_images(kind: type[Method] = DFT, **changes: Any) -> Method:
    """A method for a target that knows noise levels, of images of 32 by 32 pixels.

    Transposed convolutions with codes, a U-Net for the score, and the settings of the
    experiment with digits; `changes` replaces any of them. How likely the codes are is
    learnt: were they equally likely, a kind of image would have the share of a whole
    number of codes.
    """
    if kind not in _OWN:
        raise UsageError(
            f"There are settings for images of DFT and of KL, not of {kind.__name__}."
        )
    settings = _SETTINGS | _OWN[kind] | changes
    return kind(**({"weigh_codes": settings["codes"] > 0} | settings))
