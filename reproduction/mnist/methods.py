"""A method for images: our networks of images as a user's own, and their settings.

The settings are those that were found on an energy model of digits.
"""

import dataclasses
from typing import Any

from pushforward import methods
from pushforward.errors import UsageError
from pushforward.networks import AbstractNetworkSpec
from pushforward.objectives import DFT, AbstractScoreObjective, Noise
from reproduction.mnist.codes import CodeWeights
from reproduction.mnist.networks import Generator, UNet, compute_dtype


class GeneratorSpec(AbstractNetworkSpec):
    """Transposed convolutions to 32 by 32 pixels: see `Generator`."""

    width: int = 1024
    latent: int = 128
    codes: int = 0
    weighted: bool = False
    compute: str | None = None

    def __check_init__(self):
        if self.codes and not 2 <= self.codes <= self.latent:
            raise UsageError(
                "There must be no codes, or from 2 to as many as there are latent "
                f"numbers; there are codes={self.codes}, latent={self.latent}."
            )

    def resolve(self, target):
        return dataclasses.replace(self, compute=self.compute or compute_dtype())

    def sampler(self, key, start):
        network = Generator(
            self.latent,
            self.width,
            self.compute or compute_dtype(),
            self.codes,
            self.weighted,
            key=key,
        )
        if network.out_size != start.target.dim:
            raise UsageError(
                f"A generator makes images of {network.out_size} pixels, and the "
                f"target has {start.target.dim} coordinates."
            )
        return network

    def field(self, key, target):
        raise UsageError("A generator is a sampler and no model of a score.")

    def partner(self):
        return UNetSpec()


class UNetSpec(AbstractNetworkSpec):
    """A U-Net as the model of the score of images: see `UNet`."""

    width: int = 96
    depth: int = 3
    compute: str | None = None

    def resolve(self, target):
        return dataclasses.replace(self, compute=self.compute or compute_dtype())

    def sampler(self, key, start):
        raise UsageError("A U-Net is a model of a score and no sampler.")

    def field(self, key, target):
        side = round(target.dim**0.5)
        compute = self.compute or compute_dtype()
        return UNet(side, self.width, compute, self.depth, key=key)

    def partner(self):
        return self


# DFT's own gradient goes as 1 / sigma^3, KL's as 1 / sigma. The paper's pseudo-code
# weighs DFT's by sigma^2 g^2, where g^2, for levels in geometric order, goes as
# sigma^2; KL's is to be weighed by two powers less.
DFT_POWER, KL_POWER = 4.0, 2.0


DEFAULT_OBJECTIVE = DFT(w1=0.0)


def for_images(
    objective: AbstractScoreObjective = DEFAULT_OBJECTIVE,
    *,
    power: float = DFT_POWER,
    width: int = 1024,
    latent: int = 128,
    codes: int = 32,
    weigh_codes: bool | None = None,
    score_width: int = 96,
    score_depth: int = 3,
    levels: tuple[float, float] = (0.3, 3.0),
    sampler_levels: tuple[float, float] | None = None,
    learning_rate: float = 6e-4,
    **options: Any,
) -> methods.Alternating:
    """A method for a target that knows noise levels, of images of 32 by 32 pixels.

    Transposed convolutions with codes, a U-Net for the score. How likely the codes are
    is learnt: were they equally likely, a kind of image would have the share of a whole
    number of codes.

    Args:
        objective: what is minimised.
        power: the weight of a noise level: see `objectives.Noise`.
        width: the width of the generator.
        latent: how many numbers it starts from.
        codes: how many codes it has.
        weigh_codes: learn how likely they are; by default where there are codes.
        score_width: the width of the U-Net.
        score_depth: its depth.
        levels: noise levels of score steps.
        sampler_levels: noise levels of sampler steps, by default the same.
        learning_rate: that of both networks.
        **options: what `methods.score_based` takes.
    """
    weigh_codes = codes > 0 if weigh_codes is None else weigh_codes
    adam = methods.Adam(learning_rate, momentum=0.0, schedule="constant")
    second = methods.Adam(learning_rate, clip=10.0, schedule="constant")
    sampler_levels = sampler_levels or levels
    noise = Noise(
        antithetic=False, levels=levels, sampler_levels=sampler_levels, power=power
    )
    own: dict[str, Any] = {
        "name": "images",
        "network": GeneratorSpec(width, latent, codes, weigh_codes),
        "score_network": UNetSpec(score_width, score_depth),
        "noise": noise,
        "optimiser": adam,
        "score_optimiser": second,
        "steps": 12_000,
        "batch_size": 128,
        "score_steps": 1,
        # The target is not whitened: a few particles for the initialisation.
        "particles": 8,
    }
    if weigh_codes:
        own["network_loss"] = CodeWeights(sampler_levels[1])
    return methods.score_based(objective, **(own | options))
