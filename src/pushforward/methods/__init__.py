"""Ways to train a sampler: networks, objectives and optimisers, put together.

`DFT()`, `KL()` and the other names are short constructors. Any method can be put
together by hand: `score_based` and `single_network` take an objective of one's own.
"""

from pushforward.methods.adaptive import ExploreAndTrain
from pushforward.methods.alternating import Alternating
from pushforward.methods.base import AbstractMethod, AbstractState, AbstractTask
from pushforward.methods.clock import Clock, average
from pushforward.methods.default import default
from pushforward.methods.named import (
    DFT,
    KL,
    KSD,
    REGISTRY,
    Adaptive,
    Fisher,
    Flow,
    Gaussian,
    SteinCritic,
    SteinGAN,
    Transport,
    score_based,
    single_network,
)
from pushforward.methods.optimisers import Adam, Optax
from pushforward.methods.single import SingleNetwork
from pushforward.methods.training import SecondTraining, TrainConfig

__all__ = [
    "DFT",
    "KL",
    "KSD",
    "REGISTRY",
    "AbstractMethod",
    "AbstractState",
    "AbstractTask",
    "Adam",
    "Adaptive",
    "Alternating",
    "Clock",
    "ExploreAndTrain",
    "Fisher",
    "Flow",
    "Gaussian",
    "Optax",
    "SecondTraining",
    "SingleNetwork",
    "SteinCritic",
    "SteinGAN",
    "TrainConfig",
    "Transport",
    "average",
    "default",
    "score_based",
    "single_network",
]
