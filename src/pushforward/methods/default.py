"""The method that `fit` uses when none is named."""

from pushforward.mcmc.initialise import ANNEALED_DIM
from pushforward.methods.base import AbstractMethod
from pushforward.methods.named import KL, Adaptive, Transport
from pushforward.networks.specs import MixtureSpec
from pushforward.targets.base import AbstractTarget


def default(target: AbstractTarget) -> AbstractMethod:
    """Explore, distil and improve where q has values; reverse KL where it has not.

    A posterior through minibatches, or a score alone, starts from one Gaussian. A score
    that depends on the noise level starts from a mixture fitted to annealed Langevin
    particles, up to the dimension in which these are affordable.
    """
    if not target.has_noise_levels():
        exact = target.why_no_values() is None and target.num_terms == 1
        return Adaptive() if exact else Transport()
    if target.dim > ANNEALED_DIM:
        return KL()
    return KL(network=MixtureSpec(components=16, layers=0, width=64, depth=3))
