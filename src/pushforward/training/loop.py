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

from pushforward import _programs
from pushforward.methods.base import AbstractTask
from pushforward.targets.stacked import per_seed_part, target_of_seed

# Keys for `init`, `prepare` and `review` that no step uses.
_INIT, PREPARE, _REVIEW = 2**32 - 1, 2**32 - 2, 2**32 - 3
NOT_ENDED = -1
# This many steps in a row that are not finite end the training of a seed.
PATIENCE = 100
# After so many of them, and again after as many more, it goes back (`recover`).
RECOVERY = 25


class RunState(eqx.Module):
    """The state of training and what the engine counts beside it."""

    state: Any
    step: Int[Array, ""]
    # Sums of `info` since the last report (`advance` clears them), over the `count`
    # steps that were not skipped.
    sums: dict[str, Float[Array, "..."]]
    count: Int[Array, "..."]
    # Steps skipped because they were not finite: in all, and in a row.
    nonfinite_total: Int[Array, "..."]
    nonfinite_in_a_row: Int[Array, "..."]
    # After how many steps a seed was frozen, because its steps were not finite or the
    # callback stopped it; NOT_ENDED while it is trained.
    ended: Int[Array, "..."]
    # After how many steps the learner was done with a seed before the last step;
    # NOT_ENDED otherwise.
    complete: Int[Array, "..."]


def step_key(key: Key[Array, ""]) -> Key[Array, ""]:
    """The key of the steps, which fold in their number."""
    return jax.random.fold_in(key, 0)


@eqx.filter_jit
def _step(learner: AbstractTask, key, target, state):
    """`learner.step`, traced once for the two programs that hold it."""
    return learner.step(key, target, state)


def first_state(
    learner: AbstractTask,
    target: Any,
    key: Key[Array, "..."],
    steps: Int[Array, ""],
    previous: Any,
) -> RunState:
    """Training before its first step.

    `key` is one key, or one per seed; then `target` may be one per seed too.
    """

    def start(key, previous, own):
        chosen = target_of_seed(target, own)
        init_key = jax.random.fold_in(key, _INIT)
        state = learner.init(init_key, chosen, steps, previous)
        _, info = eqx.filter_eval_shape(_step, learner, key, chosen, state)
        return state, {name: jnp.zeros((), jnp.float32) for name in info}

    if key.shape:
        state, sums = jax.vmap(start)(key, previous, per_seed_part(target))
    else:
        state, sums = start(key, previous, None)
    zero = jnp.zeros((), jnp.int32)
    zeros = jnp.zeros(key.shape, jnp.int32)
    never = zeros + NOT_ENDED
    return RunState(state, zero, sums, zeros, zeros, zeros, never, never)


begin = _programs.compiled(first_state)


@_programs.compiled
def advance(
    learner: AbstractTask,
    target: Any,
    key: Key[Array, "..."],
    run: RunState,
    stop: Int[Array | np.ndarray, ""],
    patience: Int[Array | np.ndarray, ""],
    clear: Bool[Array | np.ndarray, ""],
) -> RunState:
    """Steps until `stop`; the steps of a seed in one call all count, or none of them.

    The loop ends early after a step whose `info` is not finite. A seed whose state is
    not finite at the end is put back to where it was. If that undid more than one step,
    the caller bisects, so that only the offending step is skipped. Looking at the state
    once a call, and not at every step, saves two passes over it, and misses nothing:
    numbers that are not finite propagate (see `AbstractTask.step`).

    Args:
        learner: whose steps these are.
        target: its target, or its data.
        key: the key of the steps, or one for each seed.
        run: where training stands.
        stop: the number of the step to stop before.
        patience: a seed with so many steps in a row that are not finite is frozen.
        clear: whether to clear the sums first.
    """
    frozen = (run.ended != NOT_ENDED) | (run.complete != NOT_ENDED)

    def one(key, own, state, sums, i):
        step_key = jax.random.fold_in(key, i)
        state, info = _step(learner, step_key, target_of_seed(target, own), state)
        sums = {k: total + info[k].astype(total.dtype) for k, total in sums.items()}
        return state, sums, all_finite(info)

    def settle(before, after, frozen, count, total, in_a_row):
        fine = all_finite(after[0])
        keep = fine & ~frozen
        state, sums = jax.tree.map(lambda a, b: jnp.where(keep, b, a), before, after)
        count = count + jnp.where(keep, made, 0)
        bad = jnp.where(fine | frozen, 0, made)
        in_a_row = jnp.where(keep, 0, in_a_row + bad)
        return state, sums, count, total + bad, in_a_row

    if key.shape:
        one = jax.vmap(one, in_axes=(0, 0, 0, 0, None))
        settle = jax.vmap(settle)

    # Cleared here and not on the host, where every operation is a call to the device.
    sums, count = jax.tree.map(
        lambda a: jnp.where(clear, jnp.zeros_like(a), a),
        (run.sums, run.count),
    )

    def body(carry):
        i, state, sums, _ = carry
        state, sums, fine = one(key, per_seed_part(target), state, sums, i)
        return i + 1, state, sums, jnp.all(fine | frozen)

    before = run.state, sums
    end, *after, _ = jax.lax.while_loop(
        lambda carry: (carry[0] < stop) & carry[3],
        body,
        (run.step, *before, jnp.asarray(True)),
    )
    made = end - run.step
    state, sums, count, total, in_a_row = settle(
        before, tuple(after), frozen, count, run.nonfinite_total, run.nonfinite_in_a_row
    )
    ended = jnp.where(~frozen & (in_a_row >= patience), end, run.ended)
    return RunState(state, end, sums, count, total, in_a_row, ended, run.complete)


@_programs.compiled
def recover(learner: AbstractTask, run: RunState) -> RunState:
    """The run with each seed that is stuck put where its learner says."""
    in_a_row = run.nonfinite_in_a_row
    stuck = (run.ended == NOT_ENDED) & (in_a_row > 0) & (in_a_row % RECOVERY == 0)

    def one(state, stuck):
        new = learner.recover(state)
        return jax.tree.map(lambda a, b: jnp.where(stuck, b, a), state, new)

    one = jax.vmap(one) if stuck.shape else one
    return eqx.tree_at(lambda r: r.state, run, one(run.state, stuck))


@_programs.compiled
def review(
    learner: AbstractTask,
    target: Any,
    key: Key[Array, "..."],
    run: RunState,
) -> tuple[RunState, dict[str, Float[Array, "..."]]]:
    """The learner's review of every seed that is still trained; arguments as above."""

    def one(key, own, state, frozen):
        at = jax.random.fold_in(jax.random.fold_in(key, _REVIEW), run.step)
        new, info = learner.review(at, target_of_seed(target, own), state)
        fine = all_finite(new)
        new = jax.tree.map(lambda a, b: jnp.where(frozen | ~fine, a, b), state, new)
        return new, info, learner.is_complete(new) & ~frozen

    frozen = (run.ended != NOT_ENDED) | (run.complete != NOT_ENDED)
    one = jax.vmap(one) if key.shape else one
    state, info, done = one(key, per_seed_part(target), run.state, frozen)
    complete = jnp.where(done, run.step, run.complete)
    return eqx.tree_at(lambda r: (r.state, r.complete), run, (state, complete)), info


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


def means(run: RunState) -> dict[str, Any]:
    """The means of `info` since the last report, on the host.

    NaN where every step was skipped.
    """
    sums, count = jax.device_get((run.sums, run.count))
    return {
        name: np.where(count, total / np.maximum(count, 1).astype(total.dtype), np.nan)
        for name, total in sums.items()
    }
