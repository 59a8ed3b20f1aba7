"""The kernel Stein discrepancy as loss (the paper's KSD-NS)."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pushforward.diagnostics.ksd import squared_distances
from pushforward.errors import UsageError
from pushforward.methods.base import AUTO, AutoInt
from pushforward.methods.common import Schedule, Shape
from pushforward.methods.direct import (
    AbstractPairwise,
    points,
    scores_at,
)


class KSD(AbstractPairwise):
    """Minimises the kernel Stein discrepancy with the inverse multiquadric kernel.

    The loss is the U-statistic `sum_{i != j} k0(x_i, x_j) / (n (n - 1))` of a batch,
    with `b = c^2 + |x - y|^2` and

        k0(x, y) = s_x.s_y b^beta - 2 beta ((s_x - s_y).(x - y) + d) b^(beta - 1)
                   - 4 beta (beta - 1) |x - y|^2 b^(beta - 2),

    differentiated through `x` and through the target's score `s_x = s_q(x)`. It is
    linear in each of `s_x` and `s_y`: where the target is seen through minibatches,
    every point has its own, and the loss and its gradient are unbiased.
    """

    steps: AutoInt = AUTO
    batch_size: AutoInt = AUTO
    c: float = 1.0
    beta: float = -0.5
    width: AutoInt = AUTO
    depth: int = 3
    shape: Shape = "residual"
    latent: AutoInt = AUTO
    activation: str = "silu"
    learning_rate: float = 1e-3
    momentum: float = 0.9
    schedule: Schedule = "cosine"
    averaging: float = 0.999
    whiten: bool = True
    particles: int = 2048

    def __check_init__(self):
        if not (self.c > 0 and -1 < self.beta < 0):
            raise UsageError(
                f"c={self.c} and beta={self.beta} give a kernel that cannot detect "
                "convergence; choose c > 0 and -1 < beta < 0."
            )

    def loss(self, network, view, key):
        z_key, minibatch_key = jax.random.split(key)
        x = points(network, z_key, self.batch_size)
        scores = scores_at(view, x, minibatch_key)
        return u_statistic(x, scores, c=self.c, beta=self.beta)


def u_statistic(
    x: Float[Array, "n d"],
    scores: Float[Array, "n d"],
    *,
    c: float = 1.0,
    beta: float = -0.5,
) -> Float[Array, ""]:
    """The mean of `k0` over pairs of different points, differentiable in both arrays.

    The value of `diagnostics.ksd(x, scores).u`. The matrix of all pairs is stored, as
    its gradient needs it, but no more than one number a pair and term.
    """
    n, dim = x.shape
    # The kernel sees differences only; around zero the expansions cancel least.
    x = x - jax.lax.stop_gradient(jnp.mean(x, axis=0))[None]
    with jax.default_matmul_precision("highest"):
        squared = squared_distances(x, x)
        products = scores @ scores.T
        mixed = scores @ x.T
    own = jnp.diagonal(mixed)
    cross = own[:, None] + own[None] - mixed - mixed.T
    b = c**2 + squared
    inner = -2 * beta * (cross + dim) - 4 * beta * (beta - 1) * squared / b
    matrix = b**beta * (products + inner / b)
    different = ~np.eye(n, dtype=bool)
    return jnp.sum(jnp.where(different, matrix, 0.0)) / (n * (n - 1))
