"""Finding and downloading data files.

A data file is looked for in `$PUSHFORWARD_DATA`, in a folder `shared/data` in or beside
the working directory, and in the user's cache. If it is in none of them, it is
downloaded into the cache.
"""

import dataclasses
import hashlib
import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pushforward.errors import FileError, MissingDependencyError

VARIABLE = "PUSHFORWARD_DATA"


@dataclasses.dataclass(frozen=True)
class File:
    """A file of a data set: its path in a data folder, its checksum, its sources."""

    name: str
    sha256: str
    urls: tuple[str, ...] = ()


def folders() -> list[Path]:
    """The folders that are searched, in order; the last is the cache."""
    found = []
    if named := os.environ.get(VARIABLE):
        found.append(Path(named).expanduser())
    here = Path.cwd()
    found += [here / "shared" / "data", here.parent / "shared" / "data"]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return [*found, cache / "pushforward"]


def find(title: str, files: Sequence[File], *, download: bool = True) -> Path:
    """Returns the first of the files that is found, after verifying its checksum.

    Args:
        title: the name of the data set, for messages.
        files: alternative files with the same data.
        download: download a file if none is found.
    """
    for file in files:
        for folder in folders():
            path = folder / file.name
            if path.is_file():
                _verify(path, file)
                return path
    remote = [file for file in files if file.urls]
    if download and remote:
        return _download(title, remote[0])
    raise FileError(_where_to_put(title, files))


def _verify(path: Path, file: File) -> None:
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise FileError(f"{path} cannot be read ({error.strerror}).") from error
    if digest != file.sha256:
        raise FileError(
            f"{path} has the wrong checksum: its sha256 begins with "
            f"{digest[:12]} instead of {file.sha256[:12]}; remove it or replace it."
        )


def _where_to_put(title: str, files: Sequence[File]) -> str:
    names = " or ".join(dict.fromkeys(file.name for file in files))
    home = next((file.urls[0] for file in files if file.urls), None)
    source = "" if home is None else f" ({home})"
    return (
        f"The data set {title} was not found: put {names}{source} into the folder "
        f"{folders()[-1]}, or into the folder named by {VARIABLE}."
    )


def _download(title: str, file: File) -> Path:
    try:
        pooch: Any = importlib.import_module("pooch")
    except ImportError as error:
        raise MissingDependencyError(
            f"{_where_to_put(title, [file])} To download it, pip install "
            "'pushforward[reproduction]'"
        ) from error
    path = folders()[-1] / file.name
    reason: Exception | None = None
    for url in file.urls:
        try:
            pooch.retrieve(
                url,
                known_hash=f"sha256:{file.sha256}",
                fname=path.name,
                path=path.parent,
                progressbar=True,
            )
            return path
        except (OSError, ValueError) as error:
            # No network, no such page, or (a ValueError) the wrong checksum.
            reason = error
    why = " ".join(str(reason).split())[:200]
    raise FileError(f"{_where_to_put(title, [file])} Downloading it failed: {why}")


def is_there(files: Sequence[File]) -> bool:
    """Whether one of the files exists, valid or not."""
    return any((folder / f.name).is_file() for folder in folders() for f in files)
