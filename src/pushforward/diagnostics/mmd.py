"""Maximum mean discrepancy between two samples."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward.diagnostics.ksd import quadratic_forms
from pushforward.diagnostics.samples import require_two_samples
from pushforward.objectives.stein_kernel import (
    median_squared_distance,
    squared_distances,
)

# Draws taken from each sample, evenly spaced, for the median distance: the median of
# half a million distances is known far better than a bandwidth needs to be.
_BANDWIDTH_DRAWS = 500


class MMD(eqx.Module):
    """A maximum mean discrepancy.

    Attributes:
        value: The unbiased estimate of the squared discrepancy. It has mean zero where
            the two samples have one law, so it is negative about half of the time.
        p_value: How often samples of one law would differ at least as much; None
            where no key was given.
        bandwidth: The length scale of the kernel that was used.
    """

    value: Float[Array, ""]
    p_value: Float[Array, ""] | None
    bandwidth: Float[Array, ""]


def mmd(
    x: Float[Array, "n d"],
    y: Float[Array, "m d"],
    *,
    key: PRNGKeyArray | None = None,
    permutations: int = 1000,
    bandwidth: float | Float[Array, ""] | None = None,
    block: int = 512,
) -> MMD:
    """Unbiased squared maximum mean discrepancy of two samples.

    With the inverse multiquadric `k(x, y) = (1 + |x - y|^2 / h^2)^(-1/2)`, a mixture
    of Gaussian kernels of every width, the estimate is

        sum_{i != j} k(x_i, x_j) / (n (n - 1)) + sum_{i != j} k(y_i, y_j) / (m (m - 1))
        - 2 sum_ij k(x_i, y_j) / (n m).

    With a `key` it gets a p-value: the pooled draws are permuted `permutations` times,
    and `p = (1 + #{values >= value}) / (1 + permutations)`.
    Memory is linear in the number of draws.

    Args:
        x: Draws.
        y: Other draws, or a reference.
        key: For the permutations. Without it there is no p-value.
        permutations: How often the pooled draws are permuted.
        bandwidth: The length scale `h`; the default is the median distance between
            the draws of both samples together (of 500 of each, evenly spaced).
        block: The side of a tile of the kernel matrix: a matter of speed and memory.

    Returns:
        The estimate, the p-value and the bandwidth.

    Raises:
        ValueError: The arrays do not fit together, or a setting is out of range.
    """
    require_two_samples("mmd", x, y, least=2)
    _validate(permutations, bandwidth, block)
    x = jnp.asarray(x)
    y = jnp.asarray(y, x.dtype)
    if bandwidth is None:
        bandwidth = _median_distance(jnp.concatenate([_thin(x), _thin(y)]))
    scale = jnp.asarray(bandwidth, x.dtype)
    pooled = jnp.concatenate([x, y])
    value, p_value = _discrepancy(
        jnp.pad(pooled, ((0, -len(pooled) % block), (0, 0))),
        jnp.asarray(len(x), x.dtype),
        jnp.asarray(len(y), x.dtype),
        scale,
        key,
        permutations=permutations,
        block=block,
    )
    return MMD(value=value, p_value=p_value, bandwidth=scale)


@functools.partial(jax.jit, static_argnames=("permutations", "block"))
def _discrepancy(pooled, n, m, scale, key, *, permutations, block):
    """The estimate and its p-value from both samples, stacked and padded."""
    index = jnp.arange(len(pooled), dtype=n.dtype)
    first, present = index < n, index < n + m
    # Centred, the squared distances of many coordinates cancel least.
    centre = jnp.sum(pooled, axis=0) / (n + m)
    pooled = jnp.where(present[:, None], (pooled - centre[None]) / scale, 0)

    # Column 0 is the true split; a random one takes the n draws of smallest label.
    splits = first[:, None]
    if key is not None:
        labels = jax.random.bits(key, (permutations, len(pooled)))
        labels = jnp.where(present[None], labels >> 1, ~jnp.zeros_like(labels))
        last = jnp.sort(labels, axis=1)[:, n.astype(jnp.int32) - 1]
        splits = jnp.concatenate([splits, (labels <= last[:, None]).T], axis=1)

    def slices(array, i):
        return lax.dynamic_slice_in_dim(array, i * block, block)

    def tile(i, j):
        # The estimate does not see a constant added to the kernel. Without the value
        # at the median distance the sums stay small, and so does their rounding.
        squared = squared_distances(slices(pooled, i), slices(pooled, j))
        return lax.rsqrt(1 + squared) - lax.rsqrt(jnp.full((), 2.0, pooled.dtype))

    def weights(i):
        inside, here = slices(splits, i), slices(present, i)[:, None]
        columns = [inside, ~inside & here, here]
        return jnp.concatenate(columns, axis=1).astype(pooled.dtype)

    forms = quadratic_forms(tile, weights, len(pooled) // block)
    within_x, within_y = jnp.split(forms[:-1], 2)
    between = (forms[-1] - within_x - within_y) / 2
    values = within_x / n / (n - 1) + within_y / m / (m - 1) - 2 * between / n / m
    if key is None:
        return values[0], None
    exceeding = jnp.sum((values[1:] >= values[0]).astype(values.dtype))
    p_value = (1 + exceeding) / (1 + permutations)
    return values[0], jnp.where(jnp.isnan(values[0]), jnp.nan, p_value)


def _thin(draws):
    count = min(len(draws), _BANDWIDTH_DRAWS)
    return draws[np.linspace(0, len(draws) - 1, count).astype(int)]


@jax.jit
def _median_distance(draws):
    draws = draws - jnp.mean(draws, axis=0)[None]
    distance = jnp.sqrt(median_squared_distance(draws))
    # Where more than half of the draws coincide every scale is as good as another.
    return jnp.where(distance == 0, 1, distance)


def _validate(permutations, bandwidth, block):
    if isinstance(bandwidth, float | int) and not bandwidth > 0:
        raise ValueError(f"mmd: bandwidth={bandwidth} must be positive.")
    if permutations < 1 or block < 1:
        raise ValueError(
            f"mmd: permutations={permutations} and block={block} must be at least 1."
        )
