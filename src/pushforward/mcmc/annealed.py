"""Annealed Langevin dynamics, for scores that know the noise level."""

import blackjax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward.errors import UsageError
from pushforward.mcmc.result import MCMCResult
from pushforward.targets.base import AbstractTarget

# Levels in one compiled call: one program serves chains of any multiple of it.
_BLOCK = 50


def annealed_langevin(
    key: PRNGKeyArray,
    target: AbstractTarget,
    positions: Float[Array, "n d"],
    sigmas: Float[Array, " steps"],
    *,
    step_ratio: float | Float[Array, ""],
    denoise: bool = True,
) -> MCMCResult:
    """One Langevin step at each noise level, from each of n points.

    With the score s of the target blurred by N(0, sigma^2 I), a standard Gaussian z and
    `a = step_ratio sigma^2`, a step is `x + a s(x) + sqrt(2 a) z`. The closing step
    `x + sigma^2 s(x)` at the last level is the mean of the point that the noise of that
    level was added to (Tweedie's formula).

    Args:
        key: Random key.
        target: A `NoiseConditionalTarget`.
        positions: Where the n chains start, usually Gaussian with the first sigma.
        sigmas: The noise levels in the order of the steps, from large to small.
        step_ratio: The step size as a multiple of sigma^2.
        denoise: Whether there is a closing step.
    """
    target.require_noise_levels("annealed_langevin")
    if denoise and sigmas.shape[0] == 0:
        raise UsageError(
            "annealed_langevin denoises at the last of sigmas, and sigmas is empty."
        )
    ratio = jnp.asarray(step_ratio, positions.dtype)
    levels = jnp.asarray(sigmas, positions.dtype)
    x = positions
    for first in range(0, levels.shape[0], _BLOCK):
        number = jnp.arange(first, min(first + _BLOCK, levels.shape[0]))
        x = _walk(key, target, x, number, levels[first : first + _BLOCK], ratio)
    if denoise:
        x = _denoise(target, x, levels[-1])
    return MCMCResult(x, positions.shape[0] * (levels.shape[0] + denoise))


@eqx.filter_jit
def _walk(key, target, positions, numbers, sigmas, ratio):
    n = positions.shape[0]
    kernel = blackjax.sgld.build_kernel()

    def score(x, sigma):
        return target.score(x, sigma=sigma)

    def step(x, at):
        i, sigma = at
        keys = jax.random.split(jax.random.fold_in(key, i), n)
        move = jax.vmap(lambda k, x: kernel(k, x, score, sigma, ratio * sigma**2))
        return move(keys, x), None

    return jax.lax.scan(step, positions, (numbers, sigmas))[0]


@eqx.filter_jit
def _denoise(target, positions, sigma):
    return jax.vmap(lambda x: x + sigma**2 * target.score(x, sigma=sigma))(positions)
