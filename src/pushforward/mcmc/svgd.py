"""Stein variational gradient descent, as in the code of Liu and Wang (2016)."""

from typing import Any, NamedTuple

import blackjax.vi.svgd as stein
import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pushforward.errors import UsageError
from pushforward.targets.base import AbstractTarget


class SVGDResult(eqx.Module):
    """Where the particles ended, and the number of scores that took."""

    positions: Float[Array, "n d"]
    evaluations: int = eqx.field(static=True)


class _Memory(NamedTuple):
    count: Int[Array, ""]
    squares: Any


def adagrad_with_memory(
    step_size: float | Float[Array, ""], decay: float = 0.9, floor: float = 1e-6
) -> optax.GradientTransformation:
    """AdaGrad that forgets: the step rule of Liu and Wang's code.

    With the gradient g it keeps `m = g^2` at the first step and
    `m = decay m + (1 - decay) g^2` later, and moves by `-step_size g / (floor +
    sqrt(m))`. RMSProp differs in where m starts.
    """

    def init(params):
        return _Memory(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params))

    def update(updates, state, params=None):
        del params
        first = state.count == 0
        squares = jax.tree.map(
            lambda m, g: jnp.where(first, g**2, decay * m + (1 - decay) * g**2),
            state.squares,
            updates,
        )
        moves = jax.tree.map(
            lambda m, g: -step_size * g / (floor + jnp.sqrt(m)), squares, updates
        )
        return moves, _Memory(state.count + 1, squares)

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]


def svgd(
    key: PRNGKeyArray,
    target: AbstractTarget,
    positions: Float[Array, "n d"],
    steps: int,
    *,
    step_size: float | Float[Array, ""],
) -> SVGDResult:
    """`steps` steps of SVGD with n particles.

    The particle x moves along the mean over particles y of
    `k(y, x) s(y) + grad_y k(y, x)`, with the score s and the kernel
    `k(y, x) = exp(-|y - x|^2 / (2 h^2))`, where `h^2 = median(|y - x|^2) /
    (2 log(n + 1))` over all n^2 pairs is taken anew at each step. The move is scaled
    by `adagrad_with_memory`. Memory is quadratic in the number of particles. The first
    steps of a longer run are those of a shorter one, and the number of steps is not
    compiled in.

    Args:
        key: draws the minibatches, one at each step for all particles, where the
            target is seen through them; the rest is deterministic.
        target: a target of any kind.
        positions: where the n particles start.
        steps: how many steps; each costs one score per particle.
        step_size: the size of a step of `adagrad_with_memory`.
    """
    if steps < 0:
        raise UsageError(f"steps must not be negative, and it is {steps}.")
    size = jnp.asarray(step_size, positions.dtype)
    count = jnp.asarray(steps, jnp.int32)
    ends = _descend(key, target, positions, count, size)
    return SVGDResult(ends, positions.shape[0] * steps)


@eqx.filter_jit
def _descend(key, target, positions, steps, step_size):
    n = positions.shape[0]
    rule = adagrad_with_memory(step_size)
    kernel = stein.build_kernel(rule)

    def bandwidth(x):
        gaps = x[:, None, :] - x[None, :, :]
        # BlackJAX's kernel is exp(-|y - x|^2 / length_scale).
        return _median(jnp.sum(gaps**2, axis=-1).ravel()) / jnp.log(n + 1.0)

    def step(i, state):
        # BlackJAX's own rule has another constant and writes into a shared dictionary.
        scale = {"length_scale": bandwidth(state.particles)}
        state = state._replace(kernel_parameters=scale)
        batch = jax.random.fold_in(key, i)
        return kernel(state, target.score, stein.rbf_kernel, key=batch)

    one = {"length_scale": jnp.ones((), positions.dtype)}
    state = stein.init(positions, one, rule)
    return jax.lax.fori_loop(0, steps, step, state).particles


def _median(values: Float[Array, " m"]) -> Float[Array, ""]:
    """The median of numbers that are not negative, without sorting them.

    Such numbers are in the order of their bits read as integers, so that halving an
    interval of integers finds one exactly, by counting: on a CPU sorting n^2 distances
    would take most of the time of a step.
    """
    width = jnp.uint32 if values.dtype == jnp.float32 else jnp.uint64
    bits = jax.lax.bitcast_convert_type(values, width)
    half = (values.shape[0] + 1) // 2

    def halve(_, interval):
        low, high = interval
        middle = low + (high - low) // 2
        enough = jnp.sum(bits <= middle) >= half
        return jnp.where(enough, low, middle + 1), jnp.where(enough, middle, high)

    first = jnp.zeros((), width), jnp.max(bits)
    rounds = jnp.finfo(values.dtype).bits
    lower, _ = jax.lax.fori_loop(0, rounds, halve, first)
    # Of an even number of values two are in the middle; they may be equal.
    beyond = jnp.min(jnp.where(bits > lower, bits, jnp.max(bits)))
    alone = (values.shape[0] % 2 == 1) | (jnp.sum(bits <= lower) > half)
    upper = jnp.where(alone, lower, beyond)
    pair = jax.lax.bitcast_convert_type(jnp.stack([lower, upper]), values.dtype)
    return jnp.mean(pair)
