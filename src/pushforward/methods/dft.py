"""Denoising Fisher Training (Luo & Deng, AISTATS 2025)."""

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from pushforward.errors import UsageError
from pushforward.methods.alternating import AbstractAlternating
from pushforward.methods.base import AUTO, AutoFloat, AutoInt, AutoStr
from pushforward.methods.common import Schedule, Shape
from pushforward.scores import Estimator, Field, divergence

Form = Literal["denoising", "simplified", "divergence"]


class DFT(AbstractAlternating):
    """Minimises the Fisher divergence between the noisy sampler and the target.

    `w1 = w2 = 1` is the full gradient; `w1 = 0` the paper's DFT-NS*; in the notation of
    score-identity distillation `w1 / w2 = 2 (1 - alpha)`.
    """

    steps: AutoInt = AUTO
    batch_size: AutoInt = AUTO
    w1: float = 1.0
    w2: float = 1.0
    form: Form = "denoising"
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

    def __check_init__(self):
        if self.form == "simplified" and self.w1 != self.w2:
            raise UsageError(
                "The simplified form of DFT exists for w1 = w2 only, but w1 is "
                f"{self.w1} and w2 is {self.w2}; use form='denoising'."
            )
        if self.noise_scale == 0 and self.form != "divergence":
            raise UsageError(
                f"The {self.form} form of DFT needs noise; with noise_scale=0 use "
                "form='divergence'."
            )

    @property
    def minibatches(self) -> int:
        return 2 if self.w1 else 1

    def objective(self, x, conditional, score, first, second):
        return dft_loss(
            x, conditional, score, first, second, w1=self.w1, w2=self.w2, form=self.form
        )


def dft_loss(
    x: Float[Array, " d"],
    conditional: Float[Array, " d"],
    score: Field,
    first: Field,
    second: Field,
    *,
    w1: float = 1.0,
    w2: float = 1.0,
    form: Form = "denoising",
) -> Float[Array, ""]:
    """The DFT loss at one point, to be differentiated through `x` alone.

    With `a`, `b` the target's score (from two independent minibatches, where it has
    minibatches), `s` the sampler's and `c` the conditional score:

    - denoising: `w1 (a - s).(b - s) + w2 2 (a - s).(s - c)` (paper, eqs. 8 and 10);
    - simplified: `(a - s).(b + s - 2c)`, symmetrised in a and b (`w1 = w2` only);
    - divergence: `c` integrated out by Stein's identity, `E[u.c] = -E[div u]`:
      `w1 (a - s).(b - s) + w2 (2 (a - s).s + 2 div(a - s))`, which for `w1 = w2 = 1` is
      `a.b + 2 div a - |s|^2 - 2 div s` in expectation, Fisher-NS at sigma = 0.

    One minibatch in place of two would add the gradient of its variance.
    """
    s, a = score(x), first(x)
    # Most targets have no minibatches: their score is computed once.
    b = a if second is first else second(x)
    if form == "simplified":
        assert w1 == w2
        there = jnp.sum((a - s) * (b + s - 2 * conditional))
        back = jnp.sum((b - s) * (a + s - 2 * conditional))
        return 0.5 * w1 * (there + back)
    # A weight of 0 is a part left out, and not a product with 0.
    l1 = jnp.sum((a - s) * (b - s)) if w1 else jnp.zeros((), s.dtype)
    if form == "denoising":
        l2 = 2 * jnp.sum((a - s) * (s - conditional))
    else:
        l2 = 2 * jnp.sum((a - s) * s) + 2 * divergence(lambda y: first(y) - score(y), x)
    return w1 * l1 + w2 * l2
