"""Reverse KL with the exact entropy, by change of variables.

The sampler is a residual map of a Gaussian mixture (`networks.MixtureMap`) that starts
at the particles of a first look at the target. Its log density along its own draws is

    log p(g(b)) = log base(b) - log |det dg/db|,

so `KL(p || q) = E[log p - log q]` and its gradient need no score network. The barrier
`-log |det|` keeps `g` from folding. The cost is d Jacobian-vector products a point:
the method of choice in few dimensions.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward._precision import NETWORK_DTYPE, widen
from pushforward.methods.base import (
    AUTO,
    AbstractMethod,
    Adam,
    AutoInt,
    Clock,
    average,
    fill_in,
)
from pushforward.methods.common import mixture_map
from pushforward.networks import MixtureMap
from pushforward.sampler import Sampler
from pushforward.targets.base import AbstractTarget
from pushforward.whitening import Look, look


class TransportState(eqx.Module):
    """What the next step needs."""

    network: MixtureMap
    averaged: MixtureMap
    optimiser: tuple
    look: Look
    clock: Clock


class Transport(AbstractMethod):
    """Reverse KL on a mixture map, with the exact entropy."""

    steps: AutoInt = AUTO
    batch_size: AutoInt = AUTO
    width: AutoInt = AUTO
    depth: int = 3
    components: AutoInt = AUTO
    learning_rate: float = 2e-3
    particles: int = 2048

    @property
    def evaluations(self) -> int:
        return self.components * max(self.batch_size // self.components, 1)

    def resolve(self, target: AbstractTarget, platform: str) -> "Transport":
        fast = platform != "cpu"
        small = target.dim <= 4
        return fill_in(
            self,
            {
                "steps": 10_000 if small else 8_000,
                "batch_size": 1024 if fast else 512,
                "width": 128 if fast else 64,
                # Weights of components need values of log q, not only its score.
                "components": 16
                if target.has_density and not target.is_stochastic
                else 1,
            },
        )

    def stages(self) -> tuple[AbstractMethod, ...]:
        return (self,)

    def init(self, key, target, steps, previous=None) -> TransportState:
        look_key, mixture_key, network_key = jax.random.split(key, 3)
        seen = look(look_key, target, particles=self.particles)
        network = mixture_map(
            (mixture_key, network_key),
            seen.particles,
            self.width,
            self.depth,
            self.components,
        )
        state = self._adam.init(network)
        return TransportState(network, network, state, seen, Clock.start(steps))

    @property
    def _adam(self) -> Adam:
        return Adam(self.learning_rate)

    def step(self, key, target, state):
        view = state.look.view(target)
        per_component = max(self.batch_size // self.components, 1)
        z_key = minibatch_key = key
        if target.is_stochastic:
            z_key, minibatch_key = jax.random.split(key)
        shape = (self.components, per_component, target.dim)
        z = jax.random.normal(z_key, shape, NETWORK_DTYPE)
        loss, gradient = eqx.filter_value_and_grad(free_energy)(
            state.network, view, z, minibatch_key
        )
        factor = state.clock.warmup_cosine()
        network, optimiser = self._adam.update(
            gradient, state.optimiser, state.network, factor
        )
        averaged = average(state.averaged, network, state.clock)
        new = TransportState(
            network, averaged, optimiser, state.look, state.clock.tick()
        )
        return new, {"loss": loss}

    def sampler(self, target, state) -> Sampler:
        zero = jnp.zeros((), jnp.result_type(float))
        return Sampler(state.averaged, state.look.whitening, zero, target.structure)


def free_energy(
    network: MixtureMap,
    target: AbstractTarget,
    z: Float[Array, "k n d"],
    key: PRNGKeyArray,
) -> Float[Array, ""]:
    """`E[log p(x) - log q(x)]`, stratified: n latent points for each component.

    Every component is sampled alike and weighted by its mixture weight, so the gradient
    in the weights is exact too. Where only a score is known they have no gradient.
    """
    valued = target.has_density and not target.is_stochastic
    if not valued:
        frozen = jax.lax.stop_gradient(network.logits)
        network = eqx.tree_at(lambda m: m.logits, network, frozen)
    inverses = network.inverse_factors()
    weights = jax.nn.softmax(network.logits)

    def at(c, z):
        b = network.base(c, z)
        entropy = network.base_log_density(b, inverses) - log_det_jacobian(
            network.map, b
        )
        return widen(network.map(b)), widen(entropy)

    indices = jnp.arange(network.components)
    u, log_p = jax.vmap(lambda c, zs: jax.vmap(lambda z: at(c, z))(zs))(indices, z)
    if valued:
        log_q = jax.vmap(jax.vmap(target.log_density))(u)
    else:
        # Only a (minibatch) score is known: its inner product with u has the right
        # gradient in u, though not a meaningful value.
        keys = jax.random.split(key, z.shape[:2])
        scores = jax.vmap(jax.vmap(lambda u, k: target.score(u, key=k)))(u, keys)
        log_q = jnp.sum(jax.lax.stop_gradient(scores) * u, axis=-1)
    return jnp.sum(widen(weights) * jnp.mean(log_p - log_q, axis=1))


def log_det_jacobian(map, b: Float[Array, " d"]) -> Float[Array, ""]:
    """`log |det|` of the Jacobian of `map` at `b`."""
    jacobian = jax.jacfwd(map)(b)
    if b.shape[0] == 2:
        # Batched LU of tiny matrices is slow on every device.
        (p, q), (r, s) = jacobian
        return jnp.log(jnp.abs(p * s - q * r))
    return jnp.linalg.slogdet(jacobian)[1]
