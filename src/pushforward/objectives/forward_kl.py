"""Forward KL: the divergence `KL(q || p)` on particles of the target.

Up to a constant it is `-E_q[log p]`. It is large where the sampler p lacks what the
target q has, so a sampler that is trained on it covers all of the particles.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pushforward._precision import narrow, widen
from pushforward.networks import AbstractDensityNetwork

# Of a particle's log density: one that lies further out than this, in units in which
# the target is about standard, has no say in where to go.
_FURTHEST = -1e4


def forward_kl_loss(
    network: AbstractDensityNetwork, particles: Float[Array, "n d"]
) -> tuple[Float[Array, ""], Float[Array, " n"]]:
    """`-mean log p` over particles of the target, and `log p` at each of them.

    A particle whose log density is not finite, or very low, adds no gradient.
    """
    log_p = widen(jax.vmap(network.log_density)(narrow(particles)))
    usable = jnp.isfinite(log_p) & (log_p > _FURTHEST)
    loss = -jnp.mean(jnp.where(usable, log_p, 0.0))
    return loss, jnp.where(usable, jax.lax.stop_gradient(log_p), -jnp.inf)
