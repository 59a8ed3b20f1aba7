"""Classic samplers, thin over BlackJAX."""

from pushforward.mcmc.annealed import annealed_langevin
from pushforward.mcmc.exploration import Exploration, explore
from pushforward.mcmc.hmc import hmc
from pushforward.mcmc.initialise import (
    Initialisation,
    initialise_by_laplace,
    register_initialisation,
)
from pushforward.mcmc.langevin import SGLDResult, langevin, sgld
from pushforward.mcmc.mala import MALAResult, mala
from pushforward.mcmc.nuts import NUTSResult, WarmNUTS, nuts, nuts_draws, nuts_warmup
from pushforward.mcmc.refine import Refined, refine
from pushforward.mcmc.rejuvenate import rejuvenate
from pushforward.mcmc.result import MCMCResult
from pushforward.mcmc.smc import Particles, repeated_smc, tempered_smc
from pushforward.mcmc.smoothed import smooth
from pushforward.mcmc.svgd import svgd

__all__ = [
    "Exploration",
    "Initialisation",
    "MALAResult",
    "MCMCResult",
    "NUTSResult",
    "Particles",
    "Refined",
    "SGLDResult",
    "WarmNUTS",
    "annealed_langevin",
    "explore",
    "hmc",
    "initialise_by_laplace",
    "langevin",
    "mala",
    "nuts",
    "nuts_draws",
    "nuts_warmup",
    "refine",
    "register_initialisation",
    "rejuvenate",
    "repeated_smc",
    "sgld",
    "smooth",
    "svgd",
    "tempered_smc",
]
