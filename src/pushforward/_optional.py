"""Packages that are imported when they are first needed."""

import importlib
from typing import Any

from pushforward.errors import MissingDependencyError


def require(module: str, extra: str, who: str) -> Any:
    """A module of an optional package, or the sentence that says how to get it.

    Args:
        module: its name, such as "pyarrow.parquet".
        extra: the extra of pushforward that brings it.
        who: what needs it, as the subject of the sentence.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0].replace("_", "-")
        raise MissingDependencyError(
            f"{who} needs the package {package}; install it with pip install "
            f"'pushforward[{extra}]'."
        ) from error
