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
)
from pushforward.networks.coupling import CouplingMap
from pushforward.networks.mlp import ResidualMap
from pushforward.networks.spline import SplineMap


class MixtureMap(AbstractDensityNetwork, AbstractStoredNetwork):
    """`x = g(m_c + L_c z)`, the component `c` picked by one extra latent number.

    The base `b = m_c + L_c z` is a Gaussian mixture with weights softmax(`logits`); `g`
    is a `CouplingMap` of `layers` layers, or without layers a `SplineMap` of `bins`
    bins for each coordinate, or without bins too a `ResidualMap`. As long as `g` is
    injective, with J its Jacobian,

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
            self.map = CouplingMap(dim, layers, width, depth, key=key)
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

    def component(self, u: Float[Array, ""]) -> Int[Array, ""]:
        """The component that the latent number `u` ~ N(0, 1) picks."""
        return pick(self.logits, u)

    def base(self, c: Int[Array, ""], z: Float[Array, " d"]) -> Float[Array, " d"]:
        """The point of component `c` at the latent `z`."""
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
        y = jnp.einsum("kij,kj->ki", inverses, b[None, :] - self.means)
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

    @property
    def strata(self) -> int:
        return self.components

    def log_weights(self) -> Float[Array, " k"]:
        return self.logits

    def push_latents(
        self, z: Float[Array, "k n d"]
    ) -> tuple[Float[Array, "k n d"], Float[Array, "k n"], Float[Array, "k n d"]]:
        # Once for all points.
        inverses = jax.lax.stop_gradient(self.inverse_factors())
        still = jax.lax.stop_gradient(self)

        def one(c, z):
            b = self.base(c, z)
            at = jax.lax.stop_gradient(b)
            log_p, score = jax.value_and_grad(still.base_log_density)(at, inverses)
            return self.map.push(b, log_p, score)

        return jax.vmap(jax.vmap(one, (None, 0)))(jnp.arange(self.components), z)
