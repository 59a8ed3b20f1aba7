"""Fisher training without noise (the paper's Fisher-NS)."""

from pushforward.errors import UsageError
from pushforward.methods.alternating import AbstractAlternating
from pushforward.methods.base import AUTO, AutoFloat, AutoInt, AutoStr
from pushforward.methods.common import Schedule, Shape
from pushforward.methods.dft import dft_loss
from pushforward.scores import Estimator


class Fisher(AbstractAlternating):
    """Minimises the Fisher divergence between the sampler itself and the target.

    With `s_q` the target's score and `s` the sampler's, learnt by exact score matching,
    the loss is `E[|s_q|^2 + 2 div s_q - |s|^2 - 2 div s]`, differentiated through `x`
    alone: DFT's divergence form at noise 0. Each divergence costs d Jacobian-vector
    products.
    """

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
    noise_scale: AutoFloat = 0.0
    score_steps: int = 4
    score_warmup: int = 500
    learning_rate: float = 5e-4
    score_learning_rate: float = 1e-3
    momentum: float = 0.5
    schedule: Schedule = "cosine"
    averaging: float = 0.999
    estimator: Estimator = "exact"
    antithetic: bool = False
    whiten: bool = True
    particles: int = 2048
    sigma_power: float = 2.0
    sigma_min: AutoFloat = AUTO
    sigma_max: AutoFloat = AUTO
    sampler_sigma_min: AutoFloat = AUTO
    sampler_sigma_max: AutoFloat = AUTO
    compute: AutoStr = AUTO

    def __check_init__(self):
        if self.estimator == "denoising":
            raise UsageError(
                "Fisher training has no noise to denoise; use estimator='exact' or "
                "estimator='sliced', or the method DFT."
            )

    @property
    def minibatches(self) -> int:
        return 2

    def objective(self, x, conditional, score, first, second):
        return dft_loss(x, conditional, score, first, second, form="divergence")
