"""From draws to ArviZ."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from pushforward.errors import MissingDependencyError, UsageError
from pushforward.sampler import Sampler
from pushforward.targets.structure import path_name

# ArviZ's names for the axes of draws: a variable cannot have such a name.
_AXES = ("chain", "draw")


def to_arviz(
    draws: Any,
    *,
    predictive: Any = None,
    observed: Any = None,
    coords: Mapping[str, Sequence] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
) -> Any:
    """Draws as ArviZ keeps them: a DataTree with a group `posterior`.

    The draws of a sampler are independent: they are one chain. A parameter inside
    another is named with dots, as in constraints; a bare vector is called `x`.

    Args:
        draws: A tree whose arrays have a leading axis, as `Sampler.sample` returns it;
            or a file of draws, `numpy.load("draws.npz")`.
        predictive: Draws of the data, for the group `posterior_predictive`.
        observed: The data themselves, for the group `observed_data`.
        coords: The labels of a dimension, by its name.
        dims: The names of a variable's dimensions, after that of the draws.
    """
    try:
        from arviz_base import from_dict
    except ImportError as error:
        raise MissingDependencyError(
            "to_arviz needs the package arviz-base; install it with pip install "
            "'pushforward[arviz]'."
        ) from error
    groups = {"posterior": _one_chain(draws)}
    if predictive is not None:
        groups["posterior_predictive"] = _one_chain(predictive)
    if observed is not None:
        groups["observed_data"] = _named(observed)
    return from_dict(groups, coords=coords, dims=dims)


def _one_chain(draws: Any) -> dict[str, np.ndarray]:
    named = _named(draws)
    if len({value.shape[:1] for value in named.values()} | {()}) != 2:
        shapes = [f"{name} has {value.shape}" for name, value in named.items()]
        raise UsageError(
            "Draws must be arrays with one common leading axis, the draws, but of "
            f"their shapes {', '.join(shapes)}."
        )
    return {name: value[None] for name, value in named.items()}


def _named(tree: Any) -> dict[str, np.ndarray]:
    """The arrays of a tree by their names in ArviZ."""
    if isinstance(tree, Sampler):
        raise UsageError(
            "to_arviz needs draws, not a Sampler; give sampler.sample(key, n)."
        )
    # A file that numpy has opened is a Mapping, but not a dict.
    tree = dict(tree) if isinstance(tree, Mapping) else tree
    paths, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_leaf)
    # ArviZ separates groups by slashes.
    names = [path_name(path).replace("/", ".") or "x" for path, _ in paths]
    values = [np.asarray(value) for _, value in paths]
    numbers = all(np.issubdtype(v.dtype, np.number) or v.dtype == bool for v in values)
    if not (values and numbers):
        raise UsageError(
            "Draws must be arrays of numbers, or a tree of such arrays, and this "
            f"{type(tree).__name__} is not."
        )
    (name, count), *_ = Counter([*names, *_AXES]).most_common(1)
    if count > 1:
        raise UsageError(
            f"ArviZ cannot hold a parameter named {name!r}, because another variable "
            "or axis has that name; rename it in draws."
        )
    return dict(zip(names, values, strict=True))


def _is_leaf(node: Any) -> bool:
    """Whether a node is a leaf: lists of numbers are arrays, and None is refused."""
    plain = isinstance(node, list) and not any(isinstance(x, dict) for x in node)
    return node is None or (plain and all(np.ndim(x) == 0 for x in node))
