"""The residual network of a multi-scale energy model (Li et al., 2019)."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward.networks import AbstractNetwork
from reproduction.mnist.networks.layers import DTYPE, Compute, Conv, Image, halve


class _Block(eqx.Module):
    """ELU, convolution, ELU, convolution, beside a shortcut of one pixel; no norm."""

    first: Conv
    second: Conv
    shortcut: Conv
    halves: bool = eqx.field(static=True)

    def __init__(self, inputs, outputs, halves, compute, *, key):
        a, b, c = jax.random.split(key, 3)
        self.first = Conv(inputs, inputs, gain=2**0.5, compute=compute, key=a)
        self.second = Conv(inputs, outputs, compute=compute, key=b)
        self.shortcut = Conv(inputs, outputs, 1, compute=compute, key=c)
        self.halves = halves

    def __call__(self, x: Image) -> Image:
        y = self.second(jax.nn.elu(self.first(jax.nn.elu(x))))
        if self.halves:
            x, y = halve(x), halve(y)
        return self.shortcut(x) + y


class EnergyResNet(AbstractNetwork):
    """`f(x)`, a number for an image of `side` by `side` pixels given as a vector.

    A convolution to `width` channels; `depth` pairs of residual blocks, the first of
    each pair halving the image and doubling the channels; and, on the flattened
    features h, `l1(h) l2(h) + l3(h^2)`. The energy model is `log q_sigma = f / sigma`.
    """

    stem: Conv
    blocks: tuple[_Block, ...]
    head: Float[Array, "3 features"]
    bias: Float[Array, " 3"]
    in_size: int = eqx.field(static=True)
    out_size: int = eqx.field(static=True)
    side: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    compute: Compute = eqx.field(static=True)
    depth: int = eqx.field(static=True)

    def __init__(
        self,
        side: int = 32,
        width: int = 64,
        compute: Compute = "float32",
        depth: int = 3,
        *,
        key: PRNGKeyArray,
    ):
        """A new network; `width` channels at first, `2^depth` times as many at last."""
        keys = jax.random.split(key, 2 * depth + 2)
        self.stem = Conv(1, width, compute=compute, key=keys[0])
        blocks, channels = [], width
        for i in range(depth):
            blocks += [
                _Block(channels, 2 * channels, True, compute, key=keys[2 * i + 1]),
                _Block(2 * channels, 2 * channels, False, compute, key=keys[2 * i + 2]),
            ]
            channels *= 2
        self.blocks = tuple(blocks)
        features = channels * (side // 2**depth) ** 2
        draw = jax.random.normal(keys[-1], (3, features), DTYPE)
        self.head = features**-0.5 * draw
        self.bias = jnp.zeros(3, DTYPE)
        self.in_size, self.out_size = side * side, 1
        self.side, self.width, self.compute, self.depth = side, width, compute, depth

    def __call__(self, x: Float[Array, " i"]) -> Float[Array, " 1"]:
        """`f` at one image."""
        h = self.stem(x.reshape(self.side, self.side, 1))
        for block in self.blocks:
            h = block(h)
        h = jax.nn.elu(h).ravel()
        l1, l2 = self.head[:2] @ h + self.bias[:2]
        l3 = self.head[2] @ h**2 + self.bias[2]
        return (l1 * l2 + l3)[None]
