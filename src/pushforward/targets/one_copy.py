"""One copy of a density that is the same under a group, for training.

With `r` between 0 and 1 and `sum_g r(g x) = 1` over a finite group of m elements, the
density `m q(x) r(x)` has the normaliser of `q`, and its draws, each moved by a random
element of the group, follow `q` exactly. Here `r` is the probability by which a point
is assigned to a template, as the components of a mixture are: it is smooth, and near 1
around the template. Rotations are divided out by canonical coordinates instead.

Permutations are assigned one place after the other: the k-th place of the template goes
to one of the points that are left, with probabilities `softmax(-d^2 / 2)` of their
distances `d` to it. So n places cost n^2 distances, and not n! of them. Where points
are rotated too, distances to the places before and to the origin take the part of
positions.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward.targets.base import (
    AbstractTarget,
    Knowledge,
    UserFunction,
    VarianceReduction,
    view_functions,
)
from pushforward.targets.structure import Structure
from pushforward.targets.symmetries import (
    MAX_ELEMENTS,
    AbstractBound,
    Action,
    BoundPermutations,
    BoundRotations,
    BoundSigns,
)

# Scores of the places that are left, given the places that have been assigned.
_Scores = Callable[[list[Any]], Float[Array, " n"]]


class Copy(eqx.Module):
    """Which of the copies of a density is learnt.

    Attributes:
        action: the group.
        template: a point in the middle of the copy, as arrays on which the group acts.
        variance: the variance of the copy around it, in the same arrays.
    """

    action: Action = eqx.field(static=True)
    template: list[Float[Array, "..."]]
    variance: list[Float[Array, "..."]]

    @staticmethod
    def around(
        action: Action, centre: Float[Array, " d"], axes: Float[Array, "d k"]
    ) -> "Copy":
        """The copy around a point.

        Args:
            action: the group.
            centre: the point.
            axes: the columns are the axes of the density there, each one standard
                deviation long.
        """
        columns = jax.vmap(action.lift, in_axes=1)(axes)
        variance = [jnp.sum(column**2, axis=0) for column in columns]
        return Copy(action, action.lift(centre), variance)

    @staticmethod
    def blank(action: Action) -> "Copy":
        """One of the right shapes."""
        dim = action.structure.size
        return Copy.around(action, jnp.zeros(dim), jnp.zeros((dim, dim)))

    @property
    def _plan(self) -> tuple[tuple[AbstractBound, ...], tuple[AbstractBound, ...]]:
        return divided(self.action)

    @property
    def size(self) -> int:
        """How many copies are left out."""
        alone, together = self._plan
        return math.prod(each.finite_size for each in (*alone, *together))

    def log_share(self, u: Float[Array, " d"]) -> Float[Array, ""]:
        """`log r`: how likely a point is to belong to this copy rather than others."""
        alone, together = self._plan
        values = self.action.lift(u)
        total = jnp.zeros((), u.dtype)
        for each in alone:
            if isinstance(each, BoundSigns):
                total += jnp.sum(jax.nn.log_sigmoid(self._sign_logits(each, values)))
            elif isinstance(each, BoundPermutations):
                scores = self._place_scores(each, values)
                for k in range(each.n):
                    at = scores(list(range(k)))[k:]
                    total += at[0] - jax.nn.logsumexp(at)
            else:
                raise _not_divided(each)
        if together:
            logits = self._logits(together, values)
            # The first element changes nothing.
            total += logits[0] - jax.nn.logsumexp(logits)
        return total

    def bring(self, key: PRNGKeyArray, u: Float[Array, " d"]) -> Float[Array, " d"]:
        """A point moved into this copy: draws of all copies become draws of this one.

        Args:
            key: random key: near the border of a copy either side is taken.
            u: a point.
        """
        alone, together = self._plan
        values = self.action.lift(u)
        for i, each in enumerate(alone):
            at = jax.random.fold_in(key, i)
            if isinstance(each, BoundSigns):
                logits = self._sign_logits(each, values)
                stay = jax.random.bernoulli(at, jax.nn.sigmoid(logits))
                values = each.act(jnp.where(stay, 1.0, -1.0).astype(u.dtype), values)
            elif isinstance(each, BoundPermutations):
                scores = self._place_scores(each, values)
                places: list[Any] = []
                left = jnp.ones(each.n, bool)
                for k in range(each.n):
                    logits = jnp.where(left, scores(places), -jnp.inf)
                    chosen = jax.random.categorical(jax.random.fold_in(at, k), logits)
                    left = left.at[chosen].set(False)
                    places.append(chosen)
                order = jnp.stack(places).astype(jnp.int32)
                values = each.act(order, values)
            else:
                raise _not_divided(each)
        if together:
            logits = self._logits(together, values)
            chosen = jax.random.categorical(jax.random.fold_in(key, len(alone)), logits)
            element = jax.tree.map(lambda t: t[chosen], _elements(together))
            values = _act(together, element, values)
        return self.action.lower(values)

    def _sign_logits(self, each: BoundSigns, values) -> Float[Array, " n"]:
        total = jnp.zeros(each.n, values[0].dtype)
        for part in each.parts:
            x, t, v = (part.view(a) for a in (values, self.template, self.variance))
            axis = part.axes[0] if part.axes else None
            if axis is not None:
                x, t, v = (jnp.moveaxis(a, axis, 0) for a in (x, t, v))
            x, t, v = (a.reshape(each.n, -1) for a in (x, t, v))
            total += jnp.sum(2 * x * t / _positive(v), axis=1)
        return total

    def _place_scores(self, each: BoundPermutations, values) -> _Scores:
        """How well each point fits the place after those that are assigned."""
        turns = self.action.rotations
        turned = {} if turns is None else {p.leaf: turns.dim for p in turns.parts}
        plain: list[Any] = []
        distances: list[Any] = []
        found = (each.features(a) for a in (values, self.template, self.variance))
        for part, x, t, v in zip(each.parts, *found, strict=True):
            # All places have one variance: the group must not change it.
            variance = _positive(jnp.mean(v, axis=0))
            if part.leaf not in turned:
                offsets = t[:, None] - x[None]
                squares = offsets**2 / variance[None, None]
                plain.append(jnp.sum(squares, axis=2))
                continue
            dim = turned[part.leaf]
            x, t = (a.reshape(each.n, -1, dim) for a in (x, t))
            width = jnp.mean(variance)
            radii = _norm(t)[:, None] - _norm(x)[None]
            plain.append(jnp.sum(radii**2, axis=2) / width)
            between = [_norm(a[:, None] - a[None]) for a in (x, t)]
            distances.append((*between, width))

        def scores(places: list[Any]) -> Float[Array, " n"]:
            k = len(places)
            total = jnp.zeros(each.n, values[0].dtype)
            for table in plain:
                total += table[k]
            for own, wanted, width in distances:
                for i, place in enumerate(places):
                    miss = own[:, place] - wanted[k, i][None]
                    total += jnp.sum(miss**2, axis=1) / width
            return -0.5 * total

        return scores

    def _logits(self, together, values) -> Float[Array, " m"]:
        """How well each element of a small group brings a point to the template."""

        def one(element):
            moved = _act(together, element, values)
            parts = zip(moved, self.template, self.variance, strict=True)
            # A mean variance, which no element changes.
            squares = [
                jnp.sum((x - t) ** 2) / _positive(jnp.mean(v)) for x, t, v in parts
            ]
            return -0.5 * jnp.sum(jnp.stack(squares))

        return jax.vmap(one)(_elements(together))


def divided(
    action: Action,
) -> tuple[tuple[AbstractBound, ...], tuple[AbstractBound, ...]]:
    """Which groups are divided out one by one, and which all together.

    Groups that move different arrays are divided out one by one. Others are, together,
    where they have few elements and nothing is rotated. Reflections are learnt.
    """
    groups = [
        each
        for each in action.bound
        if not isinstance(each, BoundRotations) and each.finite_size > 1
    ]
    arrays = [{part.leaf for part in each.parts} for each in groups]
    turns = action.rotations
    turned = set() if turns is None else {part.leaf for part in turns.parts}
    pairs = itertools.combinations(arrays, 2)
    if not any(a & b for a, b in pairs):
        alone = [
            each
            for each, own in zip(groups, arrays, strict=True)
            if not (isinstance(each, BoundSigns) and own & turned)
        ]
        return tuple(alone), ()
    if action.finite_size <= MAX_ELEMENTS and not turned & set().union(*arrays):
        return (), tuple(groups)
    return (), ()


def _not_divided(group: AbstractBound) -> NotImplementedError:
    """A group that is counted and not divided out would make densities wrong."""
    return NotImplementedError(
        f"Nothing says which share of a point belongs to one copy under {group}."
    )


def _elements(groups) -> tuple[Array, ...]:
    tables = [each.elements() for each in groups]
    rows = np.array(list(itertools.product(*(range(len(t)) for t in tables))))
    return tuple(jnp.asarray(table[rows[:, i]]) for i, table in enumerate(tables))


def _act(groups, element, values):
    for each, part in zip(groups, element, strict=True):
        values = each.act(part, values)
    return values


def _positive(variance: Array) -> Array:
    return jnp.maximum(variance, jnp.finfo(variance.dtype).tiny * 1e6)


def _norm(x: Array) -> Array:
    # Not differentiable at 0, where a point meets itself.
    return jnp.sqrt(jnp.sum(x**2, axis=-1) + 1e-12)


class OneCopy(AbstractTarget):
    """One copy of a target that has a symmetry, in canonical coordinates."""

    target: AbstractTarget
    copy: Copy

    def __init__(self, target: AbstractTarget, copy: Copy):
        self.target, self.copy = target, copy

    @property
    def action(self) -> Action:
        """The group."""
        return self.copy.action

    @property
    def structure(self) -> Structure:
        """A bare vector of canonical coordinates."""
        dim = self.action.canonical_dim
        names = self.target.names if dim == self.target.dim else None
        return Structure.vector(dim, names)

    @property
    def sample_fn(self) -> Callable[..., Any] | None:
        """Exact draws of the target, brought into the copy."""
        if not self.target.can_sample:
            return None

        def sample(key: PRNGKeyArray, n: int) -> Float[Array, "n k"]:
            draw_key, key = jax.random.split(key)
            return self.bring(key, self.target.sample_flat(draw_key, n))

        return sample

    @property
    def kind(self) -> type[AbstractTarget]:
        """That of the target."""
        return self.target.kind

    @property
    def knowledge(self) -> Knowledge:
        """That of the target, without its symmetry."""
        return dataclasses.replace(self.target.knowledge, symmetry=None)

    def bring(
        self, key: PRNGKeyArray, points: Float[Array, "n d"]
    ) -> Float[Array, "n k"]:
        """The canonical coordinates of points, each moved into this copy."""

        def one(i, x):
            return self.action.canonical(self.copy.bring(jax.random.fold_in(key, i), x))

        return jax.vmap(one)(jnp.arange(len(points)), points)

    def spread_out(
        self, key: PRNGKeyArray, points: Float[Array, "n k"]
    ) -> Float[Array, "n d"]:
        """Points of all copies, from canonical coordinates of points of this one."""

        def one(i, y):
            at = jax.random.fold_in(key, i)
            return self.action.move_randomly(at, self.action.section(y))

        return jax.vmap(one)(jnp.arange(len(points)), points)

    def minibatch(self, key: PRNGKeyArray) -> "OneCopy":
        return self._around(self.target.minibatch(key))

    def subsample(self, n: int) -> "OneCopy":
        return self._around(self.target.subsample(n))

    def reduce_variance(self, found: VarianceReduction | None) -> "OneCopy":
        return self._around(self.target.reduce_variance(found))

    def _around(self, target: AbstractTarget) -> "OneCopy":
        return self if target is self.target else OneCopy(target, self.copy)

    def user_functions(self) -> tuple[UserFunction, ...]:
        return view_functions(self)

    def _log_share(self, y):
        """What is added to the log density of the target."""
        share = self.copy.log_share(self.action.section(y))
        return share + self.action.log_volume(y) + math.log(self.copy.size)

    def _log_density(self, x):
        value = self.target.log_density(self.action.section(x))
        return value + self._log_share(x)

    def _score(self, x, key, sigma):
        there, transpose = jax.vjp(self.action.section, x)
        score = self.target.score(there, key=key, sigma=sigma)
        return transpose(score)[0] + jax.grad(self._log_share)(x)
