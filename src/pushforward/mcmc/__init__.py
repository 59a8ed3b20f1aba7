"""Classic samplers, thin over BlackJAX."""

from pushforward.mcmc.mala import mala, refine
from pushforward.mcmc.nuts import NUTSResult, nuts
from pushforward.mcmc.smc import Particles, explore, tempered_smc

__all__ = [
    "NUTSResult",
    "Particles",
    "explore",
    "mala",
    "nuts",
    "refine",
    "tempered_smc",
]
