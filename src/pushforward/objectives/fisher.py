"""The loss of Fisher training without noise (the paper's Fisher-NS)."""

from pushforward.objectives.base import AbstractScoreObjective
from pushforward.objectives.dft import dft_loss


class Fisher(AbstractScoreObjective):
    """The Fisher divergence between the sampler itself and the target.

    With `s_q` the target's score and `s` the sampler's, learnt by exact score matching,
    the loss is `E[|s_q|^2 + 2 div s_q - |s|^2 - 2 div s]`, differentiated through `x`
    alone: DFT's divergence form at noise 0. Each divergence costs d Jacobian-vector
    products.
    """

    def __call__(self, x, conditional, score, first, second):
        return dft_loss(x, conditional, score, first, second, form="divergence")

    @property
    def minibatches(self) -> int:
        return 2
