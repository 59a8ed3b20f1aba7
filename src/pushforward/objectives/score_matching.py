"""Learning a score from samples.

Each loss is written for one point and is minimised, in expectation over samples of `p`,
by the score of `p` (or of `p` smoothed by the noise, for the denoising one).
"""

from collections.abc import Callable
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

Field = Callable[[Float[Array, " d"]], Float[Array, " d"]]
Estimator = Literal["denoising", "sliced", "exact"]
ESTIMATORS: tuple[str, ...] = get_args(Estimator)


def divergence(field: Field, x: Float[Array, " d"]) -> Float[Array, ""]:
    """The exact divergence of a vector field: d Jacobian-vector products."""
    _, jvp = jax.linearize(field, x)
    return jnp.trace(jax.vmap(jvp)(jnp.eye(x.shape[0], dtype=x.dtype)))


def sliced_divergence(
    field: Field, x: Float[Array, " d"], direction: Float[Array, " d"]
) -> Float[Array, ""]:
    """Hutchinson's estimate `v' J v`, unbiased when `E[v v'] = I`."""
    _, along = jax.jvp(field, (x,), (direction,))
    return jnp.sum(direction * along)


def exact_loss(score: Field, x: Float[Array, " d"]) -> Float[Array, ""]:
    """Hyvarinen's `|s|^2 + 2 div s` (paper, eq. 1)."""
    return jnp.sum(score(x) ** 2) + 2 * divergence(score, x)


def sliced_loss(
    score: Field, x: Float[Array, " d"], direction: Float[Array, " d"]
) -> Float[Array, ""]:
    """`|s|^2 + 2 v' grad(s) v`: the exact loss with Hutchinson's divergence."""
    return jnp.sum(score(x) ** 2) + 2 * sliced_divergence(score, x, direction)


def denoising_loss(
    score: Field,
    x0: Float[Array, " d"],
    eps: Float[Array, " d"],
    sigma: Float[Array, ""] | float,
) -> Float[Array, ""]:
    """`|sigma s(x0 + sigma eps) + eps|^2` (paper, eq. 2, times sigma^2)."""
    return jnp.sum((sigma * score(x0 + sigma * eps) + eps) ** 2)


def antithetic_denoising_loss(
    score: Field,
    x0: Float[Array, " d"],
    eps: Float[Array, " d"],
    sigma: Float[Array, ""] | float,
) -> Float[Array, ""]:
    """The denoising loss at `eps` and `-eps`, averaged.

    The cross terms of the two cancel to `eps.(s(x0 + sigma eps) - s(x0 - sigma eps))`,
    a finite difference: the gradient of the loss over sigma^2, which is that of the
    score's squared error, keeps a bounded variance as sigma goes to 0.
    """
    there = denoising_loss(score, x0, eps, sigma)
    return 0.5 * (there + denoising_loss(score, x0, -eps, sigma))


def score_loss(
    estimator: Estimator,
    score: Field,
    x0: Float[Array, " d"],
    sigma: Float[Array, ""] | float,
    key: PRNGKeyArray,
    *,
    antithetic: bool = True,
) -> Float[Array, ""]:
    """The loss named `estimator` at one point, for the score of `x0 + sigma eps`.

    Denoising looks at `eps` and `-eps` both, unless `antithetic` is False: half the
    cost, and as good where sigma is not small beside the sampler's own scale.
    """
    noise_key, direction_key = jax.random.split(key)
    eps = jax.random.normal(noise_key, x0.shape, x0.dtype)
    if estimator == "denoising":
        loss = antithetic_denoising_loss if antithetic else denoising_loss
        return loss(score, x0, eps, sigma)
    x = x0 + sigma * eps
    if estimator == "exact":
        return exact_loss(score, x)
    # Rademacher directions: the least variance among those with E[v v'] = I.
    return sliced_loss(score, x, jax.random.rademacher(direction_key, x.shape, x.dtype))
