"""Identical particles: a network that moves with them (Satorras et al., ICML 2021).

Positions enter through their distances and leave along their differences, so that
permuted, rotated or mirrored positions give permuted, rotated or mirrored results.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward._precision import NETWORK_DTYPE
from pushforward.errors import UsageError
from pushforward.networks.base import AbstractStoredNetwork
from pushforward.networks.mlp import MLP, refuse_unknown
from pushforward.targets.constraints import centred


class ParticleMap(AbstractStoredNetwork):
    """An equivariant graph network from positions to positions, or to a score.

    In a layer every pair exchanges a message `m_ij = e(|x_i - x_j|^2, h_i, h_j)`. A
    particle moves by `sum_j a(m_ij) (x_i - x_j) / (1 + |x_i - x_j|)`, and what it
    remembers becomes `h_i + b(h_i, sum_j m_ij)`. With `v` the sum of all moves, the
    result is `c x + v` for a sampler and `v - x / c^2` for a score; with `conditional`
    that takes the noise level too, and is `v / sigma - x / (c^2 + sigma^2)`. The size
    `c` is learnt.

    Centred particles have `(count - 1) dim` coordinates, those of the constraint
    'centred'. `latent` more numbers for each particle are noise of its own.
    """

    log_size: Float[Array, ""]
    edges: tuple[MLP, ...]
    nodes: tuple[MLP, ...]
    in_size: int = eqx.field(static=True)
    out_size: int = eqx.field(static=True)
    count: int = eqx.field(static=True)
    dim: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    layers: int = eqx.field(static=True)
    latent: int = eqx.field(static=True)
    is_centred: bool = eqx.field(static=True)
    score: bool = eqx.field(static=True)
    conditional: bool = eqx.field(static=True)
    activation: str = eqx.field(static=True)

    def __init__(
        self,
        count: int,
        dim: int,
        width: int,
        layers: int,
        latent: int = 0,
        activation: str = "silu",
        *,
        is_centred: bool = False,
        score: bool = False,
        conditional: bool = False,
        key: PRNGKeyArray,
    ):
        """A network of `count` particles in `dim` dimensions."""
        refuse_unknown(activation)
        if count < 2:
            raise UsageError(f"A network of particles needs at least 2, not {count}.")
        known = width + latent
        inputs = 2 * known + 1 + conditional
        keys = jax.random.split(key, (layers, 2))
        # A message, and how far the pair moves.
        self.edges = tuple(
            MLP(inputs, width + 1, width, 1, activation, 0.1, key=k[0]) for k in keys
        )
        self.nodes = tuple(
            MLP(known + width, known, width, 1, activation, 0.1, key=k[1]) for k in keys
        )
        self.count, self.dim = count, dim
        self.width, self.layers, self.latent = width, layers, latent
        self.is_centred, self.score, self.conditional = is_centred, score, conditional
        self.activation = activation
        self.log_size = jnp.zeros((), NETWORK_DTYPE)
        self.out_size = (count - is_centred) * dim
        self.in_size = self.out_size + count * latent

    def arrays(self) -> dict[str, Any]:
        """Those of its perceptrons."""
        named = {"log_size": self.log_size}
        for kind, group in (("edges", self.edges), ("nodes", self.nodes)):
            for i, mlp in enumerate(group):
                named |= {f"{kind}.{i}.{k}": a for k, a in mlp.arrays().items()}
        return named

    def __call__(
        self, x: Float[Array, " i"], sigma: Float[Array, ""] | None = None
    ) -> Float[Array, " o"]:
        """The network at one point (and noise level, where it is conditional)."""
        own = x[: self.out_size].reshape(-1, self.dim)
        noise = x[self.out_size :].reshape(self.count, self.latent)
        places = centred.constrain(own) if self.is_centred else own
        moved = self._moves(places, noise, sigma)
        moved = centred.free(moved) if self.is_centred else moved
        flat, own = moved.reshape(-1), own.reshape(-1)
        size = jnp.exp(self.log_size)
        if not self.score:
            return size * own + flat
        if not self.conditional:
            return flat - own / size**2
        assert sigma is not None
        return flat / sigma - own / (size**2 + sigma**2)

    def _moves(self, start, noise, sigma):
        n, width = self.count, self.width
        x = start
        remembered = jnp.ones((n, width), NETWORK_DTYPE)
        h = jnp.concatenate([remembered, noise], axis=1)
        known = h.shape[1]
        level = () if sigma is None else (jnp.log(sigma),)
        for edge, node in zip(self.edges, self.nodes, strict=True):
            apart = x[:, None] - x[None]
            squares = jnp.sum(apart**2, axis=2)
            # Of far pairs the logarithm says enough.
            seen = [jnp.log1p(squares)[..., None]]
            seen += [jnp.broadcast_to(each, (n, n, 1)) for each in level]
            pairs = jnp.concatenate(
                [
                    jnp.broadcast_to(h[:, None], (n, n, known)),
                    jnp.broadcast_to(h[None], (n, n, known)),
                    *seen,
                ],
                axis=2,
            )
            found = jax.vmap(jax.vmap(edge))(pairs)
            message, push = found[..., :width], found[..., width:]
            # A particle has no distance to itself, and no direction.
            lengths = jnp.sqrt(squares + jnp.finfo(NETWORK_DTYPE).eps)[..., None]
            x = x + jnp.sum(push * apart / (1 + lengths), axis=1) / n**0.5
            others = (1 - jnp.eye(n, dtype=NETWORK_DTYPE))[..., None]
            heard = jnp.sum(others * message, axis=1) / n**0.5
            h = h + jax.vmap(node)(jnp.concatenate([h, heard], axis=1))
        return x - start
