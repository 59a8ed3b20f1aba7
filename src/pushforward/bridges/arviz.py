"""From draws to ArviZ."""

from typing import Any

import jax
import numpy as np

from pushforward.errors import MissingDependencyError, UsageError


def to_arviz(draws: Any, **more: Any) -> Any:
    """Draws as ArviZ keeps them: a DataTree with a group `posterior`.

    The draws of a sampler are independent: they are one chain. A parameter inside
    another is named with dots, as in constraints; a bare vector is called `x`.

    Args:
        draws: what `Sampler.sample` gives, a tree whose arrays have a leading axis.
        **more: passed on to `arviz_base.from_dict`, such as `coords` and `dims`.
    """
    try:
        from arviz_base import from_dict
    except ImportError as error:
        raise MissingDependencyError(
            "to_arviz needs the package arviz-base; install it with pip install "
            "'pushforward[arviz]'."
        ) from error
    paths, _ = jax.tree_util.tree_flatten_with_path(draws)
    named = {
        jax.tree_util.keystr(path, simple=True, separator=".") or "x": np.asarray(value)
        for path, value in paths
    }
    if len({value.shape[:1] for value in named.values()} | {()}) != 2:
        raise UsageError(
            "draws must be arrays with one common leading axis, the draws; their "
            f"shapes are {', '.join(str(value.shape) for value in named.values())}."
        )
    chain = {name: value[None] for name, value in named.items()}
    return from_dict({"posterior": chain}, **more)
