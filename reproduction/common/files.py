"""Writing files whole or not at all."""

import contextlib
import glob
import os
import platform
from pathlib import Path

from pushforward.errors import FileError


def make_folder(path: Path) -> None:
    """Makes a folder and those above it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _explain(path, error) from error


def write_bytes(path: Path, data: bytes) -> None:
    """Writes `data` to a temporary file and moves it to `path`.

    What a killed process left of such a file is removed.
    """
    temporary = None
    try:
        if path.is_dir():
            raise FileError(f"{path} is a directory; give the name of a file.")
        ours = f".{path.name}.{platform.node()}."
        for left in path.parent.glob(f"{glob.escape(ours)}*.part"):
            if not _runs(left.name.removeprefix(ours).removesuffix(".part")):
                left.unlink(missing_ok=True)
        temporary = path.parent / f"{ours}{os.getpid()}.part"
        temporary.write_bytes(data)
        temporary.replace(path)
        temporary = None
    except OSError as error:
        raise _explain(path, error) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()


def _runs(number: str) -> bool:
    """Whether a process of this number runs, or may run, on this machine."""
    if os.name == "nt" or not number.isdecimal():
        return True
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _explain(path: Path, error: OSError) -> FileError:
    reason = error.strerror or str(error)
    return FileError(f"{path} cannot be written ({reason}); choose another place.")
