"""How likely the codes of a generator are: learnt where the noise joins what they make.

A generator with codes makes images of one kind with each, and a fixed number of codes
gives every kind a share of so many k-ths. No gradient through an image changes that.
The weights of the codes have one of their own.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward.errors import UsageError
from pushforward.objectives import AbstractNetworkLoss
from reproduction.mnist.networks import Generator

Field = Callable[[Float[Array, " d"]], Float[Array, " d"]]


class CodeWeights(AbstractNetworkLoss):
    """The KL divergence by the logits of a generator's codes, at one noise level."""

    sigma: float

    def evaluations(self, n: int) -> int:
        return n // 2

    def __call__(self, network, z, x0, score, target, key):
        if not target.has_noise_levels() or network.logits is None or len(z) < 2:
            raise UsageError(
                "Weights of codes are learnt by a generator that has them, on batches "
                "of at least two, for a target that knows noise levels."
            )
        sigma = jnp.asarray(self.sigma, z.dtype)

        def of_target(x):
            wide = x.astype(jnp.result_type(float))
            return target.score(wide, sigma=sigma).astype(x.dtype)

        return weight_loss(
            key, network, z, x0, lambda x: score(x, sigma), of_target, sigma
        )


def weight_loss(
    key: PRNGKeyArray,
    network: Generator,
    z: Float[Array, "n l"],
    x0: Float[Array, "n d"],
    score: Field,
    target_score: Field,
    sigma: Float[Array, ""],
) -> Float[Array, ""]:
    """A surrogate whose gradient is that of the KL divergence by the codes' logits.

    With `w_k` the weights, `p = sum_k w_k p_k` the noisy sampler and
    `r = log p - log q`, the derivative of KL(p, q) by a logit is the covariance of `r`
    and the indicator of its code,

        E[r (e_k - w_k)] = 1/2 E[(r(x) - r(x')) (e_k(x) - e_k(x'))],

    `x` and `x'` two independent draws. Scores tell the difference: with one noise
    `eps` for both, and `y = x' + t (x - x') + sigma eps`, t ~ U(0, 1),

        E[r(x + sigma eps) - r(x' + sigma eps)] = E[(s(y) - s_q(y)) . (x - x')].

    That needs scores that are known between the draws: `sigma` should be so large that
    modes overlap. But not larger: between kinds that noise has made alike, the
    divergence is nearly flat, and their weights are known the less. (The optimiser
    clips this gradient together with the network's, which changes its length, not where
    it is zero on average.)

    Args:
        key: random key for the noise and the places between the draws.
        network: the generator; only its logits get a gradient.
        z: latent points, two or more.
        x0: what the network makes of them.
        score: the sampler's score at the noise level.
        target_score: the target's.
        sigma: the noise level.
    """
    n = x0.shape[0] // 2
    eps_key, t_key = jax.random.split(key)
    there, way = x0[n : 2 * n], x0[:n] - x0[n : 2 * n]
    t = jax.random.uniform(t_key, (n, 1), z.dtype)
    eps = jax.random.normal(eps_key, way.shape, z.dtype)
    y = there + t * way + sigma * eps
    gap = jax.vmap(lambda y: score(y) - target_score(y))(y)
    rise = jax.lax.stop_gradient(jnp.sum(gap * way, axis=1))
    logs = jax.vmap(network.log_weight)(z)
    return jnp.mean(rise * (logs[:n] - logs[n : 2 * n])) / 2
