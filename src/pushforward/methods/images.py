"""Settings for images, as they were found on an energy model of digits."""

from typing import Any, TypeVar

from pushforward.methods.dft import DFT
from pushforward.methods.kl import KL

Method = TypeVar("Method", DFT, KL)

_SETTINGS: dict[str, Any] = {
    "shape": "image",
    "codes": 32,
    "steps": 14_000,
    "batch_size": 128,
    "score_steps": 1,
    "learning_rate": 6e-4,
    "score_learning_rate": 6e-4,
    "momentum": 0.0,
    # With a rate that falls, images got worse towards the end.
    "schedule": "constant",
    "antithetic": False,
    # The target is not whitened: a few particles for the first look.
    "particles": 8,
}
# DFT's gradient goes as 1 / sigma^3, that of a product of two scores, and KL's as
# 1 / sigma. One power more than evens this out, since the weights of modes show at high
# levels alone.
_OWN: dict[type, dict[str, Any]] = {
    DFT: {"w1": 0.0, "sigma_power": 4.0},
    KL: {"sigma_power": 2.0},
}


def for_images(kind: type[Method] = DFT, **changes: Any) -> Method:
    """A method for a target that knows noise levels, of images of 32 by 32 pixels.

    Transposed convolutions with codes, a U-Net for the score, and the settings of the
    experiment with digits; `changes` replaces any of them.
    """
    return kind(**(_SETTINGS | _OWN[kind] | changes))
