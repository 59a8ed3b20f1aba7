"""Networks of images, which come as vectors.

Once this is imported, files that name them can be loaded.
"""

from pushforward.networks import register
from reproduction.mnist.networks.classifier import WideResNet
from reproduction.mnist.networks.energy import EnergyResNet
from reproduction.mnist.networks.generator import Generator
from reproduction.mnist.networks.precision import compute_dtype, computing_in
from reproduction.mnist.networks.unet import UNet

for kind in (EnergyResNet, Generator, UNet, WideResNet):
    register(kind)

__all__ = [
    "EnergyResNet",
    "Generator",
    "UNet",
    "WideResNet",
    "compute_dtype",
    "computing_in",
]
