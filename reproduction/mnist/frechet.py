"""The Fréchet distance between two sets of features."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

Features = Float[np.ndarray, "n f"]


class Moments(NamedTuple):
    """Mean and covariance of features, in 64-bit."""

    mean: Float[np.ndarray, " f"]
    covariance: Float[np.ndarray, "f f"]


def moments(features: Features) -> Moments:
    """Mean and covariance of a set of features."""
    x = np.asarray(features, np.float64)
    if x.ndim != 2 or len(x) < 2:
        raise ValueError(
            f"moments: expected features of shape (n, f) with n >= 2; got {x.shape}."
        )
    return Moments(x.mean(axis=0), np.cov(x, rowvar=False).reshape(x.shape[1], -1))


def frechet(a: Moments, b: Moments) -> float:
    """The squared 2-Wasserstein distance of two Gaussians with these moments.

        |m_a - m_b|^2 + tr(C_a + C_b - 2 (C_a^(1/2) C_b C_a^(1/2))^(1/2)).

    The matrix under the last root is symmetric: its eigenvalues give the trace, without
    the root of a matrix that is not.
    """
    if not all(
        np.isfinite(m).all() for m in (a.mean, a.covariance, b.mean, b.covariance)
    ):
        return float("nan")
    values, vectors = np.linalg.eigh(a.covariance)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    cross = np.linalg.eigvalsh(root @ b.covariance @ root)
    shift = np.sum((a.mean - b.mean) ** 2)
    traces = np.trace(a.covariance) + np.trace(b.covariance)
    return float(shift + traces - 2 * np.sum(np.sqrt(np.maximum(cross, 0.0))))
