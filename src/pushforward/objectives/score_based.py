"""An objective of the sampler's score as two losses: learn the score, then follow it.

`x0 = g(z)`, `x = x0 + sigma eps`. The second network `s` learns the score of `x` on
fresh draws; the sampler then moves by the gradient of the objective through `x` alone
(the weights of `s` are frozen).
"""

import abc
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward import _validate
from pushforward._precision import NETWORK_DTYPE, narrow, widen
from pushforward.errors import UsageError
from pushforward.networks import AbstractBatchNetwork, AbstractNetwork
from pushforward.objectives.base import (
    AbstractPairObjective,
    AbstractScoreObjective,
    Info,
)
from pushforward.objectives.draws import in_training, latents
from pushforward.objectives.noise import Noise
from pushforward.objectives.score_matching import (
    ESTIMATORS,
    Estimator,
    Field,
    score_loss,
)
from pushforward.targets.base import AbstractTarget


class AbstractNetworkLoss(eqx.Module):
    """A loss of the sampler network itself, added to that through its draws.

    For what no gradient through a draw can move, such as the probabilities of a
    categorical latent.
    """

    @abc.abstractmethod
    def evaluations(self, n: int) -> int:
        """How often it evaluates the target, for a batch of `n`."""

    @abc.abstractmethod
    def __call__(
        self,
        network: Any,
        z: Float[Array, "n l"],
        x0: Float[Array, "n d"],
        score: Callable[[Float[Array, " d"], Float[Array, ""]], Float[Array, " d"]],
        target: AbstractTarget,
        key: PRNGKeyArray,
    ) -> Float[Array, ""]:
        """The loss, to be differentiated in the weights of the network.

        Args:
            network: the sampler network.
            z: the latent points of the batch.
            x0: the network's draws at them, frozen.
            score: `score(x, sigma)`, the frozen estimate of the sampler's score.
            target: the target in the sampler's coordinates.
            key: random key.
        """


class ScoreBased(AbstractPairObjective):
    """A score objective, with the noise rule and how the score is learnt."""

    objective: AbstractScoreObjective
    noise: Noise = Noise()
    estimator: Estimator = "denoising"
    network_loss: AbstractNetworkLoss | None = None
    second_name: ClassVar[str] = "score_loss"

    def __check_init__(self):
        _validate.one_of("estimator", self.estimator, ESTIMATORS)
        if self.noise.scale > 0:
            return
        if self.estimator == "denoising":
            raise UsageError(
                "With a noise scale of 0 there is no noise to denoise; use "
                "estimator='exact' or estimator='sliced', or add noise."
            )
        if self.objective.needs_noise:
            raise UsageError(
                f"The objective {self.objective} looks at the noise, and the noise "
                "scale is 0; add noise, or use form='divergence' where it is DFT's."
            )

    @property
    def minibatches(self) -> int:
        return self.objective.minibatches

    def evaluations(self, n: int, second_steps: int) -> int:
        more = 0 if self.network_loss is None else self.network_loss.evaluations(n)
        return n * len(self.noise.signs) + more

    def noise_scale(self, target: AbstractTarget) -> float:
        # A plain target is fitted by g(z) + sigma eps; a smoothed one by g(z) itself.
        return 0.0 if target.has_noise_levels() else self.noise.scale

    def resolve(self, target: AbstractTarget) -> "ScoreBased":
        objective, noise = self.objective.resolve(target), self.noise.resolve(target)
        return ScoreBased(objective, noise, self.estimator, self.network_loss)

    def second_loss(
        self,
        second: Any,
        network: AbstractNetwork,
        target: AbstractTarget,
        key: PRNGKeyArray,
        n: int,
    ) -> Float[Array, ""]:
        z_key, level_key, noise_key = jax.random.split(key, 3)
        x0, _ = in_training(network, latents(z_key, n, network.in_size))
        x0 = jax.lax.stop_gradient(x0)
        bounds, _ = self.noise.ranges(target)
        levels = self.noise.draw(level_key, target, bounds, n)

        def one(x0, sigma, key):
            return score_loss(
                self.estimator,
                _at_level(second, sigma, target),
                x0,
                sigma,
                key,
                antithetic=self.noise.antithetic,
            )

        return jnp.mean(jax.vmap(one)(x0, levels, jax.random.split(noise_key, n)))

    def sampler_loss(
        self,
        network: AbstractNetwork,
        second: Any,
        target: AbstractTarget,
        key: PRNGKeyArray,
        n: int,
    ) -> tuple[Float[Array, ""], tuple[Info, AbstractBatchNetwork | None]]:
        """The surrogate `sum_i g_i . x_i`, `g_i` the objective's gradient at a point.

        All of the objective's dependence on the sampler is through its draws.
        """
        z_key, level_key, noise_key, a_key, b_key, w_key = jax.random.split(key, 6)
        z = latents(z_key, n, network.in_size)
        x0, seen = in_training(network, z)
        _, bounds = self.noise.ranges(target)
        levels = self.noise.draw(level_key, target, bounds, n)
        eps = jax.random.normal(noise_key, x0.shape, NETWORK_DTYPE)
        frozen = jax.lax.stop_gradient(x0)
        keys = [jax.random.split(k, n) for k in (a_key, b_key)]
        at_points = jax.vmap(self._gradient, (None, None, 0, 0, 0, 0, 0))
        gradients, gaps = at_points(second, target, frozen, eps, levels, *keys)
        loss = jnp.mean(jnp.sum(gradients * x0, axis=1))
        if self.network_loss is not None:

            def score(x, sigma):
                return _at_level(second, sigma, target)(x)

            loss += self.network_loss(network, z, frozen, score, target, w_key)
        return loss, ({"fisher": jnp.mean(gaps)}, seen)

    def _gradient(
        self, model: AbstractNetwork, target: AbstractTarget, x0, eps, sigma, *keys
    ):
        """The objective's gradient at one point, and `|s_q - s|^2` there."""
        one = other = target.minibatch(keys[0])
        if self.minibatches > 1:
            # Not worth its price where the objective has no use for it: the gap below
            # then has a minibatch's variance on top.
            other = target.minibatch(keys[1])

        def first(x):
            return narrow(one.score(widen(x), sigma=sigma))

        def second(x):
            return narrow(other.score(widen(x), sigma=sigma))

        field = _at_level(model, sigma, target)

        @functools.partial(jax.grad, has_aux=True)
        def gradient(x, sign):
            # Values that are needed for the gap too: the compiler would not find out
            # that they are the same.
            known = [_known_at(x, f) for f in (field, first)]
            # Without minibatches both are the same object.
            known.append(known[1] if other is one else _known_at(x, second))
            loss = self.objective(x, -sign * eps / sigma, *known)
            return loss, [f(x) for f in known]

        signs = self.noise.signs
        found = [gradient(x0 + sign * sigma * eps, sign) for sign in signs]
        gradients, (s, a, b) = [g for g, _ in found], found[0][1]
        gap = jnp.sum((a - s) * (b - s))
        # Gradients are larger at lower noise levels: weigh them alike.
        weight = sigma**self.noise.power if target.has_noise_levels() else 1.0
        return weight * sum(gradients) / len(signs), gap


def _at_level(
    model: Callable, sigma: Float[Array, ""], target: AbstractTarget
) -> Field:
    """The model of the score at this noise level, where the target has levels."""
    if target.has_noise_levels():
        return lambda x: model(x, sigma)
    return lambda x: model(x)


def _known_at(x: Float[Array, " d"], field: Field) -> Field:
    """The same field, its value at `x` computed once, however often it is asked."""
    value = field(x)
    return lambda y: value if y is x else field(y)
