"""The method that `fit` uses when none is named."""

from pushforward.mcmc.initialise import ANNEALED_DIM
from pushforward.methods.base import AbstractMethod
from pushforward.methods.named import KL, Transport
from pushforward.networks.specs import MixtureSpec
from pushforward.targets.base import AbstractTarget


def default(target: AbstractTarget) -> AbstractMethod:
    """Reverse KL: with the exact entropy, or by a score network where q is smoothed.

    A score that depends on the noise level starts from a mixture fitted to annealed
    Langevin particles, up to the dimension in which these are affordable.
    """
    if not target.has_noise_levels():
        return Transport()
    if target.dim > ANNEALED_DIM:
        return KL()
    return KL(network=MixtureSpec(components=16, layers=0, width=64, depth=3))
