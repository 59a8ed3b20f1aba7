"""The kernel Stein discrepancy of a batch, as a loss (the paper's KSD-NS)."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pushforward import _validate
from pushforward._precision import widen
from pushforward.errors import UsageError
from pushforward.objectives.base import AbstractBatchObjective
from pushforward.objectives.draws import points, scores_at
from pushforward.objectives.stein_kernel import stein_kernel_matrix


class KSD(AbstractBatchObjective):
    """The kernel Stein discrepancy with the inverse multiquadric kernel.

    The loss is the U-statistic `sum_{i != j} k0(x_i, x_j) / (n (n - 1))` of a batch
    (`stein_kernel` has `k0`), differentiated through `x` and through the target's score
    at `x`. It is linear in the score at each point: where the target is seen through
    minibatches, every point has its own, and the loss and its gradient are unbiased.
    """

    c: float = 1.0
    beta: float = -0.5

    def __check_init__(self):
        _validate.finite("c", self.c)
        _validate.finite("beta", self.beta)
        if not (self.c > 0 and -1 < self.beta < 0):
            raise UsageError(
                f"c={self.c} and beta={self.beta} give a kernel that cannot detect "
                "convergence; choose c > 0 and -1 < beta < 0."
            )

    @property
    def least_batch(self) -> int:
        return 2

    def __call__(self, network, target, key, n, progress):
        z_key, minibatch_key = jax.random.split(key)
        x = widen(points(network, z_key, n))
        scores = scores_at(target, x, minibatch_key)
        return u_statistic(x, scores, c=self.c, beta=self.beta)


def u_statistic(
    x: Float[Array, "n d"],
    scores: Float[Array, "n d"],
    *,
    c: float = 1.0,
    beta: float = -0.5,
) -> Float[Array, ""]:
    """The mean of `k0` over pairs of different points, differentiable in both arrays.

    `sum_{i != j} k0(x_i, x_j) / (n (n - 1))`, the value of `diagnostics.ksd(x,
    scores).u`. The matrix of all pairs is stored, as its gradient needs it.
    """
    n = x.shape[0]
    # The kernel sees differences only; around zero the expansions cancel least.
    x = x - jax.lax.stop_gradient(jnp.mean(x, axis=0))[None]
    matrix = stein_kernel_matrix(x, x, scores, scores, c=c, beta=beta)
    different = ~np.eye(n, dtype=bool)
    return jnp.sum(jnp.where(different, matrix, 0.0)) / (n * (n - 1))
