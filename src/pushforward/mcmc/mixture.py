"""A mixture of Gaussians, from which tempered runs start."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


class GaussianMixture(eqx.Module):
    """A normalised mixture of k Gaussians `N(m_k, L_k L_k')`."""

    log_weights: Float[Array, " k"]
    means: Float[Array, "k d"]
    factors: Float[Array, "k d d"]
    inverses: Float[Array, "k d d"]

    @staticmethod
    def of(
        log_weights: Float[Array, " k"],
        means: Float[Array, "k d"],
        factors: Float[Array, "k d d"],
    ) -> "GaussianMixture":
        """The mixture with these weights, means and lower-triangular factors."""
        eye = jnp.broadcast_to(
            jnp.eye(means.shape[1], dtype=means.dtype), factors.shape
        )
        inverses = jax.scipy.linalg.solve_triangular(factors, eye, lower=True)
        return GaussianMixture(
            jax.nn.log_softmax(log_weights), means, factors, inverses
        )

    def sample(self, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]:
        """`n` draws."""
        which_key, key = jax.random.split(key)
        which = jax.random.categorical(which_key, self.log_weights, shape=(n,))
        z = jax.random.normal(key, (n, self.means.shape[1]), self.means.dtype)
        return self.means[which] + jnp.einsum("nij,nj->ni", self.factors[which], z)

    def component_log_densities(self, x: Float[Array, " d"]) -> Float[Array, " k"]:
        """The log density of each component at `x`, times its weight."""
        offsets = jnp.einsum("kij,kj->ki", self.inverses, x[None] - self.means)
        diagonals = jnp.diagonal(self.inverses, axis1=1, axis2=2)
        log_dets = jnp.sum(jnp.log(jnp.abs(diagonals)), axis=1)
        constant = 0.5 * x.shape[0] * jnp.log(2 * jnp.pi)
        squares = jnp.sum(offsets**2, axis=1)
        return self.log_weights + log_dets - 0.5 * squares - constant

    def log_density(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The log density at `x`."""
        return jax.nn.logsumexp(self.component_log_densities(x))
