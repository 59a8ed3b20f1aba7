"""Layers for images of shape (height, width, channels).

Each is written for one image; `vmap` outside turns many into one convolution. Numbers
are stored in float32; convolutions may be computed in bfloat16, which is as good on a
GPU and hopeless on a CPU.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

# Weights are stored so.
DTYPE = jnp.float32
# "float32" or "bfloat16".
Compute = str
Image = Float[Array, "_ _ _"]

_LAYOUT = ("NHWC", "HWIO", "NHWC")


class Conv(eqx.Module):
    """A convolution that keeps the size of the image."""

    weight: Float[Array, "k k i o"]
    bias: Float[Array, " o"]
    compute: Compute = eqx.field(static=True)

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: int = 3,
        *,
        gain: float = 1.0,
        compute: Compute = "float32",
        key: PRNGKeyArray,
    ):
        """Weights from N(0, gain^2 / fan-in)."""
        fan_in = inputs * size * size
        shape = (size, size, inputs, outputs)
        draw = jax.random.normal(key, shape, DTYPE)
        self.weight = gain * fan_in**-0.5 * draw
        self.bias = jnp.zeros(outputs, DTYPE)
        self.compute = compute

    def __call__(self, x: Image) -> Image:
        """The layer on one image."""
        dtype = jnp.dtype(self.compute)
        x, weight = x.astype(dtype), self.weight.astype(dtype)
        if on_cpu():
            columns_first = weight.transpose(1, 0, 2, 3)
            y = _patches(x, weight.shape[0]) @ columns_first.reshape(
                -1, weight.shape[3]
            )
        else:
            # The result in the operands' type: a wider one has no transpose in JAX.
            # Sums inside are in float32 all the same.
            y = jax.lax.conv_general_dilated(
                x[None], weight, (1, 1), "SAME", dimension_numbers=_LAYOUT
            )[0]
        return y.astype(DTYPE) + self.bias[None, None]


def on_cpu() -> bool:
    """Whether convolutions are written as products of matrices.

    XLA's convolutions on a CPU, and above all their gradients, are several times slower
    than those.
    """
    return jax.default_backend() == "cpu"


def _patches(x: Image, size: int) -> Image:
    """At every pixel the square of `size` by `size` pixels around it."""
    for axis in (0, 1):
        side, margin = x.shape[axis], size // 2
        edges = [(margin, margin) if i == axis else (0, 0) for i in range(3)]
        wide = jnp.pad(x, edges)
        shifted = [
            jax.lax.slice_in_dim(wide, a, a + side, axis=axis) for a in range(size)
        ]
        x = jnp.concatenate(shifted, axis=-1)
    return x


class UpConv(eqx.Module):
    """A transposed convolution of size 4 that multiplies the side by `stride`.

    Every pixel adds a kernel, times its value, to its place in the larger image. With
    stride 4 it turns one pixel into a 4 by 4 image.
    """

    weight: Float[Array, "4 4 i o"]
    bias: Float[Array, " o"]
    stride: int = eqx.field(static=True)
    compute: Compute = eqx.field(static=True)

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int = 2,
        *,
        compute: Compute = "float32",
        key: PRNGKeyArray,
    ):
        """Weights from N(0, 1 / (inputs that meet in a pixel))."""
        meet = inputs * (4 // stride) ** 2
        draw = jax.random.normal(key, (4, 4, inputs, outputs), DTYPE)
        self.weight = meet**-0.5 * draw
        self.bias = jnp.zeros(outputs, DTYPE)
        self.stride, self.compute = stride, compute

    def __call__(self, x: Image) -> Image:
        """The layer on one image."""
        dtype = jnp.dtype(self.compute)
        x, weight = x.astype(dtype), self.weight.astype(dtype)
        if on_cpu() or self.stride == 4:
            y = _spread(x, weight, self.stride)
        else:
            # Written as the gradient of a convolution is, kernel turned around: XLA
            # knows that form, and would fill the image with zeros for another.
            y = jax.lax.conv_general_dilated(
                x[None],
                weight[::-1, ::-1],
                (1, 1),
                ((2, 2), (2, 2)),
                lhs_dilation=(self.stride, self.stride),
                dimension_numbers=_LAYOUT,
            )[0]
        return y.astype(DTYPE) + self.bias[None, None]


def _spread(x: Image, weight: Float[Array, "4 4 i o"], stride: int) -> Image:
    """A transposed convolution as a product: each pixel adds a kernel to its place."""
    h, w, _ = x.shape
    _, _, inputs, outputs = weight.shape
    flat = weight.transpose(2, 0, 1, 3).reshape(inputs, -1)
    kernels = (x @ flat).reshape(h, w, 4, 4, outputs)
    if stride == 4:
        return kernels.transpose(0, 2, 1, 3, 4).reshape(4 * h, 4 * w, outputs)
    # Row 2a + r of the kernel of pixel i is added to row 2 (i + a) + r.
    parts = kernels.reshape(h, w, 2, 2, 2, 2, outputs)
    rest = ((0, 0),) * 3
    total = sum(
        jnp.pad(parts[:, :, a, :, b], ((a, 1 - a), (b, 1 - b), *rest))
        for a in range(2)
        for b in range(2)
    )
    whole = jnp.asarray(total).transpose(0, 2, 1, 3, 4)
    return whole.reshape(2 * h + 2, 2 * w + 2, outputs)[1:-1, 1:-1]


class BatchNorm(eqx.Module):
    """Batch normalisation: by running statistics, or by those of a batch in training.

    The statistics are fields: a network at rest is a function of one image.
    """

    scale: Float[Array, " c"]
    offset: Float[Array, " c"]
    mean: Float[Array, " c"]
    variance: Float[Array, " c"]

    def __init__(self, channels: int):
        """The identity."""
        self.scale = jnp.ones(channels, DTYPE)
        self.offset = jnp.zeros(channels, DTYPE)
        self.mean = jnp.zeros(channels, DTYPE)
        self.variance = jnp.ones(channels, DTYPE)

    def __call__(self, x: Image) -> Image:
        """One image, by the running statistics."""
        return self._apply(x, self.mean, self.variance)

    def train(
        self, batch: Float[Array, "n h w c"], keep: float | Float[Array, ""] = 0.9
    ) -> tuple[Float[Array, "n h w c"], "BatchNorm"]:
        """A batch, by its own statistics, and the layer that has seen them."""
        mean = jnp.mean(batch, axis=(0, 1, 2))
        variance = jnp.var(batch, axis=(0, 1, 2))
        out = jax.vmap(lambda x: self._apply(x, mean, variance))(batch)
        seen = eqx.tree_at(
            lambda n: (n.mean, n.variance),
            self,
            jax.lax.stop_gradient(
                (
                    keep * self.mean + (1 - keep) * mean,
                    keep * self.variance + (1 - keep) * variance,
                )
            ),
        )
        return out, seen

    def _apply(self, x: Image, mean, variance) -> Image:
        factor = self.scale * jax.lax.rsqrt(variance + 1e-5)
        return (x - mean[None, None]) * factor[None, None] + self.offset[None, None]


class GroupNorm(eqx.Module):
    """Normalisation over groups of channels of one image."""

    scale: Float[Array, " c"]
    offset: Float[Array, " c"]
    groups: int = eqx.field(static=True)

    def __init__(self, channels: int, groups: int = 8):
        """The groups must divide the channels."""
        self.scale = jnp.ones(channels, DTYPE)
        self.offset = jnp.zeros(channels, DTYPE)
        self.groups = groups

    def __call__(self, x: Image) -> Image:
        """The layer on one image."""
        # Means over pixels first, over the channels of a group then: the image is never
        # rearranged.
        mean = self._over_groups(jnp.mean(x, axis=(0, 1)))
        spread = jnp.mean((x - mean[None, None]) ** 2, axis=(0, 1))
        factor = self.scale * jax.lax.rsqrt(self._over_groups(spread) + 1e-5)
        return (x - mean[None, None]) * factor[None, None] + self.offset[None, None]

    def _over_groups(self, each: Float[Array, " c"]) -> Float[Array, " c"]:
        """For each channel the mean over its group."""
        means = jnp.mean(each.reshape(self.groups, -1), axis=1)
        return jnp.repeat(means, each.shape[0] // self.groups)


def halve(x: Image) -> Image:
    """The means over squares of two by two pixels."""
    h, w, c = x.shape
    return jnp.mean(x.reshape(h // 2, 2, w // 2, 2, c), axis=(1, 3))


def double(x: Image) -> Image:
    """Every pixel four times."""
    return jnp.repeat(jnp.repeat(x, 2, axis=0), 2, axis=1)


def fold(x: Image) -> Image:
    """Squares of two by two pixels become one pixel of four times the channels."""
    h, w, c = x.shape
    parts = x.reshape(h // 2, 2, w // 2, 2, c).transpose(0, 2, 1, 3, 4)
    return parts.reshape(h // 2, w // 2, 4 * c)


def unfold(x: Image) -> Image:
    """What `fold` did, undone."""
    h, w, c = x.shape
    parts = x.reshape(h, w, 2, 2, c // 4).transpose(0, 2, 1, 3, 4)
    return parts.reshape(2 * h, 2 * w, c // 4)
