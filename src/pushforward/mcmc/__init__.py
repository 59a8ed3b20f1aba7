"""Classic samplers, thin over BlackJAX."""

from pushforward.mcmc.annealed import AnnealedResult, annealed_langevin
from pushforward.mcmc.hmc import HMCResult, hmc
from pushforward.mcmc.langevin import LangevinResult, SGLDResult, langevin, sgld
from pushforward.mcmc.mala import mala, refine
from pushforward.mcmc.nuts import NUTSResult, nuts
from pushforward.mcmc.smc import Particles, explore, tempered_smc
from pushforward.mcmc.svgd import SVGDResult, svgd

__all__ = [
    "AnnealedResult",
    "HMCResult",
    "LangevinResult",
    "NUTSResult",
    "Particles",
    "SGLDResult",
    "SVGDResult",
    "annealed_langevin",
    "explore",
    "hmc",
    "langevin",
    "mala",
    "nuts",
    "refine",
    "sgld",
    "svgd",
    "tempered_smc",
]
