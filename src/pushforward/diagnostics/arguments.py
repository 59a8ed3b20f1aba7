"""The draws that a check is given, and the sentence where they do not fit."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from pushforward.diagnostics.reference import generator
from pushforward.diagnostics.results import Outcome, TestResult
from pushforward.errors import UsageError
from pushforward.sampler import Sampler
from pushforward.targets.base import AbstractTarget

# With fewer draws no test has a chance to see anything.
MIN_DRAWS = 100


def as_sampler(sampler: Any) -> Sampler:
    """The sampler, or a `UsageError` that says how to get one."""
    if isinstance(sampler, Sampler):
        return sampler
    raise UsageError(
        f"Expected a Sampler, got {type(sampler).__name__}; give fit.sampler, "
        "pushforward.load of a file, or Sampler.from_network of a network."
    )


def require_same_parameters(
    sampler: Sampler,
    target: AbstractTarget,
    advice: str = "give the target that it was trained for",
) -> None:
    """Refuses a sampler of other parameters than the target has.

    The names of plain coordinates are labels: they may differ.
    """
    structure, wanted = sampler.structure, target.structure
    if (structure.treedef, structure.leaves) == (wanted.treedef, wanted.leaves):
        return
    ours, theirs = (
        ", ".join(f"{leaf.name or 'x'} {leaf.shape}" for leaf in s.leaves)
        for s in (structure, wanted)
    )
    constraints = "" if ours != theirs else ", with other constraints"
    raise UsageError(
        f"The sampler draws other parameters ({ours}) than the target has "
        f"({theirs}{constraints}); {advice}."
    )


def take_draws(
    key: PRNGKeyArray, target: AbstractTarget, given: Any, n: int
) -> tuple[Float[np.ndarray, "m d"], int, TestResult | None]:
    """At most `n` finite draws, how many there were, and a result for the others.

    Args:
        key: Random key.
        target: What the draws should follow.
        given: Draws in the user's own tree, or a `Sampler`.
        n: How many draws are tested.
    """
    if isinstance(given, Sampler):
        require_same_parameters(given, target)
        draws = np.asarray(given.unconstrained().sample(key, n), np.float64)
        finite = np.isfinite(draws).all(axis=1)
        return draws[finite], n, _broken(target, draws[~finite], n)
    for leaf in jax.tree.leaves(given):
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float):
            raise UsageError(
                f"A {type(leaf).__name__} is neither a sampler nor draws; give a "
                "Sampler (fit.sampler, or pushforward.load of a file), or draws in the "
                "target's own tree."
            )
    try:
        # Only the shapes matter here; the structure raises its own errors.
        whole = jax.eval_shape(target.structure.flatten_draws, given)
    except (TypeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"The draws cannot be read: {error}") from error
    count = whole.shape[0]
    if count < MIN_DRAWS:
        raise UsageError(
            f"There are {count} draws, and a check needs at least {MIN_DRAWS}."
        )
    leaves, treedef = jax.tree.flatten(given)
    leaves = [np.asarray(leaf) for leaf in leaves]

    def flatten(rows):
        part = jax.tree.unflatten(treedef, [leaf[rows] for leaf in leaves])
        return np.asarray(target.structure.flatten_draws(part), np.float64)

    # Of many draws a part is taken before anything is compiled for their number, but
    # all are searched for what is not a number.
    finite = np.all(
        [np.isfinite(leaf).reshape(count, -1).all(axis=1) for leaf in leaves], axis=0
    )
    rows = np.arange(count)
    if count > n:
        rows = generator(key).choice(count, n, replace=False)
    draws = flatten(rows)
    tested = np.isfinite(draws).all(axis=1)
    if finite.all():
        # What is left are draws outside the constraints, seen among those taken.
        return draws[tested], count, _broken(target, draws[~tested], len(draws))
    broken = flatten(np.flatnonzero(~finite))
    return draws[tested], count, _broken(target, broken, count)


def _broken(target, draws, total):
    """The result for draws that are not finite, where there are any."""
    if not len(draws):
        return None
    name = target.names[int(np.argmax(~np.isfinite(draws).all(axis=0)))]
    return TestResult(
        "finite",
        Outcome.FAILED,
        f"{len(draws):,} of {total:,} draws are not finite (coordinate '{name}')",
        statistic=len(draws) / total,
        reference=0.0,
    )
