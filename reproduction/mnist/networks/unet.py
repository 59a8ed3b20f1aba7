"""A U-Net that models the score of noisy images at any noise level."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward.networks import AbstractNetwork
from reproduction.mnist.networks.layers import (
    DTYPE,
    Compute,
    Conv,
    GroupNorm,
    Image,
    double,
    fold,
    halve,
    unfold,
)

# The size of the description of a noise level.
_LEVEL = 64


class _Block(eqx.Module):
    """Norm, SiLU, convolution, twice, with the noise level added in between."""

    norms: tuple[GroupNorm, GroupNorm]
    convs: tuple[Conv, Conv]
    level: eqx.nn.Linear
    shortcut: Conv | None

    def __init__(self, inputs, outputs, compute, *, key):
        a, b, c, d = jax.random.split(key, 4)
        self.norms = GroupNorm(inputs), GroupNorm(outputs)
        self.convs = (
            Conv(inputs, outputs, compute=compute, key=a),
            # Near zero: a new block is its shortcut.
            Conv(outputs, outputs, gain=0.1, compute=compute, key=b),
        )
        self.level = eqx.nn.Linear(_LEVEL, outputs, dtype=DTYPE, key=c)
        same = inputs == outputs
        self.shortcut = (
            None if same else Conv(inputs, outputs, 1, compute=compute, key=d)
        )

    def __call__(self, x: Image, level: Float[Array, " e"]) -> Image:
        h = self.convs[0](jax.nn.silu(self.norms[0](x)))
        h = h + self.level(level)[None, None]
        h = self.convs[1](jax.nn.silu(self.norms[1](h)))
        return h + (x if self.shortcut is None else self.shortcut(x))


class _Attention(eqx.Module):
    """Attention among the pixels of a small image, with four heads."""

    norm: GroupNorm
    project: Conv
    out: Conv

    def __init__(self, channels, *, key):
        a, b = jax.random.split(key)
        self.norm = GroupNorm(channels)
        self.project = Conv(channels, 3 * channels, 1, key=a)
        self.out = Conv(channels, channels, 1, gain=0.1, key=b)

    def __call__(self, x: Image) -> Image:
        h, w, c = x.shape
        parts = self.project(self.norm(x)).reshape(h * w, 3, 4, c // 4)
        mixed = jax.nn.dot_product_attention(parts[:, 0], parts[:, 1], parts[:, 2])
        return x + self.out(mixed.reshape(h, w, c))


class UNet(AbstractNetwork):
    """`s(x, sigma) = a(x, sigma) / sigma`, `a` a U-Net on images given as vectors.

    Squares of two by two pixels are one pixel of four channels to it: half the side
    and twice the width cost the same arithmetic, on half as many numbers. Images of
    `depth` sizes: side / 2, side / 4, ..., with `width` channels at first and twice as
    many from then on.

    With `v = 1/4 + sigma^2`, about the mean square of a noisy pixel, and `F` the
    layers, `a = -sigma x / v + F(x / sqrt(v)) / (2 sqrt(v))` (Karras et al., 2022):
    what is known of noise without looking need not be learnt, and where noise is high
    the layers' errors count little.
    """

    stem: Conv
    down: tuple[_Block, ...]
    middle: tuple[_Block, _Block]
    attention: _Attention
    up: tuple[_Block, ...]
    head: tuple[GroupNorm, Conv]
    level: tuple[eqx.nn.Linear, eqx.nn.Linear]
    in_size: int = eqx.field(static=True)
    out_size: int = eqx.field(static=True)
    side: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    compute: Compute = eqx.field(static=True)
    depth: int = eqx.field(static=True)

    def __init__(
        self,
        side: int = 32,
        width: int = 96,
        compute: Compute = "float32",
        depth: int = 3,
        *,
        key: PRNGKeyArray,
    ):
        """A new network; `width` must be a multiple of 8, `side` of `2^depth`."""
        keys = iter(jax.random.split(key, 4 * depth + 8))

        def block(inputs, outputs):
            return _Block(inputs, outputs, compute, key=next(keys))

        # Channels at each size, and those of the size before.
        here = [width, *[2 * width] * (depth - 1)]
        above = [width, *here[:-1]]
        sizes = list(zip(above, here, strict=True))
        self.stem = Conv(4, width, compute=compute, key=next(keys))
        self.down = tuple(made for a, c in sizes for made in (block(a, c), block(c, c)))
        last = here[-1]
        self.middle = block(last, last), block(last, last)
        self.attention = _Attention(last, key=next(keys))
        self.up = tuple(
            made for a, c in reversed(sizes) for made in (block(2 * c, c), block(c, a))
        )
        self.head = GroupNorm(width), Conv(width, 4, gain=0.1, key=next(keys))
        self.level = (
            eqx.nn.Linear(_LEVEL, _LEVEL, dtype=DTYPE, key=next(keys)),
            eqx.nn.Linear(_LEVEL, _LEVEL, dtype=DTYPE, key=next(keys)),
        )
        self.in_size = self.out_size = side * side
        self.side, self.width, self.compute, self.depth = side, width, compute, depth

    def __call__(
        self, x: Float[Array, " i"], sigma: Float[Array, ""] | None = None
    ) -> Float[Array, " i"]:
        """The score at one image and noise level."""
        assert sigma is not None
        level = self._describe(sigma)
        scale = jax.lax.rsqrt(0.25 + sigma**2)
        known = -sigma * scale**2 * x
        h = self.stem(fold((scale * x).reshape(self.side, self.side, 1)))
        kept = []
        end = 2 * self.depth
        for i in range(0, end, 2):
            h = self.down[i + 1](self.down[i](h, level), level)
            kept.append(h)
            h = halve(h) if i + 2 < end else h
        h = self.attention(self.middle[0](h, level))
        h = self.middle[1](h, level)
        for i in range(0, end, 2):
            h = jnp.concatenate([h, kept.pop()], axis=-1)
            h = self.up[i + 1](self.up[i](h, level), level)
            h = double(h) if i + 2 < end else h
        norm, last = self.head
        learnt = unfold(last(jax.nn.silu(norm(h)))).ravel()
        return (known + 0.5 * scale * learnt) / sigma

    def _describe(self, sigma: Float[Array, ""]) -> Float[Array, " e"]:
        # Waves of log sigma, of 1/16 to 16 turns.
        turns = jnp.exp2(jnp.linspace(-4.0, 4.0, _LEVEL // 2, dtype=DTYPE))
        angles = 2 * jnp.pi * turns * jnp.log(sigma)
        waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)])
        return jax.nn.silu(self.level[1](jax.nn.silu(self.level[0](waves))))
