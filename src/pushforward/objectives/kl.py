"""The loss of implicit reverse KL (the paper's KL-NS)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pushforward.objectives.base import AbstractScoreObjective
from pushforward.objectives.score_matching import Field


class KL(AbstractScoreObjective):
    """The KL divergence from the noisy sampler to the target (`kl_loss`)."""

    def __call__(self, x, conditional, score, first, second):
        return kl_loss(x, score, first)


def kl_loss(x: Float[Array, " d"], score: Field, target: Field) -> Float[Array, ""]:
    """`(s(x) - s_q(x)) . x` with the first factor frozen.

    Its gradient is `E[(s(x) - s_q(x)) . dx/dtheta]`, that of the KL divergence. It is
    linear in the target's score, so one minibatch suffices.
    """
    return jnp.sum(jax.lax.stop_gradient(score(x) - target(x)) * x)
