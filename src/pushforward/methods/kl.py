"""Implicit reverse KL (the paper's KL-NS)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pushforward.methods.alternating import AbstractAlternating
from pushforward.methods.base import AUTO, AutoFloat, AutoInt, AutoStr
from pushforward.methods.common import Schedule, Shape
from pushforward.scores import Estimator, Field


class KL(AbstractAlternating):
    """Minimises the KL divergence from the noisy sampler to the target."""

    steps: AutoInt = AUTO
    batch_size: AutoInt = AUTO
    width: AutoInt = AUTO
    score_width: AutoInt = AUTO
    depth: int = 3
    shape: Shape = "residual"
    latent: AutoInt = AUTO
    codes: int = 0
    weigh_codes: bool = False
    activation: str = "silu"
    noise_scale: AutoFloat = AUTO
    score_steps: int = 4
    score_warmup: int = 500
    learning_rate: float = 5e-4
    score_learning_rate: float = 1e-3
    momentum: float = 0.5
    schedule: Schedule = "cosine"
    averaging: float = 0.999
    estimator: Estimator = "denoising"
    antithetic: bool = True
    whiten: bool = True
    particles: int = 2048
    sigma_power: float = 2.0
    sigma_min: AutoFloat = AUTO
    sigma_max: AutoFloat = AUTO
    sampler_sigma_min: AutoFloat = AUTO
    sampler_sigma_max: AutoFloat = AUTO
    compute: AutoStr = AUTO

    def objective(self, x, conditional, score, first, second):
        return kl_loss(x, score, first)


def kl_loss(x: Float[Array, " d"], score: Field, target: Field) -> Float[Array, ""]:
    """`(s(x) - s_q(x)) . x` with the first factor frozen.

    Its gradient is `E[(s(x) - s_q(x)) . dx/dtheta]`, that of the KL divergence. It is
    linear in the target's score, so one minibatch suffices.
    """
    return jnp.sum(jax.lax.stop_gradient(score(x) - target(x)) * x)
