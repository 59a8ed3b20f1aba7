"""Training methods, one a file, all behind one protocol."""

from pushforward.methods.base import AbstractMethod, AbstractTask
from pushforward.methods.critic import SteinCritic
from pushforward.methods.dft import DFT
from pushforward.methods.fisher import Fisher
from pushforward.methods.flow import Flow
from pushforward.methods.gaussian import Gaussian
from pushforward.methods.images import for_images
from pushforward.methods.kl import KL
from pushforward.methods.ksd import KSD
from pushforward.methods.recipe import Recipe
from pushforward.methods.steingan import SteinGAN
from pushforward.methods.transport import Transport

# What `fit --method` and a run directory's config call them.
REGISTRY: dict[str, type[AbstractMethod]] = {
    "recipe": Recipe,
    "transport": Transport,
    "dft": DFT,
    "kl": KL,
    "fisher": Fisher,
    "critic": SteinCritic,
    "ksd": KSD,
    "steingan": SteinGAN,
    "flow": Flow,
    "gaussian": Gaussian,
}

__all__ = [
    "DFT",
    "KL",
    "KSD",
    "REGISTRY",
    "AbstractMethod",
    "AbstractTask",
    "Fisher",
    "Flow",
    "Gaussian",
    "Recipe",
    "SteinCritic",
    "SteinGAN",
    "Transport",
    "for_images",
]
