"""How far a sampler is from its target, seen from both sides.

Draws of the sampler p do not show what it lacks, and particles of the target q do not
show what it has too much of: so `delta = log q - log p` is looked at on both.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward._precision import narrow, widen
from pushforward.networks import AbstractDensityNetwork
from pushforward.targets.base import AbstractTarget

_BISECTIONS = 60
# How far below 0 chance may take an estimate of the divergence.
_CHANCE = 0.02
# What is further apart than this is infinitely far.
_FAR = 1e4


class Evidence(NamedTuple):
    """Two-sided evidence.

    Attributes:
        elbo: `E_p[delta]`, at most log Z.
        eubo: `E_q[delta]`, at least log Z where the particles follow q.
        ess: the effective share of the draws, `1 / (1 + var_p(q / p))`.
        ess_particles: the same of the particles, by `p / q`; a mode that the sampler
            lacks takes its share away.
        divergence: the Jensen-Shannon divergence, from 0 to log 2; log 2 where draws
            and particles contradict each other.
        log_normaliser: log Z by bridge sampling between both (Bennett, 1976).
    """

    elbo: Float[Array, ""]
    eubo: Float[Array, ""]
    ess: Float[Array, ""]
    ess_particles: Float[Array, ""]
    divergence: Float[Array, ""]
    log_normaliser: Float[Array, ""]

    @property
    def gap(self) -> Float[Array, ""]:
        """`KL(p || q) + KL(q || p)`: 0 where they are the same."""
        return self.eubo - self.elbo

    @staticmethod
    def of(draws: Float[Array, " n"], particles: Float[Array, " m"]) -> "Evidence":
        """From `delta` at draws of the sampler, and at particles of the target."""
        elbo, eubo = jnp.mean(draws), jnp.mean(particles)
        d, q = jnp.clip(draws, -_FAR, _FAR), jnp.clip(particles, -_FAR, _FAR)

        # With s the logistic function, the best classifier between draws and particles
        # is s(delta - log Z), and log Z is where it gives both the same weight.
        def halve(_, bounds):
            low, high = bounds
            c = 0.5 * (low + high)
            above = jnp.mean(jax.nn.sigmoid(d - c)) > jnp.mean(jax.nn.sigmoid(c - q))
            return jnp.where(above, c, low), jnp.where(above, high, c)

        ends = jnp.concatenate([d, q])
        bounds = jnp.min(ends) - 1, jnp.max(ends) + 1
        low, high = jax.lax.fori_loop(0, _BISECTIONS, halve, bounds)
        c = 0.5 * (low + high)
        hits = jnp.mean(jax.nn.log_sigmoid(c - d)) + jnp.mean(jax.nn.log_sigmoid(q - c))
        most = jnp.log(2.0).astype(c.dtype)
        found = most + 0.5 * hits
        # Less than chance leaves to a classifier: draws lie where there is much more
        # density than the particles account for, or the other way round.
        divergence = jnp.where(found < -_CHANCE, most, jnp.maximum(found, 0.0))
        return Evidence(elbo, eubo, _effective(d), _effective(-q), divergence, c)


def _effective(log_w: Float[Array, " n"]) -> Float[Array, ""]:
    log_n = jnp.log(jnp.asarray(log_w.size, log_w.dtype))
    logs = 2 * jax.nn.logsumexp(log_w) - jax.nn.logsumexp(2 * log_w) - log_n
    return jnp.exp(logs)


def log_ratios(
    key: PRNGKeyArray,
    network: AbstractDensityNetwork,
    target: AbstractTarget,
    n: int,
) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
    """`n` draws of a network, and `log q - log p` at each; -inf is no density."""
    z = network.latents(key, n)
    x, log_p = (widen(part) for part in jax.vmap(network.with_log_density)(z))
    log_q = jax.vmap(target.log_density)(x)
    delta = log_q - log_p
    return x, jnp.where(jnp.isnan(delta), -jnp.inf, delta)


def log_density_of(
    network: AbstractDensityNetwork, particles: Float[Array, "n d"]
) -> Float[Array, " n"]:
    """`log p` at particles; minus infinity where it is not a number."""
    log_p = widen(jax.vmap(network.log_density)(narrow(particles)))
    return jnp.where(jnp.isnan(log_p), -jnp.inf, log_p)
