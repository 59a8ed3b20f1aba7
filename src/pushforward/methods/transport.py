"""Reverse KL with the exact entropy, by change of variables.

The sampler is a map of a Gaussian mixture (`networks.MixtureMap`) that starts at the
particles of a first look at the target. Its log density along its own draws is

    log p(g(b)) = log base(b) - log |det dg/db|,

so `KL(p || q) = E[log p - log q]` and its gradient need no score network. `g` is made
of coupling layers, which have an inverse whatever their weights and a determinant that
costs nothing; a single coordinate has no two halves, and there it is a residual map.

By KL a component loses weight by the factor `exp(-KL)` of its own misfit, and may be
empty before the map has had time to bend it. So weights stay those of the first look
for the first half of training.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward._precision import NETWORK_DTYPE, widen
from pushforward.errors import UsageError
from pushforward.methods.base import (
    AUTO,
    AbstractMethod,
    Adam,
    AutoInt,
    Clock,
    average,
    fill_in,
)
from pushforward.methods.common import Mixture, fit_mixture, merge, mixture_map
from pushforward.networks import MixtureMap
from pushforward.sampler import Sampler
from pushforward.targets.base import AbstractTarget
from pushforward.whitening import Look, look

# Above, particles are too few for a covariance of each component, and components are
# for modes alone.
MANY = 32


class TransportState(eqx.Module):
    """What the next step needs."""

    network: MixtureMap
    averaged: MixtureMap
    optimiser: tuple
    look: Look
    clock: Clock


class Transport(AbstractMethod):
    """Reverse KL on a mixture map, with the exact entropy.

    `layers` is the number of its coupling layers.
    """

    steps: AutoInt = AUTO
    batch_size: AutoInt = AUTO
    width: AutoInt = AUTO
    depth: AutoInt = AUTO
    layers: AutoInt = AUTO
    components: AutoInt = AUTO
    learning_rate: float = 5e-3
    particles: int = 2048

    @property
    def evaluations(self) -> int:
        return self.components * max(self.batch_size // self.components, 1)

    def resolve(self, target: AbstractTarget, platform: str) -> "Transport":
        fast, many = platform != "cpu", target.dim > MANY
        if self.layers == 0 and target.dim > 1:
            # Trained by paths, a residual map of several coordinates soon folds.
            raise UsageError(
                "layers must be at least 1; only a target of one coordinate has none."
            )
        # As many pairs of layers as part every two coordinates.
        enough = max(12, 2 * (target.dim - 1).bit_length())
        return fill_in(
            self,
            {
                "steps": 5_000,
                "batch_size": 1024 if fast else 256,
                "width": 64 if fast else 32,
                "depth": 2,
                "layers": enough if target.dim > 1 else 0,
                # Their weights need values of log q, not only its score.
                "components": (8 if many else 16) if target.has_values else 1,
            },
        )

    def stages(self) -> tuple[AbstractMethod, ...]:
        return (self,)

    def init(self, key, target, steps, previous=None) -> TransportState:
        look_key, mixture_key, network_key = jax.random.split(key, 3)
        seen = look(look_key, target, particles=self.particles)
        network = mixture_map(
            network_key,
            self._mixture(mixture_key, target, seen),
            self.width,
            self.depth,
            self.layers,
        )
        state = self._adam.init(network)
        return TransportState(network, network, state, seen, Clock.start(steps))

    def _mixture(self, key, target, seen: Look) -> Mixture:
        """The mixture of the particles of the first look."""
        if target.dim <= MANY or not target.has_values:
            return fit_mixture(key, seen.particles, self.components)
        # Coordinates that are scaled one by one.
        metric = seen.whitening.factor
        found = fit_mixture(key, seen.particles, self.components, metric=metric)
        return merge(seen.view(target).log_density, found)

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
        early = 2 * state.clock.step < state.clock.horizon
        logits = jnp.where(early, 0.0, gradient.logits)
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

    Its gradient follows the paths of the draws,

        E[(grad log p - grad log q)(x) . dx/dtheta],

    and leaves out that of `log p` in its own parameters at a fixed point, whose mean is
    0 and whose noise never ends (Roeder, Wu and Duvenaud, 2017): what is left vanishes
    at every single draw as p becomes q.

    Every component is sampled alike and weighted by its mixture weight, so the weights
    have a gradient too; where only a score is known, they have none.
    """
    inverses = network.inverse_factors()

    def at(c, z, key):
        x, log_p, score = network.push(c, z, inverses)
        x, log_p, score = widen(x), widen(log_p), widen(score)
        here = jax.lax.stop_gradient(x)
        log_q, field = _log_q(target, here, key)
        return log_p - log_q, jnp.sum((score - field) * (x - here))

    keys = jax.random.split(key, z.shape[:2])
    indices = jnp.arange(network.components)
    each, moved = jax.vmap(jax.vmap(at, (None, 0, 0)))(indices, z, keys)
    weights = widen(jax.nn.softmax(network.logits))
    energies = jnp.mean(each, axis=1)
    if not target.has_values:
        weights = jax.lax.stop_gradient(weights)
    # `moved` is 0, and has the gradient of the paths.
    along = jax.lax.stop_gradient(weights) * jnp.mean(moved, axis=1)
    return jnp.sum(weights * energies + along)


def _log_q(target: AbstractTarget, u: Float[Array, " d"], key: PRNGKeyArray):
    """The value and the score; without values, what has that score there."""
    if target.has_values:
        return jax.value_and_grad(target.log_density)(u)
    score = target.score(u, key=key)
    return jnp.sum(score * u), score
