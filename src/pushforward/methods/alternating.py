"""The alternating method: learn the sampler's score, then move the sampler along it.

`x0 = g(z)`, `x = x0 + sigma eps`. A step trains the score network `s` on fresh draws a
few times, then the sampler once, by the gradient of an objective through `x` alone (the
weights of `s` are frozen). Objectives differ in one function: `DFT`, `KL`. How likely a
generator's codes are is no matter of `x`: see `codes`.
"""

import abc
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward import scores
from pushforward._precision import NETWORK_DTYPE, narrow, widen
from pushforward.errors import UsageError
from pushforward.methods.base import (
    AbstractMethod,
    Adam,
    AutoFloat,
    AutoInt,
    AutoStr,
    Clock,
    average,
    fill_in,
)
from pushforward.methods.codes import weight_loss
from pushforward.methods.common import (
    Schedule,
    ScoreModel,
    Shape,
    at_level,
    coordinates,
    in_training,
    new_map,
    new_score,
    pace,
    rested,
)
from pushforward.methods.levels import BOUNDS, choose_bounds, draw_levels
from pushforward.networks import (
    AbstractBatchNetwork,
    AbstractNetwork,
    Generator,
    with_statistics,
)
from pushforward.sampler import Sampler
from pushforward.scores import Field
from pushforward.targets.base import AbstractTarget
from pushforward.targets.coordinates import Whitened
from pushforward.whitening import Look


class AlternatingState(eqx.Module):
    """What the next step needs."""

    network: AbstractNetwork
    averaged: AbstractNetwork
    score: ScoreModel
    network_optimiser: tuple
    score_optimiser: tuple
    look: Look
    clock: Clock


class AbstractAlternating(AbstractMethod):
    """Score network and sampler in turns; an objective completes it.

    The sampler is a network of the `shape` "residual" (a multi-layer perceptron that
    starts at the normal), "plain" (the paper's), "mixture" (of the Gaussians of the
    first look; `latent` is the dimension and one) or "image" (transposed convolutions
    to 32 by 32 pixels). That of images may have `codes`: see `networks.Generator`. With
    `weigh_codes` it learns how likely they are: whatever the objective, by the KL
    divergence at `sampler_sigma_max`.

    For a target that knows the noise level, every point has a level of its own, drawn
    log-uniformly. Score steps draw it from `sigma_min` to `sigma_max` (the target's
    range, unless given), sampler steps from `sampler_sigma_min` to `sampler_sigma_max`
    (the range of the score steps, unless given). `sigma_power` weighs the levels: a
    gradient counts by that power of its sigma. With `antithetic` the noise comes in
    pairs, `eps` and `-eps`, at twice the cost: worth it where sigma is small.
    """

    width: eqx.AbstractVar[AutoInt]
    score_width: eqx.AbstractVar[AutoInt]
    depth: eqx.AbstractVar[int]
    shape: eqx.AbstractVar[Shape]
    latent: eqx.AbstractVar[AutoInt]
    codes: eqx.AbstractVar[int]
    weigh_codes: eqx.AbstractVar[bool]
    activation: eqx.AbstractVar[str]
    noise_scale: eqx.AbstractVar[AutoFloat]
    score_steps: eqx.AbstractVar[int]
    score_warmup: eqx.AbstractVar[int]
    learning_rate: eqx.AbstractVar[float]
    score_learning_rate: eqx.AbstractVar[float]
    momentum: eqx.AbstractVar[float]
    schedule: eqx.AbstractVar[Schedule]
    averaging: eqx.AbstractVar[float]
    estimator: eqx.AbstractVar[scores.Estimator]
    antithetic: eqx.AbstractVar[bool]
    whiten: eqx.AbstractVar[bool]
    particles: eqx.AbstractVar[int]
    sigma_power: eqx.AbstractVar[float]
    sigma_min: eqx.AbstractVar[AutoFloat]
    sigma_max: eqx.AbstractVar[AutoFloat]
    sampler_sigma_min: eqx.AbstractVar[AutoFloat]
    sampler_sigma_max: eqx.AbstractVar[AutoFloat]
    compute: eqx.AbstractVar[AutoStr]

    def __check_init__(self):
        if self.noise_scale is None:
            return
        if not 0 <= self.noise_scale < 1:
            raise UsageError(
                "noise_scale must be at least 0 and less than 1, the width of the "
                f"whitened target, not {self.noise_scale}."
            )
        if self.noise_scale == 0 and self.estimator == "denoising":
            raise UsageError(
                "Without noise (noise_scale=0) there is nothing to denoise; use "
                "estimator='exact' or estimator='sliced'."
            )

    @abc.abstractmethod
    def objective(
        self,
        x: Float[Array, " d"],
        conditional: Float[Array, " d"],
        score: Field,
        first: Field,
        second: Field,
    ) -> Float[Array, ""]:
        """What is differentiated through `x` at one point.

        Args:
            x: the noisy draw `x0 + sigma eps`.
            conditional: `-eps / sigma`, the score of `x` given `x0`.
            score: the frozen estimate of the sampler's score.
            first: the target's score (from one minibatch, where it has minibatches).
            second: the same from an independent minibatch, where `minibatches` says
                that the objective has a use for one, and otherwise `first` itself.
        """

    @property
    def evaluations(self) -> int:
        more = self.batch_size // 2 if self.weigh_codes else 0
        return self.batch_size * (2 if self.antithetic else 1) + more

    def resolve(self, target: AbstractTarget, platform: str):
        fast = platform != "cpu"
        image = self.shape == "image"
        if self.weigh_codes and not (
            self.codes and self.batch_size != 1 and target.is_noise_conditional
        ):
            raise UsageError(
                "weigh_codes needs codes, batches of at least two, and a target that "
                "knows noise levels; with weigh_codes=False codes are equally likely."
            )
        width = 1024 if image else (256 if fast else 64)
        latent = 128 if image else target.dim + (self.shape == "mixture")
        given = {name: getattr(self, name) for name in BOUNDS}
        return fill_in(
            self,
            {
                **choose_bounds(target, given, self._noise),
                "steps": 15_000 if fast else 4_000,
                "batch_size": 128 if image else (2048 if fast else 256),
                "width": width,
                "score_width": 96 if image else (self.width or width),
                "latent": latent,
                "noise_scale": self._noise,
                "compute": "bfloat16" if image and fast else "float32",
            },
        )

    @property
    def _noise(self) -> float:
        return 0.05 if self.noise_scale is None else self.noise_scale

    def stages(self) -> tuple[AbstractMethod, ...]:
        return (self,)

    @property
    def _adam(self) -> Adam:
        # A low momentum by default: the score network's error is not stationary.
        return Adam(self.learning_rate, b1=self.momentum)

    @property
    def _score_adam(self) -> Adam:
        return Adam(self.score_learning_rate, clip=10.0)

    def init(self, key, target, steps, previous=None) -> AlternatingState:
        look_key, network_key, score_key = jax.random.split(key, 3)
        if previous is not None:
            # A later stage: the sampler and the coordinates of the one before.
            seen, network = previous.look, previous.averaged
        else:
            seen = coordinates(
                look_key, target, particles=self.particles, whiten=self.whiten
            )
            # The noise adds sigma^2 to the variance: start at N(0, I) in all.
            noiseless = target.is_noise_conditional
            network = new_map(
                self.shape,
                self.latent,
                target.dim,
                self.width,
                self.depth,
                self.activation,
                scale=1.0 if noiseless else (1 - self.noise_scale**2) ** 0.5,
                particles=seen.particles,
                codes=self.codes,
                weigh_codes=self.weigh_codes,
                compute=self.compute,
                key=network_key,
            )
        score = new_score(
            self.shape,
            target,
            self.score_width,
            self.depth,
            self.activation,
            compute=self.compute,
            key=score_key,
        )
        return AlternatingState(
            network,
            network,
            score,
            self._adam.init(network),
            self._score_adam.init(score),
            seen,
            Clock.start(steps),
        )

    def _noise_levels(
        self,
        key: PRNGKeyArray,
        target: AbstractTarget,
        bounds: tuple[AutoFloat, AutoFloat],
    ):
        if not target.is_noise_conditional:
            return jnp.full(self.batch_size, self.noise_scale, NETWORK_DTYPE)
        return draw_levels(key, *bounds, self.batch_size)

    def step(self, key, target, state):
        view = state.look.view(target)
        score_key, network_key = jax.random.split(key)
        factor = pace(self.schedule, state.clock)

        def score_step(carry, key):
            model, optimiser = carry
            loss, gradient = eqx.filter_value_and_grad(self._score_loss)(
                model, state.network, target, key
            )
            # The first steps train the score alone, at its full rate.
            rate = jnp.where(state.clock.step < self.score_warmup, 1.0, factor)
            model, optimiser = self._score_adam.update(gradient, optimiser, model, rate)
            return (model, optimiser), loss

        arrays, static = eqx.partition(state.score, eqx.is_array)

        def body(carry, key):
            arrays, optimiser = carry
            (model, optimiser), loss = score_step(
                (eqx.combine(arrays, static), optimiser), key
            )
            return (eqx.filter(model, eqx.is_array), optimiser), loss

        (arrays, score_optimiser), losses = jax.lax.scan(
            body,
            (arrays, state.score_optimiser),
            jax.random.split(score_key, self.score_steps),
        )
        score = eqx.combine(arrays, static)
        (_, (gap, seen)), gradient = eqx.filter_value_and_grad(
            self._sampler_loss, has_aux=True
        )(state.network, score, view, target, network_key)
        rate = jnp.where(state.clock.step < self.score_warmup, 0.0, factor)
        network, network_optimiser = self._adam.update(
            gradient, state.network_optimiser, state.network, rate
        )
        if isinstance(network, AbstractBatchNetwork) and seen is not None:
            network = with_statistics(network, seen)
        new = AlternatingState(
            network,
            average(state.averaged, network, state.clock, self.averaging),
            score,
            network_optimiser,
            score_optimiser,
            state.look,
            state.clock.tick(),
        )
        return new, {"score_loss": jnp.mean(losses), "fisher": gap}

    def _latents(self, key: PRNGKeyArray, network: AbstractNetwork):
        shape = (self.batch_size, network.in_size)
        return jax.random.normal(key, shape, NETWORK_DTYPE)

    def _score_loss(self, model: ScoreModel, network, target, key):
        z_key, level_key, noise_key = jax.random.split(key, 3)
        x0, _ = in_training(network, self._latents(z_key, network))
        x0 = jax.lax.stop_gradient(x0)
        bounds = self.sigma_min, self.sigma_max
        levels = self._noise_levels(level_key, target, bounds)

        def one(x0, sigma, key):
            field = at_level(model, sigma)
            return scores.score_loss(
                self.estimator, field, x0, sigma, key, antithetic=self.antithetic
            )

        keys = jax.random.split(noise_key, self.batch_size)
        return jnp.mean(jax.vmap(one)(x0, levels, keys))

    def _sampler_loss(self, network, score, view: Whitened, target, key):
        """The surrogate `sum_i g_i . x_i`, `g_i` the objective's gradient at a point.

        All of the objective's dependence on the sampler is through its draws; that of
        the codes' weights is added.
        """
        z_key, level_key, noise_key, a_key, b_key, w_key = jax.random.split(key, 6)
        z = self._latents(z_key, network)
        x0, seen = in_training(network, z)
        bounds = self.sampler_sigma_min, self.sampler_sigma_max
        levels = self._noise_levels(level_key, target, bounds)
        eps = jax.random.normal(noise_key, x0.shape, NETWORK_DTYPE)
        frozen = jax.lax.stop_gradient(x0)

        def one(x0, eps, sigma, a_key, b_key):
            outer = sigma if target.is_noise_conditional else None

            def first(x):
                return narrow(view.score(widen(x), key=a_key, sigma=outer))

            def again(x):
                return narrow(view.score(widen(x), key=b_key, sigma=outer))

            # A second minibatch is not worth its price where the objective has no use
            # for it: the gap below then has a minibatch's variance on top.
            several = target.is_stochastic and self.minibatches > 1
            second = again if several else first
            field = at_level(score, sigma)
            signs = (1.0, -1.0) if self.antithetic else (1.0,)

            @functools.partial(jax.grad, has_aux=True)
            def gradient(x, sign):
                # Values that are needed for the gap too: the compiler would not find
                # out that they are the same.
                known = [_known_at(x, f) for f in (field, first)]
                known.append(_known_at(x, second) if second is not first else known[1])
                loss = self.objective(x, -sign * eps / sigma, *known)
                return loss, [f(x) for f in known]

            found = [gradient(x0 + sign * sigma * eps, sign) for sign in signs]
            gradients, (s, a, b) = [g for g, _ in found], found[0][1]
            gap = jnp.sum((a - s) * (b - s))
            # Gradients are larger at lower noise levels: weigh them alike.
            weight = sigma**self.sigma_power if target.is_noise_conditional else 1.0
            return weight * sum(gradients) / len(signs), gap

        if target.is_stochastic:
            keys = [jax.random.split(k, self.batch_size) for k in (a_key, b_key)]
            gradients, gaps = jax.vmap(one)(frozen, eps, levels, *keys)
        else:
            in_axes = (0, 0, 0, None, None)
            gradients, gaps = jax.vmap(one, in_axes)(frozen, eps, levels, None, None)
        loss = jnp.mean(jnp.sum(gradients * x0, axis=1))
        if isinstance(network, Generator) and network.weighted:
            level = jnp.asarray(self.sampler_sigma_max, NETWORK_DTYPE)
            loss += weight_loss(
                w_key,
                network,
                z,
                frozen,
                at_level(score, level),
                lambda x: narrow(view.score(widen(x), sigma=level)),
                level,
            )
        return loss, (jnp.mean(gaps), seen)

    def sampler(self, target, state) -> Sampler:
        # A plain target is fitted by g(z) + sigma eps; a smoothed one by g(z) itself.
        scale = 0.0 if target.is_noise_conditional else self.noise_scale
        scale = jnp.asarray(scale, jnp.result_type(float))
        network = rested(state.averaged)
        return Sampler(network, state.look.whitening, scale, target.structure)


def _known_at(x: Float[Array, " d"], field: Field) -> Field:
    """The same field, its value at `x` computed once, however often it is asked."""
    value = field(x)
    return lambda y: value if y is x else field(y)
