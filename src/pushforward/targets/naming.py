"""Targets by name: `donut`, `my_model.py:log_density`, `module:target`."""

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pushforward import _user_errors
from pushforward.errors import FileError, UsageError
from pushforward.targets import catalogue
from pushforward.targets.base import AbstractTarget, Target

# What the user's code may raise. A call of `sys.exit` in it must not end the program
# with a status that says that all is well.
_RAISED = (Exception, SystemExit)


def target_from_spec(
    text: str, dim: int | None = None, folders: Sequence[Path] = ()
) -> AbstractTarget:
    """The target with this name.

    Args:
        text: the name of a built-in target, or `path.py:name` or `module:name`, where
            the name is that of a log density, of a target, or of a function without
            arguments that makes one.
        dim: the number of coordinates, where the name is a log density.
        folders: where to look for relative paths and modules, in this order; the
            working directory by default.

    Raises:
        UsageError: if nothing has that name, or it is not a target or a log density.
    """
    if is_code(text):
        found = _find(text, folders or [Path.cwd()])
        if callable(found) and not isinstance(found, AbstractTarget):
            found = _of_function(text, found, dim)
        elif not isinstance(found, AbstractTarget):
            raise UsageError(
                f"{text} is neither a function of one point nor a Target, but a "
                f"{type(found).__name__}."
            )
    else:
        found = catalogue.get(text)
    if dim not in (None, found.dim):
        raise UsageError(f"{text} has {found.dim} coordinates; leave --dim out.")
    return found


def is_code(text: str) -> bool:
    """Whether this is the name of code, and not that of a built-in target."""
    return ":" in text or text.endswith(".py")


def _of_function(text: str, function: Any, dim: int | None) -> AbstractTarget:
    if not _takes_nothing(function):
        if dim is None:
            raise UsageError(f"Say how many coordinates {text} has, as in --dim 5.")
        return Target(function, dim=dim)
    try:
        made = function()
    except _RAISED as error:
        raise UsageError(_user_errors.raised(text, error) + ".") from error
    if not isinstance(made, AbstractTarget):
        raise UsageError(
            f"{text} takes no argument, so it should make a Target, and it made a "
            f"{type(made).__name__}; a log density takes the point."
        )
    return made


def _takes_nothing(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(p.default is not p.empty or p.kind in variable for p in parameters)


def _find(text: str, folders: Sequence[Path]) -> Any:
    # From the right: a path on Windows has a colon of its own.
    place, colon, name = text.rpartition(":")
    place, name = (place, name) if colon else (text, "")
    from_where = _from_file if place.endswith(".py") else _from_module
    module = from_where(place, folders)
    if not name:
        known = inspect.getmembers(module, inspect.isfunction)
        own = [n for n, value in known if value.__module__ == module.__name__]
        example = f"{place}:{own[0] if own else 'log_density'}"
        raise UsageError(f"Say which function of {place} it is, as in {example}.")
    found = module
    for part in name.split("."):
        try:
            there = hasattr(found, part)
        except _RAISED as error:
            raise UsageError(_user_errors.raised(text, error) + ".") from error
        if not there:
            near = difflib.get_close_matches(part, dir(found), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise UsageError(f"{place} has no {name!r}{hint}")
        found = getattr(found, part)
    return found


def _from_file(place: str, folders: Sequence[Path]) -> ModuleType:
    candidates = [folder / Path(place).expanduser() for folder in folders]
    path = next((p for p in candidates if p.is_file()), None)
    if path is None:
        raise FileError(f"There is no file {place}.")
    # A file must not take the place of a library that is loaded already.
    name = path.stem if path.stem not in sys.modules else f"user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # As for a script: it finds itself, and the files beside it can be imported.
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except _RAISED as error:
        sys.modules.pop(name, None)
        raise _not_imported(place, error) from error
    return module


def _from_module(place: str, folders: Sequence[Path]) -> ModuleType:
    sys.path[:0] = [str(f) for f in folders if str(f) not in sys.path]
    try:
        return importlib.import_module(place)
    except _RAISED as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{place}.".startswith(f"{missing}."):
            last = place.split(".")[-1] or "my_model"
            raise UsageError(
                f"There is no module {place!r}; a file is named with its ending, as in "
                f"{last}.py:log_density."
            ) from error
        raise _not_imported(place, error) from error


def _not_imported(place: str, error: BaseException) -> UsageError:
    sentence = _user_errors.raised(f"{place} cannot be imported: it", error)
    return UsageError(f"{sentence}.")
