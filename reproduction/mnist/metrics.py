"""How images are judged: by a classifier trained here, and by the energy model."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from reproduction.common.results import rounded
from reproduction.mnist.frechet import Moments, frechet, moments
from reproduction.mnist.networks import EnergyResNet, WideResNet

Pixels = Float[np.ndarray, "n d"]
# Images looked at in one pass.
_BLOCK = 256
# The classifier is sure of an image where its largest probability is above this.
SURE = 0.9


class EnergyScore(eqx.Module):
    """The score of the energy model at a noise level, `grad f(x) / sigma`."""

    network: EnergyResNet

    def __call__(self, x: Float[Array, " d"], sigma: Float[Array, ""]):
        """The score at one image."""
        return jax.grad(lambda x: self.network(x)[0])(x) / sigma


class Eye:
    """A classifier that has seen the test images."""

    def __init__(
        self,
        classifier: WideResNet,
        test: Pixels,
        classes: Int[np.ndarray, " n"],
        shares: Float[np.ndarray, " 10"],
    ):
        """Looks at the test images once: what others are compared with.

        Args:
            classifier: gives features and logits.
            test: the test images.
            classes: their digits.
            shares: the share of every digit in the data.
        """
        self.classifier, self.shares = classifier, shares
        features, logits = self.look(test)
        self.accuracy = float(np.mean(logits.argmax(axis=1) == classes))
        self.moments: Moments = moments(features)

    def look(self, images: Pixels) -> tuple[np.ndarray, np.ndarray]:
        """Features and logits of images."""
        return by_blocks(lambda x: _look(self.classifier, x), images)

    def fid(self, images: Pixels) -> float:
        """The Fréchet distance of the features of images to those of the test set."""
        return frechet(moments(self.look(images)[0]), self.moments)

    def judge(self, images: Pixels, resamples: int = 0) -> dict[str, Any]:
        """The FID, and what it may hide.

        Also its sd over draws of the images with replacement, the share of every digit,
        the smallest and the largest ratio of such a share to that in the data, and the
        share of images that the classifier is sure of.
        """
        features, logits = self.look(images)
        digits = np.bincount(logits.argmax(axis=1), minlength=10) / len(logits)
        top = logits.max(axis=1, keepdims=True)
        surest = 1 / np.exp(logits - top).sum(axis=1)
        rng = np.random.default_rng(0)
        again = [
            frechet(moments(features[rng.integers(len(images), size=len(images))]), own)
            for own in [self.moments] * resamples
        ]
        return {
            "fid": frechet(moments(features), self.moments),
            "fid_sd": float(np.std(again, ddof=1)) if resamples > 1 else 0.0,
            "digits": digits.tolist(),
            "digit_low": float(np.min(digits / self.shares)),
            "digit_high": float(np.max(digits / self.shares)),
            "sure": float(np.mean(surest > SURE)),
        }


@eqx.filter_jit
def _look(classifier: WideResNet, images: Float[Array, "n d"]):
    features = jax.vmap(classifier.features)(images)
    return features, jax.vmap(classifier.head)(features)


@eqx.filter_jit
def _energies(network: EnergyResNet, images: Float[Array, "n d"]):
    return jax.vmap(lambda x: network(x)[0])(images)


def energies(
    network: EnergyResNet, images: Pixels, sigma: float
) -> Float[np.ndarray, " n"]:
    """`f` at every image with noise of the lowest level added, the same on every call.

    There the model has been trained; what it says of images without noise is nothing.
    """
    noise = np.random.default_rng(0).standard_normal(images.shape, np.float32)
    noisy = images + np.float32(sigma) * noise
    return by_blocks(lambda x: (_energies(network, x),), noisy)[0]


def by_blocks(look: Callable[[Array], tuple], images: Pixels) -> tuple:
    """A function of a block of images on all of them, in blocks of one size."""
    parts, size = [], min(_BLOCK, len(images))
    for start in range(0, len(images), size):
        block = np.asarray(images[start : start + size], np.float32)
        # The last block is filled up: one size, one program.
        rows = np.arange(size) % len(block)
        found = look(jax.device_put(block[rows]))
        parts.append([np.asarray(f)[: len(block)] for f in found])
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


@jax.jit
def _nearest(images, train):
    with jax.default_matmul_precision("highest"):
        squares = jnp.sum(train**2, axis=1)[None] - 2 * images @ train.T
    closest = jnp.argmin(squares, axis=1)
    # The difference itself: that of two large squares would be rounded.
    return closest, jnp.sqrt(jnp.sum((images - train[closest]) ** 2, axis=1))


def nearest(
    images: Pixels, train: Float[Array, "m d"]
) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """For each image the number of the nearest training image, and how far it is.

    The distance is Euclidean, in pixels of [0, 1].
    """
    return by_blocks(lambda x: _nearest(x, train), images)


def histogram(values: Float[np.ndarray, " n"]) -> list[list[float | None]]:
    """The edges of forty bins and the density in each, without the far tails."""
    known = values[np.isfinite(values)].astype(np.float64)
    if not len(known):
        return [[0.0, 1.0], [0.0]]
    low, high = np.quantile(known, [0.005, 0.995])
    edges = np.linspace(low, max(high, low + 1e-6), 41)
    counts, _ = np.histogram(known, edges)
    heights = counts / len(values) / np.diff(edges)
    return [[rounded(v, 5) for v in edges], [rounded(v, 4) for v in heights]]
