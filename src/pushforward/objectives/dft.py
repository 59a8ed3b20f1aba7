"""The loss of Denoising Fisher Training (Luo & Deng, AISTATS 2025)."""

import dataclasses
from typing import Literal, get_args

import jax.numpy as jnp
from jaxtyping import Array, Float

from pushforward import _validate
from pushforward.errors import UsageError
from pushforward.objectives.base import AbstractScoreObjective
from pushforward.objectives.score_matching import Field, divergence
from pushforward.targets.base import AbstractTarget

Form = Literal["denoising", "simplified", "divergence"]


class DFT(AbstractScoreObjective):
    """The Fisher divergence between the noisy sampler and the target (`dft_loss`).

    `w1 = w2 = 1` is the full gradient; `w1 = 0` the paper's DFT-NS*; in the notation of
    score-identity distillation `w1 / w2 = 2 (1 - alpha)`.

    With `damping` the divergence is weighted: `E[w |s_q - s|^2]` with
    `w = (1 + |s_q|^2 / d)^-damping`. Where the target is steep, as in the neck of a
    funnel, the differences of scores are large, and the few draws there would move the
    sampler alone. The identity of the paper's Theorem 1 holds for any such weight. 0 is
    the paper's divergence; a minibatch's score would make the weight noisy, and what is
    trained through minibatches has none, nor has a target with noise levels.
    """

    w1: float = 1.0
    w2: float = 1.0
    form: Form = "denoising"
    damping: float = 0.0

    def __check_init__(self):
        _validate.finite("w1", self.w1)
        _validate.finite("w2", self.w2)
        _validate.one_of("form", self.form, get_args(Form))
        if _validate.finite("damping", self.damping) < 0:
            raise UsageError(f"damping must be at least 0, not {self.damping}.")
        if self.form == "simplified" and self.w1 != self.w2:
            raise UsageError(
                "The simplified form of DFT exists for w1 = w2 only, but w1 is "
                f"{self.w1} and w2 is {self.w2}; use form='denoising'."
            )

    def __call__(self, x, conditional, score, first, second):
        weights = {"w1": self.w1, "w2": self.w2, "damping": self.damping}
        return dft_loss(x, conditional, score, first, second, form=self.form, **weights)

    def resolve(self, target: AbstractTarget) -> "DFT":
        plain = target.num_terms == 1 and not target.has_noise_levels()
        return self if plain else dataclasses.replace(self, damping=0.0)

    @property
    def minibatches(self) -> int:
        return 2 if self.w1 else 1

    @property
    def needs_noise(self) -> bool:
        return self.form != "divergence"


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
    damping: float = 0.0,
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

    With `damping` the vector `a - s` in front of each product is multiplied by
    `w(x) = (1 + |a|^2 / d)^-damping`, through which the gradient flows too.
    """
    s, a = score(x), first(x)
    w = _weight(a, damping)
    # Most targets have no minibatches: their score is computed once.
    b = a if second is first else second(x)
    if form == "simplified":
        assert w1 == w2
        there = jnp.sum((a - s) * (b + s - 2 * conditional))
        back = jnp.sum((b - s) * (a + s - 2 * conditional))
        return 0.5 * w1 * w * (there + back)
    # A weight of 0 is a part left out, and not a product with 0.
    l1 = w * jnp.sum((a - s) * (b - s)) if w1 else jnp.zeros((), s.dtype)
    if form == "denoising":
        l2 = 2 * w * jnp.sum((a - s) * (s - conditional))
    else:

        def gap(y):
            return _weight(first(y), damping) * (first(y) - score(y))

        l2 = 2 * w * jnp.sum((a - s) * s) + 2 * divergence(gap, x)
    return w1 * l1 + w2 * l2


def _weight(a: Float[Array, " d"], damping: float) -> Float[Array, ""] | float:
    """`(1 + |a|^2 / d)^-damping`."""
    return (1 + jnp.mean(a**2)) ** -damping if damping else 1.0
