"""Reverse KL with the exact entropy, by change of variables.

The sampler is a map of a Gaussian mixture (`networks.MixtureMap`) that starts at the
particles of a first look at the target. Its log density along its own draws is

    log p(g(b)) = log base(b) - log |det dg/db|,

so `KL(p || q) = E[log p - log q]` and its gradient need no score network. The barrier
`-log |det|` keeps `g` from folding.

In the plane and a little above, `g` is a residual map, whose determinant costs d
Jacobian-vector products a point. In more dimensions it is made of coupling layers,
whose Jacobians are triangular: the determinant costs nothing, and every layer bends
only one half of the coordinates.

By KL a component loses weight by the factor `exp(-KL)` of its own misfit, and may be
empty before coupling layers have had time to bend it. So with them weights stay those
of the first look for the first half of training; in many dimensions, where some misfit
is left to the end, for all of it.
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
    replace,
)
from pushforward.methods.common import mixture_map
from pushforward.networks import MixtureMap
from pushforward.sampler import Sampler
from pushforward.targets.base import AbstractTarget
from pushforward.whitening import Look, look

# Up to here, on a CPU and on an accelerator, a residual map's Jacobians are affordable.
JACOBIAN_DIM, JACOBIAN_DIM_FAST = 32, 64
# On a CPU coupling layers reach about as far above this, in less than half the time.
RESIDUAL_DIM = 4
# Up to here coupling layers leave so little misfit that weights can be learned.
WEIGHED_DIM = 32


def is_affordable(target: AbstractTarget, platform: str) -> bool:
    """Whether the Jacobians of a residual map are, in so many dimensions."""
    return target.dim <= (JACOBIAN_DIM if platform == "cpu" else JACOBIAN_DIM_FAST)


class TransportState(eqx.Module):
    """What the next step needs."""

    network: MixtureMap
    averaged: MixtureMap
    optimiser: tuple
    look: Look
    clock: Clock


class Transport(AbstractMethod):
    """Reverse KL on a mixture map, with the exact entropy.

    `layers` is the number of coupling layers of the map, 0 for a residual map.
    """

    steps: AutoInt = AUTO
    batch_size: AutoInt = AUTO
    width: AutoInt = AUTO
    depth: AutoInt = AUTO
    layers: AutoInt = AUTO
    components: AutoInt = AUTO
    learning_rate: float = 2e-3
    particles: int = 2048

    @property
    def evaluations(self) -> int:
        return self.components * max(self.batch_size // self.components, 1)

    def resolve(self, target: AbstractTarget, platform: str) -> "Transport":
        fast = platform != "cpu"
        small = target.dim <= RESIDUAL_DIM
        residual = is_affordable(target, platform) and (
            small or fast or not target.has_values
        )
        wanted = 0 if residual else 12 if target.dim <= WEIGHED_DIM else 8
        layers = wanted if self.layers is None else self.layers
        many = replace(self, layers=layers)._is_large(target)
        return fill_in(
            self,
            {
                "steps": 10_000 if small else 8_000,
                "batch_size": 1024 if fast else (256 if layers else 512),
                "width": 128 if fast else 64,
                "depth": 2 if layers else 3,
                "layers": layers,
                # Their weights need values of log q, not only its score.
                "components": (8 if many else 16) if target.has_values else 1,
            },
        )

    def stages(self) -> tuple[AbstractMethod, ...]:
        return (self,)

    def _is_large(self, target: AbstractTarget) -> bool:
        return bool(self.layers) and target.dim > WEIGHED_DIM

    def init(self, key, target, steps, previous=None) -> TransportState:
        look_key, mixture_key, network_key = jax.random.split(key, 3)
        seen = look(look_key, target, particles=self.particles)
        network = mixture_map(
            (mixture_key, network_key),
            seen.particles,
            self.width,
            self.depth,
            self.components,
            self.layers,
            # Coordinates that are scaled one by one.
            seen.whitening.factor if self._is_large(target) else None,
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
        if self.layers:
            early = 2 * state.clock.step < state.clock.horizon
            frozen = early | self._is_large(target)
            logits = jnp.where(frozen, 0.0, gradient.logits)
            gradient = eqx.tree_at(lambda m: m.logits, gradient, logits)
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
    if not target.has_values:
        frozen = jax.lax.stop_gradient(network.logits)
        network = eqx.tree_at(lambda m: m.logits, network, frozen)
    inverses = network.inverse_factors()
    weights = jax.nn.softmax(network.logits)

    def at(c, z):
        b = network.base(c, z)
        x, log_det = network.map.with_log_det(b)
        return widen(x), widen(network.base_log_density(b, inverses) - log_det)

    indices = jnp.arange(network.components)
    u, log_p = jax.vmap(lambda c, zs: jax.vmap(lambda z: at(c, z))(zs))(indices, z)
    if target.has_values:
        log_q = jax.vmap(jax.vmap(target.log_density))(u)
    else:
        # Only a (minibatch) score is known: its inner product with u has the right
        # gradient in u, though not a meaningful value.
        keys = jax.random.split(key, z.shape[:2])
        scores = jax.vmap(jax.vmap(lambda u, k: target.score(u, key=k)))(u, keys)
        log_q = jnp.sum(jax.lax.stop_gradient(scores) * u, axis=-1)
    return jnp.sum(widen(weights) * jnp.mean(log_p - log_q, axis=1))
