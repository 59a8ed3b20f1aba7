"""Reverse KL on a Gaussian: a mean and a Cholesky factor.

`KL = E[-log q(m + L z)] - log det L + const`. Through minibatches this is doubly
stochastic variational inference (DSVI).
"""

import equinox as eqx
import jax
import jax.numpy as jnp

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
from pushforward.networks import AffineMap
from pushforward.sampler import Sampler
from pushforward.targets.base import AbstractTarget
from pushforward.whitening import Look, look


class GaussianState(eqx.Module):
    """What the next step needs."""

    network: AffineMap
    averaged: AffineMap
    optimiser: tuple
    look: Look
    clock: Clock


class Gaussian(AbstractMethod):
    """A full-rank Gaussian variational fit."""

    steps: AutoInt = AUTO
    batch_size: AutoInt = AUTO
    learning_rate: float = 1e-2
    particles: int = 2048

    @property
    def evaluations(self) -> int:
        return 2 * max(self.batch_size // 2, 1)

    def resolve(self, target: AbstractTarget, platform: str) -> "Gaussian":
        return fill_in(self, {"steps": 2000, "batch_size": 256})

    def stages(self) -> tuple[AbstractMethod, ...]:
        return (self,)

    def init(self, key, target, steps, previous=None) -> GaussianState:
        seen = look(key, target, particles=self.particles)
        network = AffineMap(target.dim)
        optimiser = self._adam.init(network)
        return GaussianState(network, network, optimiser, seen, Clock.start(steps))

    @property
    def _adam(self) -> Adam:
        return Adam(self.learning_rate)

    def step(self, key, target, state):
        view = state.look.view(target)
        z_key, minibatch_key = jax.random.split(key)
        pairs = max(self.batch_size // 2, 1)
        half = jax.random.normal(z_key, (pairs, target.dim), NETWORK_DTYPE)
        z = jnp.concatenate([half, -half])
        keys = jax.random.split(minibatch_key, z.shape[0])

        def loss(network):
            u = widen(jax.vmap(network)(z))
            scores = jax.vmap(lambda u, k: view.score(u, key=k))(u, keys)
            energy = -jnp.mean(jnp.sum(jax.lax.stop_gradient(scores) * u, axis=1))
            return energy - widen(network.log_det())

        gradient = eqx.filter_grad(loss)(state.network)
        factor = state.clock.warmup_cosine()
        network, optimiser = self._adam.update(
            gradient, state.optimiser, state.network, factor
        )
        averaged = average(state.averaged, network, state.clock)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient)))
        new = GaussianState(
            network, averaged, optimiser, state.look, state.clock.tick()
        )
        return new, {"gradient": norm}

    def sampler(self, target, state) -> Sampler:
        zero = jnp.zeros((), jnp.result_type(float))
        return Sampler(state.averaged, state.look.whitening, zero, target.structure)
