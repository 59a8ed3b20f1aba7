"""Several targets at once: what `fit_many` trains on when each seed has its own.

Targets that differ in their numbers only (one model, many data sets) are stacked.
Others of the same kind and dimension become a `SwitchTarget`: mapped over its index,
every seed computes all of them and keeps its own, which is cheap beside the networks as
long as the densities are.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pushforward.errors import UsageError
from pushforward.targets.arguments import as_target
from pushforward.targets.base import (
    AbstractTarget,
    Knowledge,
    Target,
    UserFunction,
    VarianceReduction,
    view_functions,
)
from pushforward.targets.structure import Structure


class SwitchTarget(AbstractTarget):
    """One of several targets of the same kind and dimension, chosen by a number."""

    options: tuple[AbstractTarget, ...]
    index: Int[Array, "..."]

    def __init__(self, options: Sequence[AbstractTarget], index: Int[Array, "..."]):
        self.options, self.index = tuple(options), index

    @property
    def sample_fn(self) -> None:
        """None: it is for training."""
        return None

    @property
    def structure(self) -> Structure:
        """A bare vector: the options may have different names for it."""
        return Structure.vector(self.options[0].dim)

    @property
    def kind(self) -> type[AbstractTarget]:
        """That of the options."""
        return self.options[0].kind

    @property
    def knowledge(self) -> Knowledge:
        """That of the options."""
        return self.options[0].knowledge

    def minibatch(self, key: PRNGKeyArray) -> "SwitchTarget":
        return self._around([t.minibatch(key) for t in self.options])

    def subsample(self, n: int) -> "SwitchTarget":
        return self._around([t.subsample(n) for t in self.options])

    def reduce_variance(self, found: VarianceReduction | None) -> "SwitchTarget":
        return self._around([t.reduce_variance(found) for t in self.options])

    def _around(self, options: Sequence[AbstractTarget]) -> "SwitchTarget":
        if all(a is b for a, b in zip(options, self.options, strict=True)):
            return self
        return SwitchTarget(options, self.index)

    def user_functions(self) -> tuple[UserFunction, ...]:
        return view_functions(self)

    def _score(self, x, key, sigma):
        branches = [
            lambda x, t=target: t.score(x, key=key, sigma=sigma)
            for target in self.options
        ]
        return jax.lax.switch(self.index, branches, x)

    def _log_density(self, x):
        branches = [lambda x, t=target: t.log_density(x) for target in self.options]
        return jax.lax.switch(self.index, branches, x)


class StackedTargets(eqx.Module):
    """n targets in one tree.

    Attributes:
        shared: what all of them have in common.
        per_seed: the rest, with a leading axis of n.
    """

    shared: Any
    per_seed: Any

    @staticmethod
    def of(targets: Sequence[AbstractTarget]) -> "StackedTargets":
        """The targets in one tree, stacked where they differ in numbers only."""
        first = targets[0]
        for target in targets:
            if _alike(target) != _alike(first):
                raise UsageError(
                    "Targets trained together must have one dimension and be of one "
                    "kind (a density, a score, minibatches or noise levels), with one "
                    "symmetry; a "
                    f"{type(first).__name__} in {first.dim} dimensions and a "
                    f"{type(target).__name__} in {target.dim} are not."
                )
        parts = [eqx.partition(target, eqx.is_array) for target in targets]
        shapes = {str(jax.tree.map(lambda a: (a.shape, a.dtype), a)) for a, _ in parts}
        if len(shapes) == 1 and all(eqx.tree_equal(parts[0][1], p) for _, p in parts):
            stacked = jax.tree.map(lambda *a: jnp.stack(a), *[a for a, _ in parts])
            return StackedTargets(parts[0][1], stacked)
        if first.knowledge.through_minibatches:
            raise UsageError(
                "Posteriors over minibatches are trained together only if they differ "
                "in their data alone, in arrays of the same shapes."
            )
        numbers = jax.device_put(np.arange(len(targets), dtype=np.int32))
        switch = SwitchTarget(targets, numbers)
        is_index = jax.tree.map(lambda _: False, switch)
        is_index = eqx.tree_at(lambda s: s.index, is_index, replace=True)
        per_seed, shared = eqx.partition(switch, is_index)
        return StackedTargets(shared, per_seed)

    def at(self, per_seed: Any) -> AbstractTarget:
        """The target of one seed, from its slice of `per_seed`."""
        return eqx.combine(per_seed, self.shared)

    @property
    def first(self) -> AbstractTarget:
        """The first of them."""
        return self.at(jax.tree.map(lambda a: a[0], self.per_seed))


class _OfData(eqx.Module):
    """The log density that belongs to some data, which are arguments of programs."""

    target_of: Callable[[Any], Any] = eqx.field(static=True)
    data: Any

    def __call__(self, parameters: Any) -> Float[Array, ""]:
        return self.target_of(self.data).log_density_fn(parameters)


def over_data(
    target_of: Callable[[Any], AbstractTarget], data: Sequence[Any]
) -> list[AbstractTarget]:
    """The posterior of each of several data sets, which share one program.

    Where `target_of` closes over its data, the data become arguments.
    """
    targets = [as_target(target_of(each)) for each in data]
    if not isinstance(StackedTargets.of(targets).first, SwitchTarget):
        return targets
    structure = targets[0].structure
    wrapped: list[AbstractTarget] = [
        Target(_OfData(target_of, jax.tree.map(jnp.asarray, each)), example=structure)
        for each in data
    ]
    try:
        point = jnp.zeros(structure.size)
        eqx.filter_eval_shape(lambda t, x: t.log_density(x), wrapped[0], point)
    except Exception as error:
        raise UsageError(
            "target_of must make a Target whose log density is a JAX function of the "
            f"data too ({type(error).__name__}: {str(error).splitlines()[0]})."
        ) from error
    return wrapped


def per_seed_part(target: Any) -> Any:
    """What differs from seed to seed; None for a target that all seeds share."""
    return target.per_seed if isinstance(target, StackedTargets) else None


def target_of_seed(target: Any, per_seed: Any) -> Any:
    """The target of one seed, from its slice of `per_seed_part(target)`."""
    return target.at(per_seed) if isinstance(target, StackedTargets) else target


def _alike(target: AbstractTarget) -> tuple:
    known = target.knowledge
    has_density = known.no_density is None
    group = None if known.symmetry is None else str(known.symmetry)
    minibatches, noise = known.through_minibatches, known.noise_range
    return target.dim, has_density, minibatches, noise, group
