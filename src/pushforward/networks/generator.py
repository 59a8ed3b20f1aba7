"""From a latent vector to an image: transposed convolutions."""

import itertools
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward.networks.base import AbstractBatchNetwork
from pushforward.networks.layers import BatchNorm, Compute, UpConv


class Generator(AbstractBatchNetwork):
    """Four transposed convolutions: 1, 4, 8, 16 and 32 pixels a side.

    `width`, `width / 2`, `width / 4` and 1 channels, with batch normalisation and a
    leaky ReLU (.2) between them, and pixels in [0, 1] by a sigmoid. The image comes as
    a vector of 32 x 32.
    """

    layers: tuple[UpConv, ...]
    norms: tuple[BatchNorm, ...]
    in_size: int = eqx.field(static=True)
    out_size: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    compute: Compute = eqx.field(static=True)

    def __init__(
        self,
        in_size: int = 128,
        width: int = 1024,
        compute: Compute = "float32",
        *,
        key: PRNGKeyArray,
    ):
        """A new network from `in_size` numbers."""
        sizes = [in_size, width, width // 2, width // 4, 1]
        keys = jax.random.split(key, 4)
        self.layers = tuple(
            UpConv(a, b, 2 if i else 4, compute=compute, key=keys[i])
            for i, (a, b) in enumerate(itertools.pairwise(sizes))
        )
        self.norms = tuple(BatchNorm(size) for size in sizes[1:-1])
        self.in_size, self.out_size = in_size, 32 * 32
        self.width, self.compute = width, compute

    def __call__(self, x: Float[Array, " i"]) -> Float[Array, " o"]:
        """One image, by the running statistics."""
        h = x[None, None]
        for layer, norm in zip(self.layers[:-1], self.norms, strict=True):
            h = jax.nn.leaky_relu(norm(layer(h)), 0.2)
        return jax.nn.sigmoid(self.layers[-1](h)).ravel()

    def train(
        self, batch: Float[Array, "n i"], keep: float | Float[Array, ""] = 0.9
    ) -> tuple[Float[Array, "n o"], "Generator"]:
        """Images of a batch, by its own statistics, and the network that saw them."""
        h, norms = batch[:, None, None], []
        for layer, norm in zip(self.layers[:-1], self.norms, strict=True):
            h, seen = norm.train(jax.vmap(layer)(h), keep)
            h = jax.nn.leaky_relu(h, 0.2)
            norms.append(seen)
        out = jax.nn.sigmoid(jax.vmap(self.layers[-1])(h))
        network = eqx.tree_at(lambda n: n.norms, self, tuple(norms))
        return out.reshape(batch.shape[0], -1), network

    def statistics(self) -> list[Any]:
        """The running statistics."""
        return [part for norm in self.norms for part in (norm.mean, norm.variance)]
