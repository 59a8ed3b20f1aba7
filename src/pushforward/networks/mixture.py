"""A map of a Gaussian mixture: one pass, with a density that is known.

A continuous map of one Gaussian has to tear it apart to reach two modes or a ring. A
mixture as the base already has the pieces; the map bends them into shape.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pushforward._precision import NETWORK_DTYPE
from pushforward.errors import UsageError
from pushforward.networks.base import (
    AbstractDensityNetwork,
    AbstractStoredNetwork,
    pick,
    stratified_normal,
)
from pushforward.networks.coupling import CouplingMap
from pushforward.networks.mlp import ResidualMap
from pushforward.networks.spline import SplineMap


class MixtureMap(AbstractDensityNetwork, AbstractStoredNetwork):
    """`x = g(m_c + L_c z)`, the component `c` picked by one extra latent number.

    The base `b = m_c + L_c z` is a Gaussian mixture with weights softmax(`logits`); `g`
    is a `CouplingMap` of `layers` layers with splines of `bins` bins, or without layers
    a `SplineMap` of `bins` bins for each coordinate, or without bins too a
    `ResidualMap`. As long as `g` is injective, with J its Jacobian,

        log p(g(b)) = log sum_k w_k N(b; m_k, L_k L_k') - log |det J(b)|.
    """

    logits: Float[Array, " k"]
    means: Float[Array, "k d"]
    factors: Float[Array, "k d d"]
    map: ResidualMap | CouplingMap | SplineMap
    in_size: int = eqx.field(static=True)
    out_size: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    depth: int = eqx.field(static=True)
    components: int = eqx.field(static=True)
    layers: int = eqx.field(static=True)
    bins: int = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        width: int,
        depth: int,
        components: int,
        layers: int = 0,
        bins: int = 0,
        *,
        key: PRNGKeyArray,
    ):
        """Components at the standard normal; `in_size` is the dimension plus one."""
        dim = in_size - 1
        self.logits = jnp.zeros(components, NETWORK_DTYPE)
        self.means = jnp.zeros((components, dim), NETWORK_DTYPE)
        self.factors = jnp.tile(jnp.eye(dim, dtype=NETWORK_DTYPE), (components, 1, 1))
        if layers:
            self.map = CouplingMap(dim, layers, width, depth, bins=bins, key=key)
        elif bins:
            self.map = SplineMap(dim, bins)
        else:
            self.map = ResidualMap(dim, dim, width, depth, key=key)
        self.in_size, self.out_size = in_size, dim
        self.width, self.depth = width, depth
        self.components, self.layers, self.bins = components, layers, bins

    def arrays(self) -> dict[str, Any]:
        """The base's arrays, and those of the map after `map.`."""
        inner = {f"map.{name}": a for name, a in self.map.arrays().items()}
        own = {"logits": self.logits, "means": self.means, "factors": self.factors}
        return {**own, **inner}

    def gradient_in_units(self, gradient: "MixtureMap") -> "MixtureMap":
        """By the means in units of `L_k`, and by `D` of `L_k (I + D)`."""
        lower = jnp.tril(self.factors)
        means = jnp.einsum("kji,kj->ki", lower, gradient.means)
        factors = jnp.tril(jnp.swapaxes(lower, 1, 2) @ jnp.tril(gradient.factors))
        return eqx.tree_at(lambda g: (g.means, g.factors), gradient, (means, factors))

    def update_of_units(self, update: "MixtureMap") -> "MixtureMap":
        lower = jnp.tril(self.factors)
        means = jnp.einsum("kij,kj->ki", lower, update.means)
        factors = lower @ jnp.tril(update.factors)
        return eqx.tree_at(lambda u: (u.means, u.factors), update, (means, factors))

    def component(self, u: Float[Array, ""]) -> Int[Array, ""]:
        """The component that the latent number `u` ~ N(0, 1) picks."""
        return pick(self.logits, u)

    def base(self, c: Int[Array, ""], z: Float[Array, " d"]) -> Float[Array, " d"]:
        """The point of component `c` at the latent `z`."""
        if self.components == 1:
            # No copy of a large matrix for every point.
            return self.means[0] + jnp.tril(self.factors[0]) @ z
        return self.means[c] + jnp.tril(self.factors[c]) @ z

    def __call__(self, x: Float[Array, " i"]) -> Float[Array, " d"]:
        """The map at one latent point; its last number picks the component."""
        return self.map(self.base(self.component(x[-1]), x[:-1]))

    def inverse_factors(self) -> Float[Array, "k d d"]:
        """The inverses of all factors: computed once for a whole batch of points."""
        eye = jnp.eye(self.out_size, dtype=self.factors.dtype)
        eyes = jnp.broadcast_to(eye, self.factors.shape)
        lower = jnp.tril(self.factors)
        return jax.scipy.linalg.solve_triangular(lower, eyes, lower=True)

    def base_log_density(
        self, b: Float[Array, " d"], inverses: Float[Array, "k d d"]
    ) -> Float[Array, ""]:
        """The log density of the base at `b`."""
        # One product for all components and, under vmap, all points. It is exact to the
        # last digits, as what is narrow is a difference of large numbers.
        rows = inverses.reshape(-1, self.out_size)
        shifts = jnp.einsum("kij,kj->ki", inverses, self.means, precision="highest")
        y = jnp.matmul(rows, b, precision="highest").reshape(shifts.shape) - shifts
        diagonals = jnp.diagonal(self.factors, axis1=1, axis2=2)
        log_dets = jnp.sum(jnp.log(jnp.abs(diagonals)), axis=1)
        normal = -0.5 * jnp.sum(y**2, axis=1) - log_dets
        constant = -0.5 * self.out_size * jnp.log(2 * jnp.pi).astype(b.dtype)
        return jax.nn.logsumexp(jax.nn.log_softmax(self.logits) + normal) + constant

    @property
    def has_density(self) -> bool:
        """Unless the map is a residual one, which may fold."""
        return not isinstance(self.map, ResidualMap)

    def with_log_density(
        self, z: Float[Array, " i"]
    ) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """The map at one latent point, and the log density of its draws there."""
        b = self.base(self.component(z[-1]), z[:-1])
        x, log_det = self.map.with_log_det(b)
        return x, self.base_log_density(b, self.inverse_factors()) - log_det

    def log_density(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The log density of its draws at any point."""
        if isinstance(self.map, ResidualMap):
            raise UsageError(
                "A mixture map with a residual map (layers=0) has no inverse in closed "
                "form, so its density at a given point is not known; use coupling "
                "layers, or bins."
            )
        b, log_det = self.map.inverse_with_log_det(x)
        return self.base_log_density(b, self.inverse_factors()) - log_det

    def latents(self, key: PRNGKeyArray, n: int) -> Float[Array, "n i"]:
        """Every component has its share of the points, in no order."""
        key, last_key = jax.random.split(key)
        z = jax.random.normal(key, (n, self.in_size), NETWORK_DTYPE)
        return z.at[:, -1].set(stratified_normal(last_key, n))

    def push_latents(
        self, z: Float[Array, "n i"]
    ) -> tuple[
        Float[Array, "n d"], Float[Array, " n"], Float[Array, "n d"], Float[Array, " n"]
    ]:
        # Once for all points.
        inverses = jax.lax.stop_gradient(self.inverse_factors())
        still = jax.lax.stop_gradient(self)
        log_weights = jax.nn.log_softmax(self.logits)
        lower = jnp.tril(self.factors).reshape(-1, self.out_size)

        def one(z):
            c = self.component(z[-1])
            # Of every component, and one of them chosen: gradients of a lookup in
            # large tables would be scattered.
            bases = self.means + (lower @ z[:-1]).reshape(self.means.shape)
            b = jax.nn.one_hot(c, self.components, dtype=z.dtype) @ bases
            at = jax.lax.stop_gradient(b)
            log_p, score = jax.value_and_grad(still.base_log_density)(at, inverses)
            return *self.map.push(b, log_p, score), log_weights[c]

        return jax.vmap(one)(z)
