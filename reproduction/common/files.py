"""Writing files whole or not at all."""

import contextlib
import os
import tempfile
from pathlib import Path

from pushforward.errors import FileError


def make_folder(path: Path) -> None:
    """Makes a folder and those above it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _explain(path, error) from error


def write_bytes(path: Path, data: bytes) -> None:
    """Writes `data` to a temporary file and moves it to `path`."""
    temporary = None
    try:
        if path.is_dir():
            raise FileError(f"{path} is a directory; give the name of a file.")
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        # mkstemp makes files that only their owner can read.
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise _explain(path, error) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()


def _explain(path: Path, error: OSError) -> FileError:
    reason = error.strerror or str(error)
    return FileError(f"{path} cannot be written ({reason}); choose another place.")
