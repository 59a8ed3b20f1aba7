"""How images are judged: by a classifier trained here, and by the energy model."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pushforward.diagnostics import Moments, frechet, moments
from pushforward.networks import EnergyResNet, WideResNet

Pixels = Float[np.ndarray, "n d"]
# Images looked at in one pass.
_BLOCK = 256


class EnergyScore(eqx.Module):
    """The score of the energy model at a noise level, `grad f(x) / sigma`."""

    network: EnergyResNet

    def __call__(self, x: Float[Array, " d"], sigma: Float[Array, ""]):
        """The score at one image."""
        return jax.grad(lambda x: self.network(x)[0])(x) / sigma


class Eye:
    """A classifier that has seen the test images."""

    def __init__(self, classifier: WideResNet, test: Pixels, classes: np.ndarray):
        """Looks at the test images once: what others are compared with."""
        self.classifier = classifier
        features, logits = self.look(test)
        self.accuracy = float(np.mean(logits.argmax(axis=1) == classes))
        self.moments: Moments = moments(features)

    def look(self, images: Pixels) -> tuple[np.ndarray, np.ndarray]:
        """Features and logits of images."""
        return by_blocks(lambda x: _look(self.classifier, x), images)

    def judge(self, images: Pixels) -> dict[str, Any]:
        """The Fréchet distance to the test images, and what it may hide.

        Also the share of every digit, and the share of images the classifier is sure
        of (its largest probability above .9).
        """
        features, logits = self.look(images)
        likely = jax.nn.softmax(jnp.asarray(logits), axis=1)
        digits = np.bincount(logits.argmax(axis=1), minlength=10) / len(logits)
        return {
            "fid": frechet(moments(features), self.moments),
            "digits": digits.tolist(),
            "sure": float(jnp.mean(jnp.max(likely, axis=1) > 0.9)),
        }


@eqx.filter_jit
def _look(classifier: WideResNet, images: Float[Array, "n d"]):
    features = jax.vmap(classifier.features)(images)
    return features, jax.vmap(classifier.head)(features)


@eqx.filter_jit
def _energies(network: EnergyResNet, images: Float[Array, "n d"]):
    return jax.vmap(lambda x: network(x)[0])(images)


def energies(network: EnergyResNet, images: Pixels) -> np.ndarray:
    """`f` at every image."""
    return by_blocks(lambda x: (_energies(network, x),), images)[0]


def by_blocks(look: Callable[[Array], tuple], images: Pixels) -> tuple:
    """A function of a block of images on all of them, in blocks of one size."""
    parts = []
    for start in range(0, len(images), _BLOCK):
        block = np.asarray(images[start : start + _BLOCK], np.float32)
        # The last block is filled up: one size, one program.
        rows = np.arange(_BLOCK) % len(block)
        found = look(jax.device_put(block[rows]))
        parts.append([np.asarray(f)[: len(block)] for f in found])
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def nearest(images: Pixels, train: Pixels) -> np.ndarray:
    """For each image the number of the training image nearest to it in pixels."""
    squares = np.sum(train**2, axis=1)
    return np.array([np.argmin(squares - 2 * train @ x) for x in images])
