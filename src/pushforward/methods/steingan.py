"""Amortised Stein variational gradient descent (SteinGAN; Wang and Liu, 2016)."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pushforward.diagnostics.ksd import squared_distances
from pushforward.errors import UsageError
from pushforward.methods.base import AUTO, AutoInt, AutoStr, fill_in
from pushforward.methods.common import Schedule, Shape
from pushforward.methods.direct import (
    AbstractPairwise,
    points,
    scores_at,
)
from pushforward.targets.base import AbstractTarget

HEURISTICS = ("median", "svgd")

# Up to here the narrow kernel is the default.
NARROW_DIM = 3
# The median of the distances is taken among this many draws: 8128 pairs tell it to a
# few per cent, and sorting all pairs of a large batch would cost more than the rest.
_MEDIAN_DRAWS = 128


class SteinGAN(AbstractPairwise):
    """Moves the sampler along the Stein variational gradient of its own draws.

    The direction at a draw (`stein_direction`) is

        delta_i = (sum_j k(x_j, x_i) s_q(x_j) + grad_{x_j} k(x_j, x_i))
                  / sum_j k(x_j, x_i),

    and the loss `-mean_i stop_gradient(delta_i) . x_i`, which is linear in `s_q`: one
    minibatch for each point suffices. A narrow kernel tells fine shapes; but the term
    `j = i` pulls draws without neighbours back, and shrinks the optimum by the order of
    one over their number. Hence by default a narrow one up to three dimensions, where
    draws have many neighbours, and a wide one above (`bandwidth`).
    """

    steps: AutoInt = AUTO
    batch_size: AutoInt = AUTO
    heuristic: AutoStr = AUTO
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
        if self.heuristic not in (None, *HEURISTICS):
            raise UsageError(
                f"heuristic must be one of {', '.join(HEURISTICS)}, not "
                f"{self.heuristic!r}."
            )

    def resolve(self, target: AbstractTarget, platform: str) -> "SteinGAN":
        narrow = target.dim <= NARROW_DIM
        resolved = super().resolve(target, platform)
        return fill_in(resolved, {"heuristic": "svgd" if narrow else "median"})

    def loss(self, network, view, key):
        z_key, minibatch_key = jax.random.split(key)
        x = points(network, z_key, self.batch_size)
        fixed = jax.lax.stop_gradient(x)
        scores = scores_at(view, fixed, minibatch_key)
        delta = stein_direction(fixed, scores, bandwidth(fixed, self.heuristic))
        return -jnp.mean(jnp.sum(delta * x, axis=1))


def bandwidth(x: Float[Array, "n d"], heuristic: str = "median") -> Float[Array, ""]:
    """`h` of the kernel `exp(-|x - y|^2 / h)`, from distances between the points.

    "median" is `h = median^2`; "svgd" is `h = median^2 / log n` (Liu and Wang, 2016).
    The second is for particles, which must see their neighbours alone. In many
    dimensions a draw then has hardly any, and the term `j = i` has its way: for N(0, I)
    in 10 dimensions and 512 draws, the draws are in balance at about three quarters of
    the right width.
    """
    few = x[:_MEDIAN_DRAWS] - jnp.mean(x, axis=0)[None]
    pairs = np.triu_indices(few.shape[0], 1)
    median = jnp.median(squared_distances(few, few)[pairs])
    if heuristic == "svgd":
        median = median / float(np.log(x.shape[0]))
    # A collapsed batch must not divide by zero.
    return jnp.maximum(median, jnp.finfo(x.dtype).tiny)


def stein_direction(
    x: Float[Array, "n d"], scores: Float[Array, "n d"], h: Float[Array, ""]
) -> Float[Array, "n d"]:
    """`delta` at every point, for the kernel `k(x, y) = exp(-|x - y|^2 / h)`.

    With `grad_{x_j} k(x_j, x_i) = 2 (x_i - x_j) k / h`, the sum over j of the second
    term is `2 (x_i sum_j k - sum_j k x_j) / h`.
    """
    # The kernel sees differences only; around zero the expansions cancel least.
    x = x - jnp.mean(x, axis=0)[None]
    with jax.default_matmul_precision("highest"):
        kernel = jnp.exp(-squared_distances(x, x) / h)
        total = jnp.sum(kernel, axis=1)[:, None]
        return (kernel @ (scores - 2 * x / h)) / total + 2 * x / h
