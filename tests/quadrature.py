"""Expectations and derivatives without error, for proofs about gradients.

The sampler of the proofs is affine, `x = A z + b + sigma eps`: then `x` is Gaussian,
its covariance `A A' + sigma^2 I`, and its score is known as a function of `(A, b)`.
What the package does is computed with JAX; what it should be, with NumPy alone.
"""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


def gauss_hermite(dim, nodes):
    """Points and weights for N(0, I): exact up to degree `2 nodes - 1` an axis."""
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    weights = weights / weights.sum()
    points = np.array(list(itertools.product(points, repeat=dim)))
    weights = np.array(list(itertools.product(weights, repeat=dim)))
    return points, weights.prod(axis=1)


def expectation(function, dim, nodes):
    """`E[function(w)]`, w ~ N(0, I) in `dim` dimensions; a tree of numbers."""
    points, weights = gauss_hermite(dim, nodes)
    return jax.tree.map(
        lambda values: jnp.tensordot(jnp.asarray(weights), values, axes=1),
        jax.vmap(function)(jnp.asarray(points)),
    )


class Affine(NamedTuple):
    """The parameters of `x = A z + b`; `z` may have more or fewer numbers than `x`."""

    A: np.ndarray
    b: np.ndarray

    @staticmethod
    def random(seed, dim, latent):
        rng = np.random.default_rng(seed)
        A = 0.7 * np.eye(dim, latent) + 0.2 * rng.normal(size=(dim, latent))
        return Affine(A, 0.3 * rng.normal(size=dim))

    @property
    def latent(self):
        return self.A.shape[1]

    @property
    def dim(self):
        return self.A.shape[0]

    def covariance(self, sigma):
        return self.A @ self.A.T + sigma**2 * np.eye(self.dim)

    def points(self, sigma, nodes):
        """Points of `x` with their weights, as NumPy arrays."""
        w, weights = gauss_hermite(self.latent + self.dim, nodes)
        z, eps = np.split(w, [self.latent], axis=1)
        return z @ self.A.T + self.b + sigma * eps, weights

    def score(self, x, sigma):
        """The score of `x` at many points, a function of the parameters too."""
        return -(x - self.b) @ np.linalg.inv(self.covariance(sigma))

    def frozen_score(self, sigma):
        """The same as a JAX function of one point: what a trained score network is."""
        precision = jnp.asarray(np.linalg.inv(self.covariance(sigma)))
        return lambda x: -precision @ (x - self.b)


def complex_step(function, theta):
    """The exact gradient of a function of `theta` written in NumPy.

    `f'(t) = Im f(t + i h) / h`: no difference is taken, so `h` can be tiny and only
    rounding is left. `function` must be analytic (no absolute value, no conjugate).
    """
    step = 1e-30
    gradient = [np.zeros(a.shape) for a in theta]
    for part, into in enumerate(gradient):
        for index in np.ndindex(into.shape):
            moved = [a.astype(complex) for a in theta]
            moved[part][index] += 1j * step
            into[index] = function(Affine(*moved)).imag / step
    return Affine(*gradient)


def quartic(x, xp=jnp):
    """A log density with couplings, of degree 4: quadrature is exact for its score."""
    before = xp.roll(x, 1, axis=-1)
    coupling = 0.3 * x * before - 0.2 * x**2 * before**2
    return xp.sum(coupling + 0.25 * x + 0.1 * x**3 - 0.25 * x**4, axis=-1)


def quartic_score(x):
    before, after = np.roll(x, 1, axis=-1), np.roll(x, -1, axis=-1)
    coupling = 0.3 * (before + after) - 0.4 * x * (before**2 + after**2)
    return coupling + 0.25 + 0.3 * x**2 - x**3


def waves(x, xp=jnp):
    """A log density that is no polynomial, yet smooth enough for quadrature."""
    bowl = -0.4 * xp.sum(x**2, axis=-1)
    return bowl + xp.cos(1.1 * xp.sum(x, axis=-1)) + xp.sin(0.9 * x[..., 0])


def waves_score(x):
    push = np.zeros_like(x)
    push[..., 0] = 0.9 * np.cos(0.9 * x[..., 0])
    return -0.8 * x - 1.1 * np.sin(1.1 * x.sum(axis=-1, keepdims=True)) + push


def assert_equal(actual, expected, tolerance):
    """Two gradients agree, relative to the largest entry of what is expected."""
    actual, expected = (
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
        for tree in (actual, expected)
    )
    assert actual.dtype == expected.dtype == np.float64
    scale = np.abs(expected).max()
    assert scale > 1e-3, "nothing is compared"
    np.testing.assert_allclose(actual / scale, expected / scale, atol=tolerance, rtol=0)
