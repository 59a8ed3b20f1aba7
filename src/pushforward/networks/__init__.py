"""Maps and score models: small networks written for one point, `vmap`ped outside.

Every network can describe itself in plain names and numbers (`describe`), and be built
again from that description (`build`): so a sampler file holds one without any code. A
class of one's own can be made known to files by `register`.
"""

from pushforward.networks.base import (
    AbstractBatchNetwork,
    AbstractDensityNetwork,
    AbstractNetwork,
    AbstractStoredNetwork,
    at_rest,
    with_statistics,
)
from pushforward.networks.coupling import CouplingMap
from pushforward.networks.kinds import KINDS, build, describe, register
from pushforward.networks.mixture import MixtureMap
from pushforward.networks.mlp import MLP, AffineMap, ResidualMap, ScoreMLP
from pushforward.networks.particles import ParticleMap
from pushforward.networks.specs import (
    AbstractNetworkSpec,
    Start,
    affine,
    coupling,
    mixture,
    mlp,
    particles,
    residual,
)
from pushforward.networks.spline import SplineMap

for _kind in (
    MLP,
    AffineMap,
    CouplingMap,
    MixtureMap,
    ParticleMap,
    ResidualMap,
    ScoreMLP,
    SplineMap,
):
    register(_kind)

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
    "MixtureMap",
    "ParticleMap",
    "ResidualMap",
    "ScoreMLP",
    "SplineMap",
    "Start",
    "affine",
    "at_rest",
    "build",
    "coupling",
    "describe",
    "mixture",
    "mlp",
    "particles",
    "register",
    "residual",
    "with_statistics",
]
