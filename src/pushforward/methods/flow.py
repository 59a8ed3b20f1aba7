"""Reverse KL on a coupling flow, from flowjax.

A flow knows its own density, `log p(g(z)) = log N(z; 0, I) - log |det dg/dz|`, so the
KL divergence needs no score network, and in many dimensions no Jacobian either.
"""

import jax
import jax.numpy as jnp

from pushforward._precision import widen
from pushforward.errors import UsageError
from pushforward.methods.base import AUTO, AutoInt, fill_in
from pushforward.methods.common import Schedule
from pushforward.methods.direct import (
    AbstractDirect,
    latents,
    refuse_smoothed,
    scores_at,
)
from pushforward.networks.flow import FlowMap, require_flowjax
from pushforward.targets.base import AbstractTarget


class Flow(AbstractDirect):
    """Minimises `KL(p || q) = E[log N(z; 0, I) - log |det dg/dz| - log q(g(z))]`.

    Where only a score is known, or only through minibatches, `log q(x)` is replaced by
    `stop_gradient(s_q(x)) . x`, which has the right gradient in `x`.
    """

    steps: AutoInt = AUTO
    batch_size: AutoInt = AUTO
    layers: int = 8
    width: AutoInt = AUTO
    depth: int = 2
    activation: str = "silu"
    learning_rate: float = 1e-3
    momentum: float = 0.9
    schedule: Schedule = "cosine"
    averaging: float = 0.999
    whiten: bool = True
    particles: int = 2048

    def resolve(self, target: AbstractTarget, platform: str) -> "Flow":
        refuse_smoothed(self, target)
        if target.dim < 2:
            raise UsageError(
                "Flow changes one half of the coordinates given the other, and the "
                "target has only one; use the method Transport."
            )
        require_flowjax()
        fast = platform != "cpu"
        return fill_in(
            self,
            {
                "steps": 10_000 if fast else 4_000,
                "batch_size": 1024 if fast else 256,
                "width": 128 if fast else 64,
            },
        )

    def new_network(self, target, key):
        return FlowMap(
            target.dim, self.layers, self.width, self.depth, self.activation, key=key
        )

    def loss(self, network, view, key):
        assert isinstance(network, FlowMap)
        z_key, minibatch_key = jax.random.split(key)
        z = latents(z_key, self.batch_size, network.in_size)
        x, log_det = jax.vmap(network.with_log_det)(z)
        x = widen(x)
        log_p = jnp.mean(jax.scipy.stats.norm.logpdf(z).sum(axis=1) - log_det)
        if view.has_values:
            log_q = jax.vmap(view.log_density)(x)
        else:
            scores = scores_at(view, jax.lax.stop_gradient(x), minibatch_key)
            log_q = jnp.sum(jax.lax.stop_gradient(scores) * x, axis=1)
        return widen(log_p) - jnp.mean(log_q)
