"""A wide residual network (Zagoruyko & Komodakis, 2016): the eye behind the FID."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward.networks import AbstractBatchNetwork
from reproduction.mnist.networks.layers import (
    DTYPE,
    BatchNorm,
    Compute,
    Conv,
    Image,
    halve,
)


class _Block(eqx.Module):
    """Norm, ReLU, convolution, twice, beside a shortcut."""

    norms: tuple[BatchNorm, BatchNorm]
    convs: tuple[Conv, Conv]
    shortcut: Conv | None
    halves: bool = eqx.field(static=True)

    def __init__(self, inputs, outputs, halves, compute, *, key):
        a, b, c = jax.random.split(key, 3)
        self.norms = BatchNorm(inputs), BatchNorm(outputs)
        self.convs = (
            Conv(inputs, outputs, gain=2**0.5, compute=compute, key=a),
            Conv(outputs, outputs, gain=2**0.5, compute=compute, key=b),
        )
        same = inputs == outputs
        self.shortcut = None if same else Conv(inputs, outputs, 1, key=c)
        self.halves = halves

    def __call__(self, x: Image) -> Image:
        h = jax.nn.relu(self.norms[0](x))
        return self._rest(x, h, jax.nn.relu(self.norms[1](self._first(h))))

    def _first(self, h: Image) -> Image:
        return self.convs[0](halve(h) if self.halves else h)

    def _rest(self, x: Image, h: Image, y: Image) -> Image:
        if self.shortcut is not None:
            x = self.shortcut(h)
        return self.convs[1](y) + (halve(x) if self.halves else x)

    def train(self, batch: Float[Array, "n h w c"], keep):
        h, one = self.norms[0].train(batch, keep)
        h = jax.nn.relu(h)
        y, two = self.norms[1].train(jax.vmap(self._first)(h), keep)
        out = jax.vmap(self._rest)(batch, h, jax.nn.relu(y))
        return out, eqx.tree_at(lambda b: b.norms, self, (one, two))


class WideResNet(AbstractBatchNetwork):
    """WideResNet-`depth`-k on images given as vectors: `out_size` logits.

    Three groups of (depth - 4) / 6 blocks, two for a depth of 16, with 16k, 32k and 64k
    channels; the features, 64k of them, are the means over the last image.
    """

    stem: Conv
    blocks: tuple[_Block, ...]
    norm: BatchNorm
    head: eqx.nn.Linear
    in_size: int = eqx.field(static=True)
    out_size: int = eqx.field(static=True)
    side: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    compute: Compute = eqx.field(static=True)
    depth: int = eqx.field(static=True)

    def __init__(
        self,
        out_size: int = 10,
        side: int = 32,
        width: int = 8,
        compute: Compute = "float32",
        depth: int = 16,
        *,
        key: PRNGKeyArray,
    ):
        """A new network; `width` is the factor k."""
        each = (depth - 4) // 6
        keys = jax.random.split(key, 3 * each + 2)
        self.stem = Conv(1, 16, compute=compute, key=keys[0])
        blocks, channels = [], 16
        for i, base in enumerate((16, 32, 64)):
            for j in range(each):
                k = keys[1 + each * i + j]
                halves = i > 0 and j == 0
                blocks.append(_Block(channels, base * width, halves, compute, key=k))
                channels = base * width
        self.blocks = tuple(blocks)
        self.norm = BatchNorm(channels)
        self.head = eqx.nn.Linear(channels, out_size, dtype=DTYPE, key=keys[-1])
        self.in_size, self.out_size = side * side, out_size
        self.side, self.width, self.compute, self.depth = side, width, compute, depth

    def features(self, x: Float[Array, " i"]) -> Float[Array, " f"]:
        """The features of one image: what a Fréchet distance compares."""
        h = self.stem(x.reshape(self.side, self.side, 1))
        for block in self.blocks:
            h = block(h)
        return jnp.mean(jax.nn.relu(self.norm(h)), axis=(0, 1))

    def __call__(self, x: Float[Array, " i"]) -> Float[Array, " o"]:
        """The logits of one image."""
        return self.head(self.features(x))

    def train(
        self, batch: Float[Array, "n i"], keep: float | Float[Array, ""] = 0.9
    ) -> tuple[Float[Array, "n o"], "WideResNet"]:
        """Logits of a batch, by its own statistics, and the network that saw them."""
        h = jax.vmap(self.stem)(batch.reshape(-1, self.side, self.side, 1))
        blocks = []
        for block in self.blocks:
            h, seen = block.train(h, keep)
            blocks.append(seen)
        h, norm = self.norm.train(h, keep)
        logits = jax.vmap(self.head)(jnp.mean(jax.nn.relu(h), axis=(1, 2)))
        where = (tuple(blocks), norm)
        return logits, eqx.tree_at(lambda n: (n.blocks, n.norm), self, where)

    def statistics(self) -> list[Any]:
        """The running statistics."""
        norms = [norm for block in self.blocks for norm in block.norms]
        return [p for norm in (*norms, self.norm) for p in (norm.mean, norm.variance)]
