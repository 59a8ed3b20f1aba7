"""What is minimised: one loss a file, a pure function of one point or of a batch.

An objective is a loss with at most a few numbers; a method (`pushforward.methods`)
trains networks on one. Subclass `AbstractScoreObjective` for a loss of your own that
needs the sampler's score, `AbstractBatchObjective` for one that needs only its draws.
"""

from pushforward.objectives.base import (
    AbstractBatchObjective,
    AbstractPairObjective,
    AbstractScoreObjective,
)
from pushforward.objectives.dft import DFT
from pushforward.objectives.fisher import Fisher
from pushforward.objectives.kl import KL
from pushforward.objectives.ksd import KSD
from pushforward.objectives.noise import Noise
from pushforward.objectives.reverse_kl import ReverseKL
from pushforward.objectives.score_based import AbstractNetworkLoss, ScoreBased
from pushforward.objectives.stein_critic import SteinCritic
from pushforward.objectives.steingan import SteinGAN

__all__ = [
    "DFT",
    "KL",
    "KSD",
    "AbstractBatchObjective",
    "AbstractNetworkLoss",
    "AbstractPairObjective",
    "AbstractScoreObjective",
    "Fisher",
    "Noise",
    "ReverseKL",
    "ScoreBased",
    "SteinCritic",
    "SteinGAN",
]
