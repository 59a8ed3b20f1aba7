"""Kernel Stein discrepancy: how far draws are from a density known by its score."""

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward.objectives.stein_kernel import stein_kernel_matrix

_dot = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)


class KSD(eqx.Module):
    """A kernel Stein discrepancy.

    Attributes:
        v: The V-statistic `sqrt(sum_ij k0(x_i, x_j)) / n`, the number of the
            literature. It is positive for exact draws too.
        u: The U-statistic `sum_{i != j} k0(x_i, x_j) / (n (n - 1))`, which has mean
            zero for exact draws.
        p_value: How often independent exact draws would have a U-statistic at least
            as large; None where no key was given.
        n: The number of draws.
    """

    v: Float[Array, ""]
    u: Float[Array, ""]
    p_value: Float[Array, ""] | None
    n: int = eqx.field(static=True)


def ksd(
    draws: Float[Array, "n d"],
    scores: Float[Array, "n d"],
    *,
    key: PRNGKeyArray | None = None,
    bootstraps: int = 1000,
    c: float = 1.0,
    beta: float = -0.5,
    block: int = 512,
) -> KSD:
    """Kernel Stein discrepancy of draws, given the target's score at each of them.

    Memory is linear in the number of draws: the kernel matrix exists in tiles of
    `block x block` only, and each tile above the diagonal stands for its mirror image
    too. The compiled code depends on `n` rounded up to whole blocks.

    With a `key` the U-statistic gets a p-value by the wild bootstrap. With independent
    signs `w_i`, `U_b = sum_{i != j} w_i w_j k0(x_i, x_j) / (n (n - 1))` given the draws
    converges in law to `U` of exact draws (Dehling and Mikosch 1994; for the KSD,
    Chwialkowski, Strathmann and Gretton 2016), and
    `p = (1 + #{U_b >= U}) / (1 + bootstraps)`. Signs rather than the centred
    multinomial weights of Liu, Lee and Jordan 2016, because the products `w_i w_j` are
    then centred and uncorrelated: at every `n` the variance of `U_b` is an unbiased
    estimate of that of `U`.

    The draws must be independent for the p-value to hold; the KSD itself needs no
    such assumption.

    Args:
        draws: The draws to judge.
        scores: The gradient of the target's log-density at each draw.
        key: For the bootstrap. Without it there is no p-value.
        bootstraps: The number of bootstrap replicates.
        c: The length scale of the base kernel.
        beta: The exponent of the base kernel, between -1 and 0.
        block: The side of a tile: a matter of speed and memory, not of the result.

    Returns:
        Both statistics and the p-value.

    Raises:
        ValueError: The arrays do not fit together, or a setting is out of range.
    """
    _validate(draws, scores, bootstraps, c, beta, block)
    draws = jnp.asarray(draws)
    n = draws.shape[0]
    padding = ((0, -n % block), (0, 0))
    off_diagonal, diagonal, p_value = _statistics(
        jnp.pad(draws, padding),
        jnp.pad(jnp.asarray(scores, draws.dtype), padding),
        jnp.asarray(n, draws.dtype),
        key,
        bootstraps=bootstraps,
        c=c,
        beta=beta,
        block=block,
    )
    # The sum over a positive-definite kernel can only round below zero.
    v = jnp.sqrt(jnp.maximum(off_diagonal + diagonal, 0)) / n
    return KSD(v=v, u=off_diagonal / n / (n - 1), p_value=p_value, n=n)


@functools.partial(jax.jit, static_argnames=("bootstraps", "c", "beta", "block"))
def _statistics(draws, scores, n, key, *, bootstraps, c, beta, block):
    """Off-diagonal and diagonal sums of `k0`, and the p-value, from padded arrays."""
    dim = draws.shape[1]
    present = (jnp.arange(len(draws), dtype=n.dtype) < n).astype(n.dtype)
    # The kernel sees differences only; around zero the expanded square cancels least.
    draws = (draws - jnp.sum(draws, axis=0)[None] / n) * present[:, None]

    # One weight vector holds the statistic itself, the others its replicates, so that
    # all of them are quadratic forms of the same tiles. Signs are kept as bytes.
    signs = (
        None if key is None else jax.random.bits(key, (len(draws), bootstraps), "u1")
    )

    def weights(i):
        own = _slice(present, i, block)[:, None]
        if signs is None:
            return own
        flips = (_slice(signs, i, block) & 1).astype(own.dtype)
        return jnp.concatenate([own, (2 * flips - 1) * own], axis=1)

    def tile(i, j):
        points = (_slice(a, k, block) for a in (draws, scores) for k in (i, j))
        return stein_kernel_matrix(*points, c=c, beta=beta)

    forms = quadratic_forms(tile, weights, len(draws) // block)
    # k0(x, x), in closed form.
    diagonal = c ** (2 * beta) * jnp.sum(jnp.square(scores)) - (
        2 * beta * dim * c ** (2 * beta - 2) * n
    )
    if key is None:
        return forms[0], diagonal, None
    exceeding = jnp.sum((forms[1:] >= forms[0]).astype(draws.dtype))
    p_value = (1 + exceeding) / (1 + bootstraps)
    return forms[0], diagonal, jnp.where(jnp.isnan(forms[0]), jnp.nan, p_value)


def quadratic_forms(
    tile: Callable[[Array, Array], Float[Array, "block block"]],
    weights: Callable[[Array], Float[Array, "block m"]],
    blocks: int,
) -> Float[Array, " m"]:
    """Every `sum_{i != j} w_i w_j K_ij` of a symmetric matrix that is never stored.

    Args:
        tile: Tile `(i, j)` of the matrix.
        weights: Block `i` of the weights, one column for each quadratic form.
        blocks: The number of blocks.

    Returns:
        One number for each column of the weights.
    """

    def form(left, matrix, right):
        return jnp.sum(left * _dot(matrix, right), axis=0)

    def on_diagonal(total, i):
        matrix = tile(i, i)
        matrix = jnp.where(np.eye(len(matrix), dtype=bool), 0, matrix)
        return total + form(weights(i), matrix, weights(i)), None

    # Tiles off the diagonal have a loop of their own: a mask would halve its speed.
    def above_diagonal(total, ij):
        i, j = ij
        return total + 2 * form(weights(i), tile(i, j), weights(j)), None

    total = jnp.zeros_like(weights(jnp.asarray(0))[0])
    total, _ = lax.scan(on_diagonal, total, jnp.arange(blocks))
    pairs = tuple(jnp.asarray(side) for side in np.triu_indices(blocks, 1))
    total, _ = lax.scan(above_diagonal, total, pairs)
    return total


def _slice(array, i, block):
    return lax.dynamic_slice_in_dim(array, i * block, block)


def _validate(draws, scores, bootstraps, c, beta, block):
    if np.ndim(draws) != 2:
        raise ValueError(
            f"ksd: draws must be an (n, d) array, but have shape {np.shape(draws)}; "
            "reshape them so that each row is one draw."
        )
    if np.shape(scores) != np.shape(draws):
        raise ValueError(
            f"ksd: scores have shape {np.shape(scores)} but draws have "
            f"{np.shape(draws)}; give the score at every draw, in the same order."
        )
    if len(draws) < 2 or np.shape(draws)[1] < 1:
        raise ValueError(
            f"ksd: draws have shape {np.shape(draws)}, but the discrepancy compares "
            "pairs; give at least two draws of at least one coordinate."
        )
    if not jnp.issubdtype(draws.dtype, jnp.floating):
        raise ValueError(
            f"ksd: draws have dtype {draws.dtype}; convert them to floating point."
        )
    if not (c > 0 and -1 < beta < 0):
        raise ValueError(
            f"ksd: c={c} and beta={beta} give a kernel that cannot detect convergence; "
            "choose c > 0 and -1 < beta < 0."
        )
    if bootstraps < 1 or block < 1:
        raise ValueError(
            f"ksd: bootstraps={bootstraps} and block={block} must both be at least 1."
        )
