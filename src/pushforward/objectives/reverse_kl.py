"""Reverse KL with the exact entropy, for a map whose density is known.

`KL(p || q) = E[log p - log q]` needs no score network where the log density of the
draws is known along with them:

    log p(g(b)) = log base(b) - log |det dg/db|.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward import _validate
from pushforward._precision import NETWORK_DTYPE, widen
from pushforward.errors import UsageError
from pushforward.networks import AbstractDensityNetwork
from pushforward.objectives.base import AbstractBatchObjective
from pushforward.targets.base import AbstractTarget


class ReverseKL(AbstractBatchObjective):
    """The KL divergence from a map with a density to the target (`reverse_kl_loss`).

    The batch is divided evenly among the components of the map's base. A component
    loses weight by the factor `exp(-KL)` of its own misfit, and may be empty before the
    map has had time to bend it: so weights stay as initialised for the first half of
    training.

    Attributes:
        antithetic: draw latent points in pairs, `z` and `-z`.
    """

    antithetic: bool = False

    def __check_init__(self):
        _validate.flag("antithetic", self.antithetic)

    def whole_batch(self, n: int, strata: int) -> int:
        each = max(n // strata, 1)
        if self.antithetic:
            each = 2 * max(each // 2, 1)
        return strata * each

    def __call__(self, network, target, key, n, progress):
        if not isinstance(network, AbstractDensityNetwork):
            raise UsageError(
                "Reverse KL with the exact entropy needs a network whose density is "
                "known, such as networks.mixture() or networks.coupling(); for any "
                "other network use the method KL."
            )
        if not network.has_density:
            # Trained by paths, a residual map of several coordinates soon folds.
            raise UsageError(
                "Reverse KL with the exact entropy needs an invertible map: layers "
                "must be at least 1; only a target of one coordinate has none."
            )
        minibatch_key = jax.random.fold_in(key, 0)
        k = network.strata
        each = self.whole_batch(n, k) // k
        drawn = each // 2 if self.antithetic else each
        z = jax.random.normal(key, (k, drawn, target.dim), NETWORK_DTYPE)
        if self.antithetic:
            z = jnp.concatenate([z, -z], axis=1)
        return reverse_kl_loss(
            network, target, z, minibatch_key, still_weights=progress < 0.5
        )


def reverse_kl_loss(
    network: AbstractDensityNetwork,
    target: AbstractTarget,
    z: Float[Array, "k n d"],
    key: PRNGKeyArray,
    *,
    still_weights: bool | Array = False,
) -> Float[Array, ""]:
    """`E[log p(x) - log q(x)]`, stratified: n latent points for each component.

    Its gradient follows the paths of the draws,

        E[(grad log p - grad log q)(x) . dx/dtheta],

    and leaves out that of `log p` in its own parameters at a fixed point, whose mean is
    0 and whose noise never ends (Roeder, Wu and Duvenaud, 2017): what is left vanishes
    at every single draw as p becomes q.

    Every component is sampled alike and weighted by its mixture weight, so the weights
    have a gradient too; with `still_weights`, and where only a score is known, they
    have none.
    """
    x, log_p, scores = (widen(part) for part in network.push_latents(z))

    def at(x, log_p, score, key):
        here = jax.lax.stop_gradient(x)
        log_q, field = target.value_and_score(here, key=key)
        return log_p - log_q, jnp.sum((score - field) * (x - here))

    keys = jax.random.split(key, z.shape[:2])
    each, moved = jax.vmap(jax.vmap(at))(x, log_p, scores, keys)
    weights = widen(jax.nn.softmax(network.log_weights()))
    still = jax.lax.stop_gradient(weights)
    weights = jnp.where(still_weights, still, weights)
    if target.why_no_values() is not None:
        weights = still
    # `moved` is 0, and has the gradient of the paths.
    along = still * jnp.mean(moved, axis=1)
    return jnp.sum(weights * jnp.mean(each, axis=1) + along)
