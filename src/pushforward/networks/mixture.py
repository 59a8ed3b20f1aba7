"""A map of a Gaussian mixture: one pass, with a density that is known.

A continuous map of one Gaussian has to tear it apart to reach two modes or a ring. A
mixture as the base already has the pieces; the map bends them into shape.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pushforward._precision import NETWORK_DTYPE
from pushforward.networks.base import AbstractDensityNetwork, pick
from pushforward.networks.coupling import CouplingMap
from pushforward.networks.mlp import ResidualMap


class MixtureMap(AbstractDensityNetwork):
    """`x = g(m_c + L_c z)`, the component `c` picked by one extra latent number.

    The base `b = m_c + L_c z` is a Gaussian mixture with weights softmax(`logits`); `g`
    is a `ResidualMap`, or with `layers` a `CouplingMap` of so many. As long as `g` is
    injective, with J its Jacobian,

        log p(g(b)) = log sum_k w_k N(b; m_k, L_k L_k') - log |det J(b)|.
    """

    logits: Float[Array, " k"]
    means: Float[Array, "k d"]
    factors: Float[Array, "k d d"]
    map: ResidualMap | CouplingMap
    in_size: int = eqx.field(static=True)
    out_size: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    depth: int = eqx.field(static=True)
    components: int = eqx.field(static=True)
    layers: int = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        width: int,
        depth: int,
        components: int,
        layers: int = 0,
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
        else:
            self.map = ResidualMap(dim, dim, width, depth, key=key)
        self.in_size, self.out_size = in_size, dim
        self.width, self.depth = width, depth
        self.components, self.layers = components, layers

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
    def is_injective(self) -> bool:
        """Coupling layers are, whatever their weights; a residual map may fold."""
        return isinstance(self.map, CouplingMap)

    def with_log_density(
        self, z: Float[Array, " i"]
    ) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """The map at one latent point, and the log density of its draws there."""
        b = self.base(self.component(z[-1]), z[:-1])
        x, log_det = self.map.with_log_det(b)
        return x, self.base_log_density(b, self.inverse_factors()) - log_det

    def push(
        self, c: Int[Array, ""], z: Float[Array, " d"], inverses: Float[Array, "k d d"]
    ) -> tuple[Float[Array, " d"], Float[Array, ""], Float[Array, " d"]]:
        """The point of component `c` at the latent `z`, with log p and its score.

        In derivatives only the point moves; log p and its score are constants.
        """
        b = self.base(c, z)
        still, at = jax.lax.stop_gradient((self, b))
        log_p, score = jax.value_and_grad(still.base_log_density)(
            at, jax.lax.stop_gradient(inverses)
        )
        return self.map.push(b, log_p, score)
