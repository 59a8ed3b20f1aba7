"""What is learnt from the digits themselves: the energy model and the classifier."""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt8

from pushforward.methods import AbstractTask, Adam, Clock, average
from pushforward.networks import at_rest, with_statistics
from reproduction.mnist.networks import EnergyResNet, WideResNet, compute_dtype


class Images(eqx.Module):
    """Images as rows of bytes, and their classes."""

    pixels: UInt8[Array, "n d"]
    classes: Int[Array, " n"]

    def batch(self, key: PRNGKeyArray, size: int):
        """Some of them, with replacement: pixels in [0, 1], and classes."""
        chosen = jax.random.randint(key, (size,), 0, self.pixels.shape[0], jnp.int32)
        return self.pixels[chosen].astype(jnp.float32) / 255, self.classes[chosen]


class LearningState(eqx.Module):
    """What the next step needs."""

    network: Any
    averaged: Any
    optimiser: Any
    clock: Clock


class AbstractLearning(AbstractTask):
    """One network, one loss, Adam, and an average of the weights."""

    learning_rate: eqx.AbstractVar[float]
    compute: eqx.AbstractVar[str | None]

    def resolve(self, target: Images):
        return dataclasses.replace(self, compute=self.compute or compute_dtype())

    @property
    def _adam(self) -> Adam:
        return Adam(self.learning_rate)

    @property
    def _compute(self) -> Any:
        return self.compute or compute_dtype()

    def learn(self, state: LearningState, gradient: Any) -> LearningState:
        """The state after one update."""
        rate = self._adam.factor(state.clock)
        network, optimiser = self._adam.update(
            gradient, state.optimiser, state.network, rate
        )
        averaged = average(state.averaged, network, state.clock)
        return LearningState(network, averaged, optimiser, state.clock.advance())

    def begin(self, network: Any, steps: Int[Array, ""]) -> LearningState:
        """The state before the first step."""
        return LearningState(
            network, network, self._adam.init(network), Clock.start(steps)
        )


class Energy(AbstractLearning):
    """Denoising training of `log q_sigma = f / sigma` at all levels in a range.

    The loss is `|grad f(x + sigma eps) + eps|^2`, sigma log-uniform: `grad f / sigma`
    becomes the score of the data smoothed by sigma (Li et al., 2019).
    """

    name: ClassVar[str] = "energy"
    steps: int = 200_000
    batch_size: int = 128
    width: int = 64
    depth: int = 3
    sigma_min: float = 0.3
    sigma_max: float = 3.0
    learning_rate: float = 3e-4
    compute: str | None = None

    def init(self, key, target: Images, steps, previous=None) -> LearningState:
        side = round(target.pixels.shape[1] ** 0.5)
        network = EnergyResNet(side, self.width, self._compute, self.depth, key=key)
        return self.begin(network, steps)

    def step(self, key, target: Images, state: LearningState):
        pick, level_key, noise_key = jax.random.split(key, 3)
        x, _ = target.batch(pick, self.batch_size)
        low, high = jnp.log(self.sigma_min), jnp.log(self.sigma_max)
        draw = jax.random.uniform(level_key, (self.batch_size,), jnp.float32)
        sigma = jnp.exp(low + (high - low) * draw).astype(jnp.float32)
        eps = jax.random.normal(noise_key, x.shape, jnp.float32)

        def loss(network):
            noisy = x + sigma[:, None] * eps
            slope = jax.vmap(jax.grad(lambda x: network(x)[0]))(noisy)
            return jnp.mean((slope + eps) ** 2)

        value, gradient = eqx.filter_value_and_grad(loss)(state.network)
        return self.learn(state, gradient), {"loss": value}

    def result(self, target, state: LearningState) -> EnergyResNet:
        return state.averaged


class Classify(AbstractLearning):
    """A classifier of images that may be shifted by up to two pixels."""

    name: ClassVar[str] = "classify"
    steps: int = 6_000
    batch_size: int = 128
    width: int = 8
    depth: int = 16
    learning_rate: float = 1e-3
    compute: str | None = None
    # Images by which the statistics at rest are estimated: sixteen batches of so many.
    rest: int = 256

    def init(self, key, target: Images, steps, previous=None) -> LearningState:
        side = round(target.pixels.shape[1] ** 0.5)
        network = WideResNet(10, side, self.width, self._compute, self.depth, key=key)
        return self.begin(network, steps)

    def step(self, key, target: Images, state: LearningState):
        pick, shift_key = jax.random.split(key)
        x, classes = target.batch(pick, self.batch_size)
        moved = jax.vmap(_shifted)(x, jax.random.split(shift_key, self.batch_size))

        def loss(network):
            logits, seen = network.train(moved)
            likely = jax.nn.log_softmax(logits)
            right = jnp.take_along_axis(likely, classes[:, None], axis=1)
            return -jnp.mean(right), seen

        (value, seen), gradient = eqx.filter_value_and_grad(loss, has_aux=True)(
            state.network
        )
        new = self.learn(state, gradient)
        network: Any = with_statistics(new.network, seen)
        new = eqx.tree_at(lambda s: s.network, new, network)
        return new, {"loss": value}

    def result(self, target: Images, state: LearningState) -> Any:
        """The averaged network, its statistics estimated on the images themselves."""
        keys = jax.random.split(jax.random.key(0), 16)
        batches = jnp.stack([target.batch(key, self.rest)[0] for key in keys])
        return at_rest(state.averaged, batches)


def _shifted(x: Float[Array, " d"], key: PRNGKeyArray) -> Float[Array, " d"]:
    side = round(x.shape[0] ** 0.5)
    by = jax.random.randint(key, (2,), -2, 3, jnp.int32)
    # Digits have an empty margin of at least four pixels: what leaves one side comes
    # in empty at the other.
    return jnp.roll(x.reshape(side, side), by, axis=(0, 1)).ravel()
