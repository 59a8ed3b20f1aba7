"""Maps and score models: small networks written for one point, `vmap`ped outside.

Every network can describe itself in plain names and numbers (`describe`), and be built
again from that description (`build`): so a sampler file holds one without any code.
"""

from pushforward.networks.base import (
    AbstractBatchNetwork,
    AbstractDensityNetwork,
    AbstractNetwork,
    at_rest,
    build,
    computing_in,
    describe,
    with_statistics,
)
from pushforward.networks.classifier import WideResNet
from pushforward.networks.coupling import CouplingMap
from pushforward.networks.energy import EnergyResNet
from pushforward.networks.flow import FlowMap
from pushforward.networks.generator import Generator
from pushforward.networks.mixture import MixtureMap
from pushforward.networks.mlp import MLP, AffineMap, ResidualMap, ScoreMLP
from pushforward.networks.unet import UNet

__all__ = [
    "MLP",
    "AbstractBatchNetwork",
    "AbstractDensityNetwork",
    "AbstractNetwork",
    "AffineMap",
    "CouplingMap",
    "EnergyResNet",
    "FlowMap",
    "Generator",
    "MixtureMap",
    "ResidualMap",
    "ScoreMLP",
    "UNet",
    "WideResNet",
    "at_rest",
    "build",
    "computing_in",
    "describe",
    "with_statistics",
]
