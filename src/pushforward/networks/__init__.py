"""Maps and score models: small networks written for one point, `vmap`ped outside.

Every network can describe itself in plain names and numbers (`describe`), and be built
again from that description (`build`): so a sampler file holds one without any code.
"""

from pushforward.networks.base import AbstractNetwork, build, describe
from pushforward.networks.flow import FlowMap
from pushforward.networks.mixture import MixtureMap
from pushforward.networks.mlp import MLP, AffineMap, ResidualMap, ScoreMLP

__all__ = [
    "MLP",
    "AbstractNetwork",
    "AffineMap",
    "FlowMap",
    "MixtureMap",
    "ResidualMap",
    "ScoreMLP",
    "build",
    "describe",
]
