"""Training methods, one a file, all behind one protocol."""

from pushforward.methods.base import AbstractMethod
from pushforward.methods.dft import DFT
from pushforward.methods.gaussian import Gaussian
from pushforward.methods.kl import KL
from pushforward.methods.recipe import Recipe
from pushforward.methods.transport import Transport

# What `fit --method` and a run directory's config call them.
REGISTRY: dict[str, type[AbstractMethod]] = {
    "recipe": Recipe,
    "transport": Transport,
    "dft": DFT,
    "kl": KL,
    "gaussian": Gaussian,
}

__all__ = ["DFT", "KL", "REGISTRY", "AbstractMethod", "Gaussian", "Recipe", "Transport"]
