"""Several targets at once: what `fit_many` trains on when each seed has its own.

Targets that differ in their numbers only (one model, many data sets) are stacked.
Others of the same dimension become an `Among`, one target with a switch inside: mapped
over its index, every lane computes all of them and keeps its own, which is cheap beside
the networks as long as the densities are.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from pushforward.errors import UsageError
from pushforward.targets.base import AbstractTarget
from pushforward.targets.structure import Structure


class Among(AbstractTarget):
    """One of several targets of the same kind and dimension, picked by a number."""

    options: tuple[AbstractTarget, ...]
    index: Int[Array, ""]
    structure: Structure = eqx.field(static=True)
    has_density: bool = eqx.field(static=True)
    is_stochastic: bool = eqx.field(static=True)
    sigma_range: tuple[float, float] | None = eqx.field(static=True)
    exact: None = None

    def __init__(self, options: Sequence[AbstractTarget], index: Int[Array, "..."]):
        """The target `options[index]`."""
        first = options[0]
        self.options, self.index = tuple(options), index
        self.structure = Structure.vector(first.dim)
        self.has_density = first.has_density
        self.is_stochastic = first.is_stochastic
        self.sigma_range = first.sigma_range

    def _score(self, x, key, sigma):
        branches = [
            lambda x, t=target: t.score(x, key=key, sigma=sigma)
            for target in self.options
        ]
        return jax.lax.switch(self.index, branches, x)

    def _log_density(self, x):
        branches = [lambda x, t=target: t.log_density(x) for target in self.options]
        return jax.lax.switch(self.index, branches, x)


class Several(eqx.Module):
    """n targets in one tree: `own` has a leading axis of n, `shared` has none."""

    shared: Any
    own: Any

    def one(self, own: Any) -> AbstractTarget:
        """The target of one lane, from its slice of `own`."""
        return eqx.combine(own, self.shared)

    @property
    def first(self) -> AbstractTarget:
        """The first of them."""
        return self.one(jax.tree.map(lambda a: a[0], self.own))


def several(targets: Sequence[AbstractTarget]) -> Several:
    """The targets in one tree, stacked where they differ in numbers only."""
    first = targets[0]
    for target in targets:
        if _kind(target) != _kind(first):
            raise UsageError(
                "Targets trained together must have one dimension and be of one kind "
                f"(a density, a score, minibatches or noise levels); a "
                f"{type(first).__name__} in {first.dim} dimensions and a "
                f"{type(target).__name__} in {target.dim} are not."
            )
    parts = [eqx.partition(target, eqx.is_array) for target in targets]
    shapes = {str(jax.tree.map(lambda a: (a.shape, a.dtype), own)) for own, _ in parts}
    if len(shapes) == 1 and all(eqx.tree_equal(parts[0][1], p) for _, p in parts):
        own = jax.tree.map(lambda *a: jnp.stack(a), *[own for own, _ in parts])
        return Several(parts[0][1], own)
    if first.is_stochastic:
        raise UsageError(
            "Posteriors over minibatches are trained together only if they differ in "
            "their data alone, in arrays of the same shapes."
        )
    numbers = jax.device_put(np.arange(len(targets), dtype=np.int32))
    among = Among(targets, numbers)
    lanes = jax.tree.map(lambda _: False, among)
    lanes = eqx.tree_at(lambda a: a.index, lanes, replace=True)
    own, shared = eqx.partition(among, lanes)
    return Several(shared, own)


def _kind(target: AbstractTarget) -> tuple:
    return (
        target.dim,
        target.has_density,
        target.is_stochastic,
        target.sigma_range,
    )
