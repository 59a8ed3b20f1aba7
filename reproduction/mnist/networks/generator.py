"""From a latent vector to an image: transposed convolutions."""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pushforward.errors import UsageError
from pushforward.networks import AbstractBatchNetwork
from reproduction.mnist.networks.layers import DTYPE, BatchNorm, Compute, UpConv


class Generator(AbstractBatchNetwork):
    """Four transposed convolutions: 1, 4, 8, 16 and 32 pixels a side.

    `width`, `width / 2`, `width / 4` and 1 channels, with batch normalisation and a
    leaky ReLU (.2) between them, and pixels in [0, 1] by a sigmoid. The image comes as
    a vector of 32 x 32.

    A continuous map of a normal is connected: between two kinds of image it makes
    images of neither. With `codes`, the largest of the first so many latent numbers
    chooses one of as many inputs on top of them, and the map may jump. Codes are then
    equally likely; if they are `weighted`, the last latent number picks one by weights
    softmax(`logits`), and has no other part in the image.
    """

    layers: tuple[UpConv, ...]
    norms: tuple[BatchNorm, ...]
    logits: Float[Array, " k"] | None
    in_size: int = eqx.field(static=True)
    out_size: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    compute: Compute = eqx.field(static=True)
    codes: int = eqx.field(static=True)
    weighted: bool = eqx.field(static=True)

    def __init__(
        self,
        in_size: int = 128,
        width: int = 1024,
        compute: Compute = "float32",
        codes: int = 0,
        weighted: bool = False,
        *,
        key: PRNGKeyArray,
    ):
        """A new network from `in_size` numbers, at least as many as `codes`."""
        if codes > in_size:
            raise UsageError(
                f"{codes} codes need as many latent numbers, and there are {in_size}."
            )
        if weighted and codes < 2:
            raise UsageError(f"There is nothing to weigh among {codes} codes.")
        first = in_size + codes - weighted
        sizes = [first, width, width // 2, width // 4, 1]
        keys = jax.random.split(key, 4)
        self.layers = tuple(
            UpConv(a, b, 2 if i else 4, compute=compute, key=keys[i])
            for i, (a, b) in enumerate(itertools.pairwise(sizes))
        )
        self.norms = tuple(BatchNorm(size) for size in sizes[1:-1])
        self.in_size, self.out_size = in_size, 32 * 32
        self.logits = jnp.zeros(codes, DTYPE) if weighted else None
        self.width, self.compute = width, compute
        self.codes, self.weighted = codes, weighted

    def code(self, z: Float[Array, " i"]) -> Int[Array, ""]:
        """The code that a latent point chooses."""
        if self.logits is None:
            return jnp.argmax(z[: self.codes]).astype(jnp.int32)
        # The last edge is 1 up to rounding: leaving it out keeps the code in range.
        edges = jnp.cumsum(jax.nn.softmax(self.logits))[:-1]
        return jnp.sum(jax.scipy.stats.norm.cdf(z[-1]) > edges).astype(jnp.int32)

    def log_weight(self, z: Float[Array, " i"]) -> Float[Array, ""]:
        """The log probability of the code that a latent point picks, by weights."""
        assert self.logits is not None
        return jax.nn.log_softmax(self.logits)[self.code(z)]

    def _coded(self, z: Float[Array, " i"]) -> Float[Array, " j"]:
        if not self.codes:
            return z
        code = jax.nn.one_hot(self.code(z), self.codes, dtype=z.dtype)
        rest = z[:-1] if self.weighted else z
        # As long a vector as the latent numbers are.
        return jnp.concatenate([rest, self.in_size**0.5 * code])

    def __call__(self, x: Float[Array, " i"]) -> Float[Array, " o"]:
        """One image, by the running statistics."""
        h = self._coded(x)[None, None]
        for layer, norm in zip(self.layers[:-1], self.norms, strict=True):
            h = jax.nn.leaky_relu(norm(layer(h)), 0.2)
        return jax.nn.sigmoid(self.layers[-1](h)).ravel()

    def train(
        self, batch: Float[Array, "n i"], keep: float | Float[Array, ""] = 0.9
    ) -> tuple[Float[Array, "n o"], "Generator"]:
        """Images of a batch, by its own statistics, and the network that saw them."""
        h, norms = jax.vmap(self._coded)(batch)[:, None, None], []
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
