"""Expectations without sampling error, for proofs about gradients.

The sampler of the proofs is affine, `x = A z + b + sigma eps`: then `x` is Gaussian with
covariance `A A' + sigma^2 I`, and its score is known as a function of `(A, b)`.
"""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree


def gauss_hermite(dim, nodes):
    """Points and weights for N(0, I): exact up to degree `2 nodes - 1` an axis."""
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    weights = weights / weights.sum()
    points = np.array(list(itertools.product(points, repeat=dim)))
    weights = np.array(list(itertools.product(weights, repeat=dim)))
    return jnp.asarray(points), jnp.asarray(weights.prod(axis=1))


def expectation(function, dim, nodes):
    """`E[function(w)]`, w ~ N(0, I) in `dim` dimensions; scalars or trees of arrays."""
    points, weights = gauss_hermite(dim, nodes)
    return jax.tree.map(
        lambda values: jnp.tensordot(weights, values, axes=1),
        jax.vmap(function)(points),
    )


class Affine(NamedTuple):
    """The parameters of `x = A z + b`; `z` may have more or fewer numbers than `x`."""

    A: jax.Array
    b: jax.Array

    @staticmethod
    def random(seed, dim, latent):
        rng = np.random.default_rng(seed)
        A = 0.7 * np.eye(dim, latent) + 0.2 * rng.normal(size=(dim, latent))
        return Affine(jnp.asarray(A), jnp.asarray(0.3 * rng.normal(size=dim)))

    def __call__(self, z):
        return self.A @ z + self.b

    def covariance(self, sigma):
        return self.A @ self.A.T + sigma**2 * jnp.eye(self.b.shape[0])

    def score(self, sigma):
        """The score of `A z + b + sigma eps`, parameters and all."""
        precision = jnp.linalg.inv(self.covariance(sigma))
        return lambda x: -precision @ (x - self.b)

    def frozen_score(self, sigma):
        """The same as a function of `x` alone: what a trained score network is."""
        return jax.lax.stop_gradient(self).score(sigma)

    def at(self, w, sigma):
        """The point of the noisy sampler's own Gaussian at the standard normal `w`."""
        return self.b + jnp.linalg.cholesky(self.covariance(sigma)) @ w

    def split(self, z_and_eps):
        return jnp.split(z_and_eps, [self.A.shape[1]])


def quartic(x):
    """A log density with couplings, of degree 4: quadrature is exact for its score."""
    ahead = jnp.roll(x, 1)
    coupling = 0.3 * x * ahead - 0.2 * x**2 * ahead**2 + 0.1 * x**3 + 0.25 * x
    return jnp.sum(coupling - 0.25 * x**4)


def waves(x):
    """A log density that is no polynomial, yet smooth enough for quadrature."""
    slopes = jnp.linspace(0.7, 1.3, x.shape[0])
    return -0.4 * jnp.sum(x**2) + jnp.cos(jnp.sum(slopes * x)) + jnp.sin(0.9 * x[0])


def assert_equal(actual, expected, tolerance):
    """Two gradients agree, relative to the largest entry of what is expected."""
    actual, expected = (np.asarray(ravel_pytree(t)[0]) for t in (actual, expected))
    assert actual.dtype == expected.dtype == np.float64
    scale = np.abs(expected).max()
    assert scale > 1e-3, "nothing is compared"
    np.testing.assert_allclose(actual / scale, expected / scale, atol=tolerance, rtol=0)
