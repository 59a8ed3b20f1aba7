"""From draws to ArviZ."""

import importlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from pushforward._optional import require
from pushforward.diagnostics import ImportanceSample
from pushforward.errors import UsageError
from pushforward.sampler import Sampler
from pushforward.targets.structure import path_name

# ArviZ's names for the axes of draws: a variable cannot have such a name.
_AXES = ("chain", "draw")


def to_arviz(
    draws: Any,
    *,
    predictive: Any = None,
    observed: Any = None,
    log_likelihood: Any = None,
    prior: Any = None,
    coords: Mapping[str, Sequence] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
) -> Any:
    """Draws as ArviZ keeps them, with a group `posterior`.

    That is what the installed ArviZ works with: an `InferenceData` up to version 0.23,
    a `DataTree` from version 1 on.

    The draws of a sampler are independent: they are one chain. A parameter inside
    another is named with dots, as in constraints; a bare vector is called `x`.

    Args:
        draws: A tree whose arrays have a leading axis, as `Sampler.sample` returns it;
            a file of draws, `numpy.load("draws.npz")`; or what `weigh` returns, whose
            weights go into the group `sample_stats` as `weight` and `log_weight`.
        predictive: Draws of the data, for the group `posterior_predictive`.
        observed: The data themselves, for the group `observed_data`.
        log_likelihood: The log likelihood of each datum at each draw, by the names of
            the data, for `loo` and `waic`.
        prior: Draws of the prior, for the group `prior`.
        coords: The labels of a dimension, by its name.
        dims: The names of a variable's dimensions, after that of the draws.
    """
    groups = {}
    if isinstance(draws, ImportanceSample):
        with np.errstate(divide="ignore"):
            weights = {"weight": draws.weights, "log_weight": np.log(draws.weights)}
        groups["sample_stats"] = _one_chain(weights)
        draws = draws.draws
    groups = {"posterior": _one_chain(draws), **groups}
    others = {
        "posterior_predictive": predictive,
        "log_likelihood": log_likelihood,
        "prior": prior,
    }
    for name, given in others.items():
        if given is not None:
            groups[name] = _one_chain(given)
    if observed is not None:
        groups["observed_data"] = _named(observed)
    return _writer()(groups, coords, dims)


def _writer() -> Callable[[dict[str, Any], Any, Any], Any]:
    """What makes ArviZ's own object of groups, whichever version there is."""
    try:
        arviz = importlib.import_module("arviz")
    except ImportError:
        arviz = None
    if hasattr(arviz, "InferenceData"):
        make: Any = arviz

        def write(groups, coords, dims):
            dims = None if dims is None else {k: list(v) for k, v in dims.items()}
            return make.from_dict(**groups, coords=coords, dims=dims)

        return write
    base = require("arviz_base", "arviz", "to_arviz")
    return lambda groups, coords, dims: base.from_dict(groups, coords=coords, dims=dims)


def named_draws(draws: Any) -> dict[str, np.ndarray]:
    """The arrays of draws by name, each with the same leading axis."""
    if isinstance(draws, ImportanceSample):
        draws = draws.draws
    return {name: value[0] for name, value in _one_chain(draws).items()}


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
            "Draws are needed here, not a Sampler; give sampler.sample(key, n)."
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
