"""`report`: the page of a sampler, and the same numbers as JSON."""

import errno
import json
from pathlib import Path
from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from pushforward import _files
from pushforward.errors import FileError, UsageError
from pushforward.reporting.contents import gather
from pushforward.reporting.page import page
from pushforward.sampler import Sampler
from pushforward.targets.arguments import as_key, as_target
from pushforward.targets.base import AbstractTarget
from pushforward.training.config import Config
from pushforward.training.history import History
from pushforward.training.rundir import RunDirectory
from pushforward.training.status import Fit

# Folded into the key of a fit for the page that it makes of itself.
_PAGE = 0x706167


def report(
    key: PRNGKeyArray,
    target: AbstractTarget,
    fit: Any,
    path: str | Path,
    *,
    reference: Any = None,
    n: int = 2000,
    max_evaluations: int | float | None = None,
    title: str | None = None,
    run: str | Path | None = None,
) -> Path:
    """Writes one page about a sampler, and the same numbers as JSON beside it.

    The page is one HTML file that needs no network: the verdict of `check` and what it
    rests on, what could not be determined, every parameter beside the reference, its
    distribution, modes, pairs, log densities, importance weights, the course of the
    training and what it cost. It draws `n` samples and makes a check of its own.

    Args:
        key: random key.
        target: what the sampler should follow.
        fit: what `fit` returned, or a sampler: then there is nothing on its training,
            unless `run` names its directory.
        path: the file, whose name ends in `.html`; the JSON has the same name with
            `.json`.
        reference: reference draws, as for `check`.
        n: how many draws are looked at, as for `check`.
        max_evaluations: how many evaluations of the target may be spent. What they do
            not pay for is left out, and the page says so.
        title: the title of the page.
        run: the directory of the run that the sampler is from.

    Returns:
        `path`.

    Raises:
        UsageError: the file has another ending, or the parts do not fit together.
        FileError: the file cannot be written.
    """
    key, target, path = as_key(key), as_target(target), Path(path)
    if path.suffix not in (".html", ".htm"):
        raise UsageError(
            f"A report is written as .html, and {str(path)!r} has another ending."
        )
    # Before minutes are spent.
    if path.is_dir():
        raise FileError(f"{path} is a directory; give the name of a file.")
    if not path.parent.exists():
        raise _files.explain(path, FileNotFoundError(errno.ENOENT, "no folder"))
    sampler, about, history = _parts(fit, run)
    config = about.get("config") or {}
    contents = gather(
        key,
        target,
        sampler,
        reference,
        run=about,
        history=history,
        n=n,
        max_evaluations=max_evaluations,
        title=title or _title(config, target),
    )
    numbers = json.dumps(contents, indent=2, allow_nan=False) + "\n"
    _files.write_bytes(path.with_suffix(".json"), numbers.encode())
    _files.write_bytes(path, page(contents).encode())
    return path


def report_of_fit(fit: Fit, path: str | Path, **options: Any) -> Path:
    """`report` of a fit on its own target, with a key that follows from its own."""
    if fit.target is None:
        raise UsageError(
            "This fit does not hold its target; use pushforward.report(key, target, "
            "fit, path)."
        )
    key = options.pop("key", None)
    if key is None:
        key = jax.random.key(_PAGE)
        for word in fit.config["key"]:
            key = jax.random.fold_in(key, word)
    return report(key, fit.target, fit, path, **options)


def _parts(
    fit: Any, run: str | Path | None
) -> tuple[Sampler, dict[str, Any], History | None]:
    """The sampler, what is known of its training, and its history."""
    if isinstance(fit, Fit):
        about = {
            "message": fit.message,
            "config": fit.config,
            "evaluations": fit.evaluations,
            "seconds": fit.seconds,
            "doubts": fit.doubts,
            "outside": fit.outside,
            "out": None if fit.out is None else str(fit.out),
        }
        return fit.sampler, about, fit.history
    if not isinstance(fit, Sampler):
        raise UsageError(
            f"report takes what fit returned, or a Sampler, not a {type(fit).__name__}."
        )
    if run is None:
        return fit, {}, None
    directory = RunDirectory(run)
    config = directory.read_config()
    about = {"config": config, "out": str(run), **directory.read_ending()}
    about.setdefault("doubts", (config.get("target") or {}).get("doubts"))
    return fit, about, History(directory.metrics())


def _title(config: Config, target: AbstractTarget) -> str:
    spec = (config.get("target") or {}).get("spec")
    name = spec.get("target") if isinstance(spec, dict) else None
    many = "1 dimension" if target.dim == 1 else f"{target.dim:,} dimensions"
    return f"{name or target.kind.__name__} in {many}"
