"""Densities in many dimensions that `pushforward` has no name for, with exact draws."""

import jax
import jax.numpy as jnp
import numpy as np

import pushforward as pf


def _rotation(dim: int, seed: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, dim)))[0]


# The direction from one mode of `modes40` to the other.
WAY = _rotation(40, 5)[0]


def normal100() -> pf.Target:
    """A normal of 100 dimensions whose variances go from 1 to 1000, rotated."""
    turn, variances = _rotation(100, 1), np.logspace(0, 3, 100)
    factor = jnp.asarray(turn * np.sqrt(variances)[None], jnp.float32)
    precision = jnp.asarray((turn / variances[None]) @ turn.T, jnp.float32)

    def sample(key, n):
        return jax.random.normal(key, (n, 100)) @ factor.T

    return pf.Target(lambda x: -0.5 * x @ precision @ x, dim=100, sample=sample)


def student40() -> pf.Target:
    """Student's t of 40 dimensions with 5 degrees of freedom: 40 tails, one radius."""

    def sample(key, n):
        normal_key, radius_key = jax.random.split(key)
        chi2 = 2 * jax.random.gamma(radius_key, 2.5, (n, 1))
        return jax.random.normal(normal_key, (n, 40)) * jnp.sqrt(5 / chi2)

    return pf.Target(
        lambda x: -22.5 * jnp.log1p(jnp.sum(x**2) / 5), dim=40, sample=sample
    )


def modes40() -> pf.Target:
    """Two normals of 40 dimensions, 8 apart, with weights .3 and .7."""
    variances = np.logspace(-0.3, 0.3, 40)
    turns = [_rotation(40, seed) for seed in (3, 4)]
    roots = [turn * np.sqrt(variances)[None] for turn in turns]
    factors = jnp.asarray(np.stack(roots), jnp.float32)
    inverses = jnp.linalg.inv(factors)
    centres = jnp.asarray(np.stack([-4 * WAY, 4 * WAY]), jnp.float32)
    logits = jnp.log(jnp.array([0.3, 0.7]))

    def log_density(x):
        z = jnp.einsum("kij,kj->ki", inverses, x[None] - centres)
        return jax.nn.logsumexp(logits - 0.5 * jnp.sum(z**2, axis=1))

    def sample(key, n):
        mode_key, normal_key = jax.random.split(key)
        mode = jax.random.categorical(mode_key, logits, shape=(n,))
        z = jax.random.normal(normal_key, (n, 40))
        return centres[mode] + jnp.einsum("nij,nj->ni", factors[mode], z)

    return pf.Target(log_density, dim=40, sample=sample)


def bananas40() -> pf.Target:
    """Twenty bananas: `b = a^2` up to a normal of width 1/2."""

    def log_density(x):
        a, b = jnp.split(x, 2)
        return -0.5 * jnp.sum(a**2) - 2 * jnp.sum((b - a**2) ** 2)

    def sample(key, n):
        a, z = jax.random.normal(key, (2, n, 20))
        return jnp.concatenate([a, a**2 + 0.5 * z], axis=1)

    return pf.Target(log_density, dim=40, sample=sample)


def funnel40() -> pf.Target:
    """Neal's funnel with 39 children, the log of their variance standard normal."""

    def log_density(x):
        v, children = x[0], x[1:]
        spread = jnp.sum(children**2) * jnp.exp(-v)
        return -0.5 * (v**2 + spread + 39 * v)

    def sample(key, n):
        v, *children = jax.random.normal(key, (40, n))
        return jnp.stack([v, *(jnp.exp(v / 2) * c for c in children)], axis=1)

    return pf.Target(log_density, dim=40, sample=sample)


DENSITIES = {
    made.__name__: made for made in (normal100, student40, modes40, bananas40, funnel40)
}
