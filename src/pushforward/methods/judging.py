"""What fresh draws say about a sampler: the evidence for the recipe's decisions."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pushforward.methods.common import fit_mixture
from pushforward.methods.ksd import u_statistic
from pushforward.sampler import Sampler
from pushforward.targets.base import AbstractTarget
from pushforward.whitening import Look


def draw(
    key, target: AbstractTarget, look: Look, sampler: Sampler, sets: int, n: int
) -> tuple[Float[Array, "sets n d"], Float[Array, "sets n d"]]:
    """Sets of fresh draws in whitened coordinates, and the target's scores there."""

    def one_set(key):
        draw_key, noise_key = jax.random.split(key)
        x = jax.vmap(look.whitening.from_target)(sampler.block(draw_key, n))
        if target.sigma_range is not None:
            # Its score is that of noisy points.
            noise = jax.random.normal(noise_key, x.shape, x.dtype)
            x = x + target.sigma_range[0] * noise
        return x, jax.vmap(look.view(target).score)(x)

    return jax.lax.map(one_set, jax.random.split(key, sets))


def length_scale(s: Float[Array, "*many d"]) -> Float[Array, " d"]:
    """The width of a mode in each coordinate, from the median size of its score.

    One for a standard normal. In these units the kernel, whose own is one, sees a mode
    that is much narrower than the whole.
    """
    size = jnp.nanmedian(jnp.abs(s.reshape(-1, s.shape[-1])), axis=0) / 0.6745
    return 1 / jnp.where(size > 0, size, 1.0)


def u_statistics(
    x: Float[Array, "sets n d"], s: Float[Array, "sets n d"], scale: Float[Array, " d"]
) -> Float[Array, " sets"]:
    """The KSD U-statistic of each set in units of `scale`."""

    def one_set(both):
        return u_statistic(*jax.vmap(lambda x, s: (x / scale, s * scale))(*both))

    return jax.lax.map(one_set, (x, s))


def lost_weight(
    key, reference: Float[Array, "r d"], kept: Float[Array, "n d"],
    trial: Float[Array, "n d"], *, cells: int = 8,
) -> Float[Array, ""]:  # fmt: skip
    """How much weight the worst-hit part of the target lost, in standard errors.

    The parts are the cells of a mixture fitted to the reference. What `trial` lacks
    beside `kept` it has lost only if it lacks it beside the reference too: otherwise it
    has put right what `kept` had too much of.
    """
    _, means, _ = fit_mixture(key, reference, cells, sweeps=5)

    def shares(x):
        distances = jnp.sum((x[:, None] - means[None]) ** 2, axis=-1)
        return jnp.mean(jax.nn.one_hot(jnp.argmin(distances, axis=1), cells), axis=0)

    after = shares(trial)

    def lacking(x):
        before = shares(x)
        pooled = jnp.clip(0.5 * (before + after), 1e-6, 1.0)
        rate = 1 / x.shape[0] + 1 / trial.shape[0]
        return (before - after) / jnp.sqrt(pooled * (1 - pooled) * rate + 1e-12)

    return jnp.max(jnp.minimum(lacking(kept), lacking(reference)))
