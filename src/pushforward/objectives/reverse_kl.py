"""Reverse KL with the exact entropy, for a map whose density is known.

`KL(p || q) = E[log p - log q]` needs no score network where the log density of the
draws is known along with them:

    log p(g(b)) = log base(b) - log |det dg/db|.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward import _validate
from pushforward._precision import widen
from pushforward.errors import UsageError
from pushforward.networks import AbstractDensityNetwork
from pushforward.objectives.base import AbstractBatchObjective
from pushforward.targets.base import AbstractTarget


class ReverseKL(AbstractBatchObjective):
    """The KL divergence from a map with a density to the target (`reverse_kl_loss`).

    Every component of the map's base has its share of the batch. A component loses
    weight by the factor `exp(-KL)` of its own misfit, and may be empty before the map
    has had time to bend it: so weights stay as initialised for the first half of
    training.

    Attributes:
        antithetic: draw latent points in pairs, `z` and `-z`.
    """

    antithetic: bool = False

    def __check_init__(self):
        _validate.flag("antithetic", self.antithetic)

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
        z = network.latents(key, max(n // 2, 1) if self.antithetic else n)
        if self.antithetic:
            z = jnp.concatenate([z, -z])
        return reverse_kl_loss(
            network, target, z, minibatch_key, still_weights=progress < 0.5
        )[0]


# Of the weight of a component a draw tells no more than this many nats: one draw of
# almost no density would say more than all others.
_MOST_NATS = 50.0


def reverse_kl_loss(
    network: AbstractDensityNetwork,
    target: AbstractTarget,
    z: Float[Array, "n i"],
    key: PRNGKeyArray,
    *,
    still_weights: bool | Array = False,
) -> tuple[Float[Array, ""], tuple[Float[Array, "n d"], Float[Array, " n"]]]:
    """`E[log p(x) - log q(x)]` over the draws x of n latent points.

    Returned with the draws, and `log q - log p` at each.

    Its gradient follows the paths of the draws,

        E[(grad log p - grad log q)(x) . dx/dtheta],

    and leaves out that of `log p` in its own parameters at a fixed point, whose mean is
    0 and whose noise never ends (Roeder, Wu and Duvenaud, 2017): what is left vanishes
    at every single draw as p becomes q. Which component a draw is from has no path, so
    weights w have the gradient `E[(log p - log q - mean) grad log w]`; with
    `still_weights`, and where only a score is known, they have none.

    Draws of no density under q, and those at which its score is not finite, have no
    path: nothing says where to go from there. A component that makes such draws loses
    weight.
    """
    x, log_p, scores, log_w = (widen(part) for part in network.push_latents(z))

    def at(x, log_p, score, key):
        here = jax.lax.stop_gradient(x)
        log_q, field = target.value_and_score(here, key=key)
        excess = log_p - log_q
        usable = jnp.isfinite(excess) & jnp.all(jnp.isfinite(field))
        pull = jnp.where(usable, score - field, 0.0)
        return jnp.where(usable, excess, jnp.inf), jnp.sum(pull * (x - here))

    keys = jax.random.split(key, z.shape[0])
    each, moved = jax.vmap(at)(x, log_p, scores, keys)
    usable = jnp.isfinite(each)
    total = jnp.sum(jnp.where(usable, each, 0.0))
    mean = total / jnp.maximum(jnp.sum(usable), 1).astype(total.dtype)
    # `moved` is 0, and has the gradient of the paths.
    loss = mean + jnp.mean(moved)
    draws = jax.lax.stop_gradient(x), -each
    if target.why_no_values() is not None:
        return loss, draws
    misfit = jnp.clip(jnp.where(usable, each - mean, jnp.inf), -_MOST_NATS, _MOST_NATS)
    weighed = misfit * (log_w - jax.lax.stop_gradient(log_w))
    return loss + jnp.where(still_weights, 0.0, jnp.mean(weighed)), draws
