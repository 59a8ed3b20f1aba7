"""Stein variational gradient descent, as in the code of Liu and Wang (2016)."""

from typing import Any, NamedTuple

import blackjax.vi.svgd as stein
import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pushforward import _validate
from pushforward.mcmc.result import MCMCResult
from pushforward.targets.base import AbstractTarget


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
) -> MCMCResult:
    """`steps` steps of SVGD with n particles.

    The particle x moves along the mean over particles y of
    `k(y, x) s(y) + grad_y k(y, x)`, with the score s and the kernel
    `k(y, x) = exp(-|y - x|^2 / (2 h^2))`, where `h^2 = median(|y - x|^2) /
    (2 log(n + 1))` over all n^2 pairs is taken anew at each step. The move is scaled
    by `adagrad_with_memory`. Memory is quadratic in the number of particles. The first
    steps of a longer run are those of a shorter one, and the number of steps is not
    compiled in.

    Args:
        key: Draws the minibatches, one at each step for all particles, where the
            target is seen through them; the rest is deterministic.
        target: A target of any kind.
        positions: Where the n particles start.
        steps: How many steps; each costs one score per particle.
        step_size: The size of a step of `adagrad_with_memory`.
    """
    _validate.whole_number("steps", steps, 0)
    size = jnp.asarray(step_size, positions.dtype)
    count = jnp.asarray(steps, jnp.int32)
    ends = _descend(key, target, positions, count, size)
    return MCMCResult(ends, positions.shape[0] * steps)


@eqx.filter_jit
def _descend(key, target, positions, steps, step_size):
    n = positions.shape[0]
    rule = adagrad_with_memory(step_size)
    kernel = stein.build_kernel(rule)

    def bandwidth(x):
        gaps = x[:, None, :] - x[None, :, :]
        # Pairs of a particle with itself count, as in their code.
        # BlackJAX's kernel is exp(-|y - x|^2 / length_scale).
        return jnp.median(jnp.sum(gaps**2, axis=-1)) / jnp.log(n + 1.0)

    def step(i, state):
        # BlackJAX's own rule has another constant and writes into a shared dictionary.
        scale = {"length_scale": bandwidth(state.particles)}
        state = state._replace(kernel_parameters=scale)
        batch = jax.random.fold_in(key, i)
        return kernel(state, target.score, stein.rbf_kernel, key=batch)

    one = {"length_scale": jnp.ones((), positions.dtype)}
    state = stein.init(positions, one, rule)
    return jax.lax.fori_loop(0, steps, step, state).particles
