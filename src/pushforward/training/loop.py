"""The compiled loop.

A chunk of steps is one call of a compiled `while` whose bounds are arguments: chunks of
any length, and runs of any length, are the same program. No callback stands inside.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from pushforward.methods.base import AbstractTask
from pushforward.targets.several import Several

# A key for `init` that no step uses.
_INIT = 2**32 - 1


class Progress(eqx.Module):
    """The state of a stage and what the engine counts beside it."""

    state: Any
    step: Int[Array, ""]
    # Sums of `info` since the last report (`advance` clears them), over the `count`
    # steps that were not skipped.
    sums: dict[str, Float[Array, "..."]]
    count: Int[Array, "..."]
    # Steps skipped because they were not finite: in all, and in a row.
    skipped: Int[Array, "..."]
    streak: Int[Array, "..."]


def stage_key(key: Key[Array, "..."], stage: int) -> Key[Array, "..."]:
    """The base key of a stage; steps fold in their number."""
    return jax.random.fold_in(key, stage)


def _lane(target: Any, own: Any) -> Any:
    return target.one(own) if isinstance(target, Several) else target


def _own(target: Any) -> Any:
    return target.own if isinstance(target, Several) else None


@eqx.filter_jit
def begin(
    method: AbstractTask,
    target: Any,
    key: Key[Array, "..."],
    steps: Int[Array, ""],
    previous: Any,
) -> Progress:
    """A stage before its first step.

    `key` is one key, or one per seed; then `target` may be one per seed too.
    """

    def start(key, previous, own):
        chosen = _lane(target, own)
        init_key = jax.random.fold_in(key, _INIT)
        state = method.init(init_key, chosen, steps, previous)
        _, info = eqx.filter_eval_shape(method.step, key, chosen, state)
        return state, {name: jnp.zeros((), jnp.float32) for name in info}

    if key.shape:
        state, sums = jax.vmap(start)(key, previous, _own(target))
    else:
        state, sums = start(key, previous, None)
    zero = jnp.zeros((), jnp.int32)
    zeros = jnp.zeros(key.shape, jnp.int32)
    return Progress(state, zero, sums, zeros, zeros, zeros)


def inherit(progress: Progress, before: Progress, patience: int) -> Progress:
    """The start of a stage: seeds that were frozen in the one before stay so."""
    streak = jnp.where(before.streak >= patience, before.streak, progress.streak)
    return eqx.tree_at(
        lambda p: (p.skipped, p.streak), progress, (before.skipped, streak)
    )


@eqx.filter_jit
def advance(
    method: AbstractTask,
    target: Any,
    key: Key[Array, "..."],
    progress: Progress,
    stop: Int[Array | np.ndarray, ""],
    patience: Int[Array | np.ndarray, ""],
    clear: Bool[Array | np.ndarray, ""],
) -> Progress:
    """Steps until `stop`, for each seed all or none of them; `clear` clears the sums.

    It ends early after a step whose `info` is not finite. A seed whose state is not
    finite at the end is put back, and counts its steps as skipped. Where that is more
    than one step, the caller does not take this for an answer, and asks for fewer: so
    it is the step to blame alone that is skipped. To look at the state once a call, and
    not at every step, spares every step two passes over it, and overlooks nothing: what
    is not finite in a state stays so (see `AbstractTask.step`). A seed with `patience`
    such steps in a row is frozen.
    """
    frozen = progress.streak >= patience

    def one(key, own, state, sums, i):
        step_key = jax.random.fold_in(key, i)
        state, info = method.step(step_key, _lane(target, own), state)
        sums = {k: total + info[k].astype(total.dtype) for k, total in sums.items()}
        return state, sums, all_finite(info)

    def settle(before, after, frozen, count, skipped, streak):
        fine = all_finite(after[0])
        keep = fine & ~frozen
        state, sums = jax.tree.map(lambda a, b: jnp.where(keep, b, a), before, after)
        count = count + jnp.where(keep, made, 0)
        bad = jnp.where(fine | frozen, 0, made)
        streak = jnp.where(keep, 0, streak + bad)
        return state, sums, count, skipped + bad, streak

    if key.shape:
        one = jax.vmap(one, in_axes=(0, 0, 0, 0, None))
        settle = jax.vmap(settle)

    # Cleared here and not on the host, where every operation is a call to the device.
    sums, count = jax.tree.map(
        lambda a: jnp.where(clear, jnp.zeros_like(a), a),
        (progress.sums, progress.count),
    )

    def body(carry):
        i, state, sums, _ = carry
        state, sums, fine = one(key, _own(target), state, sums, i)
        return i + 1, state, sums, jnp.all(fine | frozen)

    before = progress.state, sums
    end, *after, _ = jax.lax.while_loop(
        lambda carry: (carry[0] < stop) & carry[3],
        body,
        (progress.step, *before, jnp.asarray(True)),
    )
    made = end - progress.step
    state, sums, count, skipped, streak = settle(
        before, tuple(after), frozen, count, progress.skipped, progress.streak
    )
    return Progress(state, end, sums, count, skipped, streak)


def all_finite(tree: Any) -> Bool[Array, ""]:
    """Whether every number in the tree is finite.

    One reduction over all leaves at once: one for each takes seconds to compile.
    """
    leaves = [jnp.ravel(a) for a in jax.tree.leaves(tree) if _inexact(a)]
    if not leaves:
        return jnp.asarray(True)
    kinds = {a.dtype for a in leaves}
    joined = [jnp.concatenate([a for a in leaves if a.dtype == kind]) for kind in kinds]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(a)) for a in joined]))


def _inexact(leaf: Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact)


def means(progress: Progress) -> dict[str, Any]:
    """The means of `info` since the last report, on the host.

    NaN where every step was skipped.
    """
    sums, count = jax.device_get((progress.sums, progress.count))
    return {
        name: np.where(count, total / np.maximum(count, 1).astype(total.dtype), np.nan)
        for name, total in sums.items()
    }
