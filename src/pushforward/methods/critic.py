"""A Stein critic against the sampler (the Fisher-NS of Hu et al., 2018).

`x = g(z)`. With `s_q` the target's score, Stein's identity gives for every field `f`

    E_p[s_q.f + div f] = E_p[(s_q - s_p).f],

which is zero for all of them only at `p = q`. The critic `f` seeks the largest value
of `E_p[s_q.f + div f] - penalty E_p|f|^2`, the sampler the smallest.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward._precision import narrow, widen
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
from pushforward.methods.common import Schedule, Shape, coordinates, new_map, pace
from pushforward.methods.direct import latents, refuse_images, refuse_smoothed
from pushforward.networks import MLP, AbstractNetwork
from pushforward.sampler import Sampler
from pushforward.scores import divergence, sliced_divergence
from pushforward.targets.base import AbstractTarget
from pushforward.whitening import Look

# Up to here the divergence is exact: d Jacobian-vector products a point.
EXACT_DIVERGENCE_DIM = 16


class CriticState(eqx.Module):
    """What the next step needs."""

    network: AbstractNetwork
    averaged: AbstractNetwork
    critic: MLP
    network_optimiser: tuple
    critic_optimiser: tuple
    look: Look
    clock: Clock


class SteinCritic(AbstractMethod):
    """Critic and sampler in turns.

    The critic's best answer is `f = (s_q - s_p) / (2 penalty)`, and what it reaches is
    the Fisher divergence over `4 penalty`. The sampler lowers the same value, through
    `x` alone: at the best critic that is the gradient of the Fisher divergence, penalty
    included (leave it out and the sampler drifts away even from a Gaussian). It is
    linear in `s_q`: one minibatch suffices. Hu et al. take the absolute value of the
    mean, which adds nothing, as `-f` is a critic too, and near the end turns the
    sampler's steps around at random.
    """

    steps: AutoInt = AUTO
    batch_size: AutoInt = AUTO
    penalty: float = 0.5
    critic_steps: int = 5
    critic_warmup: int = 500
    width: AutoInt = AUTO
    depth: int = 3
    shape: Shape = "residual"
    latent: AutoInt = AUTO
    activation: str = "silu"
    learning_rate: float = 5e-4
    critic_learning_rate: float = 1e-3
    momentum: float = 0.5
    schedule: Schedule = "cosine"
    averaging: float = 0.999
    whiten: bool = True
    particles: int = 2048

    def __check_init__(self):
        if not self.penalty > 0:
            raise UsageError(
                "penalty must be positive, or the best critic is infinite, and it is "
                f"{self.penalty}."
            )

    @property
    def evaluations(self) -> int:
        return self.batch_size * (self.critic_steps + 1)

    def resolve(self, target: AbstractTarget, platform: str) -> "SteinCritic":
        refuse_smoothed(self, target)
        refuse_images(self, self.shape)
        fast = platform != "cpu"
        return fill_in(
            self,
            {
                "steps": 15_000 if fast else 4_000,
                "batch_size": 2048 if fast else 256,
                "width": 256 if fast else 64,
                "latent": target.dim,
            },
        )

    def stages(self) -> tuple[AbstractMethod, ...]:
        return (self,)

    @property
    def _adam(self) -> Adam:
        # A low momentum by default: the critic changes all the time.
        return Adam(self.learning_rate, b1=self.momentum)

    @property
    def _critic_adam(self) -> Adam:
        return Adam(self.critic_learning_rate, clip=10.0)

    def init(self, key, target, steps, previous=None) -> CriticState:
        look_key, network_key, critic_key = jax.random.split(key, 3)
        seen = coordinates(
            look_key, target, particles=self.particles, whiten=self.whiten
        )
        network = new_map(
            self.shape,
            self.latent,
            target.dim,
            self.width,
            self.depth,
            self.activation,
            key=network_key,
        )
        dim = target.dim
        # A residual map starts near the target, where the best critic is small too.
        scale = 1.0 if self.shape == "plain" else 0.01
        critic = MLP(
            dim, dim, self.width, self.depth, self.activation, scale, key=critic_key
        )
        return CriticState(
            network,
            network,
            critic,
            self._adam.init(network),
            self._critic_adam.init(critic),
            seen,
            Clock.start(steps),
        )

    def step(self, key, target, state):
        view = state.look.view(target)
        critic_key, network_key = jax.random.split(key)
        factor = pace(self.schedule, state.clock)
        # The first steps train the critic alone, at its full rate.
        alone = state.clock.step < self.critic_warmup

        def body(carry, key):
            critic, optimiser = carry
            z_key, key = jax.random.split(key)
            x = self._draw(state.network, z_key)
            value, gradient = eqx.filter_value_and_grad(objective)(
                critic, view, x, key, self.penalty
            )
            gradient = jax.tree.map(jnp.negative, gradient)
            rate = jnp.where(alone, 1.0, factor)
            critic, optimiser = self._critic_adam.update(
                gradient, optimiser, critic, rate
            )
            return (critic, optimiser), value

        # Every leaf of an MLP is an array, so that it can be carried as it is.
        (critic, critic_optimiser), values = jax.lax.scan(
            body,
            (state.critic, state.critic_optimiser),
            jax.random.split(critic_key, self.critic_steps),
        )

        def sampler_loss(network):
            z_key, key = jax.random.split(network_key)
            x = self._draw(network, z_key)
            return objective(critic, view, x, key, self.penalty)

        value, gradient = eqx.filter_value_and_grad(sampler_loss)(state.network)
        network, network_optimiser = self._adam.update(
            gradient,
            state.network_optimiser,
            state.network,
            jnp.where(alone, 0.0, factor),
        )
        new = CriticState(
            network,
            average(state.averaged, network, state.clock, self.averaging),
            critic,
            network_optimiser,
            critic_optimiser,
            state.look,
            state.clock.tick(),
        )
        return new, {"critic": jnp.mean(values), "stein": value}

    def _draw(self, network: AbstractNetwork, key: PRNGKeyArray):
        return jax.vmap(network)(latents(key, self.batch_size, network.in_size))

    def sampler(self, target, state) -> Sampler:
        zero = jnp.zeros((), jnp.result_type(float))
        return Sampler(state.averaged, state.look.whitening, zero, target.structure)


def stein_mean(
    critic: AbstractNetwork,
    view: AbstractTarget,
    x: Float[Array, "n d"],
    key: PRNGKeyArray,
) -> Float[Array, ""]:
    """The mean of `s_q.f + div f`; above 16 dimensions Hutchinson's divergence."""
    minibatch_key, direction_key = jax.random.split(key)

    def one(x, minibatch_key, direction):
        score = narrow(view.score(widen(x), key=minibatch_key))
        inner = jnp.sum(score * critic(x))
        if direction is None:
            return inner + divergence(critic, x)
        return inner + sliced_divergence(critic, x, direction)

    n, dim = x.shape
    keys = jax.random.split(minibatch_key, n) if view.is_stochastic else None
    # Rademacher directions: the least variance among those with E[v v'] = I.
    directions = (
        jax.random.rademacher(direction_key, x.shape, x.dtype)
        if dim > EXACT_DIVERGENCE_DIM
        else None
    )
    return jnp.mean(jax.vmap(one)(x, keys, directions))


def objective(
    critic: AbstractNetwork,
    view: AbstractTarget,
    x: Float[Array, "n d"],
    key: PRNGKeyArray,
    penalty: float,
) -> Float[Array, ""]:
    """`E[s_q.f + div f] - penalty E|f|^2`: the critic's gain, the sampler's loss."""
    size = jnp.mean(jnp.sum(jax.vmap(critic)(x) ** 2, axis=1))
    return stein_mean(critic, view, x, key) - penalty * size
