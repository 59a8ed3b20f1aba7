"""Draws as data frames: a row a draw, a column a number."""

from typing import Any

import numpy as np

from pushforward._optional import require
from pushforward.bridges.arviz import named_draws
from pushforward.draws.names import number_names


def to_pandas(draws: Any) -> Any:
    """Draws as a data frame of pandas, with columns such as `theta[0,1]`.

    Args:
        draws: A tree whose arrays have a leading axis, as `Sampler.sample` returns it.
    """
    return _frame("pandas", draws)


def to_polars(draws: Any) -> Any:
    """Draws as a data frame of polars, with columns such as `theta[0,1]`.

    Args:
        draws: A tree whose arrays have a leading axis, as `Sampler.sample` returns it.
    """
    return _frame("polars", draws)


def _frame(package: str, draws: Any) -> Any:
    library = require(package, package, f"to_{package}")
    columns: dict[str, np.ndarray] = {}
    for name, value in named_draws(draws).items():
        flat = value.reshape(len(value), -1)
        columns |= dict(zip(number_names(name, value.shape[1:]), flat.T, strict=True))
    return library.DataFrame({k: np.ascontiguousarray(v) for k, v in columns.items()})
