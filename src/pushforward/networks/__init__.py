"""Maps and score models: small networks written for one point, `vmap`ped outside.

Every network can describe itself in plain names and numbers (`describe`), and be built
again from that description (`build`): so a sampler file holds one without any code.
"""

from pushforward.networks.base import (
    AbstractBatchNetwork,
    AbstractDensityNetwork,
    AbstractNetwork,
    AbstractStoredNetwork,
    at_rest,
    build,
    computing_in,
    describe,
    with_statistics,
)
from pushforward.networks.classifier import WideResNet
from pushforward.networks.coupling import CouplingMap
from pushforward.networks.energy import EnergyResNet
from pushforward.networks.generator import Generator
from pushforward.networks.mixture import MixtureMap
from pushforward.networks.mlp import MLP, AffineMap, ResidualMap, ScoreMLP
from pushforward.networks.specs import (
    AbstractNetworkSpec,
    Start,
    affine,
    coupling,
    mixture,
    mlp,
    residual,
)
from pushforward.networks.spline import SplineMap
from pushforward.networks.unet import UNet

# What a file can name.
KINDS: dict[str, type[AbstractNetwork]] = {
    kind.__name__: kind
    for kind in (
        MLP,
        AffineMap,
        CouplingMap,
        EnergyResNet,
        Generator,
        MixtureMap,
        ResidualMap,
        ScoreMLP,
        SplineMap,
        UNet,
        WideResNet,
    )
}

__all__ = [
    "KINDS",
    "MLP",
    "AbstractBatchNetwork",
    "AbstractDensityNetwork",
    "AbstractNetwork",
    "AbstractNetworkSpec",
    "AbstractStoredNetwork",
    "AffineMap",
    "CouplingMap",
    "EnergyResNet",
    "Generator",
    "MixtureMap",
    "ResidualMap",
    "ScoreMLP",
    "SplineMap",
    "Start",
    "UNet",
    "WideResNet",
    "affine",
    "at_rest",
    "build",
    "computing_in",
    "coupling",
    "describe",
    "mixture",
    "mlp",
    "residual",
    "with_statistics",
]
