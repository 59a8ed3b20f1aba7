"""Writing files so that nothing is ever half-written."""

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from pushforward.errors import FileError

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def explain(path: Path, error: OSError) -> FileError:
    """The sentence for an operating system's refusal to write `path`."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FileError(
            f"The disk is full: {path} was not written, and what stood there before "
            "is untouched; free some space and try again."
        )
    if error.errno == errno.ENOENT and not path.parent.exists():
        return FileError(
            f"{path} cannot be written, for there is no folder {path.parent}; make it, "
            "or choose another place."
        )
    reason = error.strerror or str(error)
    return FileError(f"{path} cannot be written ({reason}); choose another place.")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` only when all of it has been written."""
    temporary = None
    try:
        if path.is_dir():
            raise FileError(f"{path} is a directory; give the name of a file.")
        name = path.parent / f".{path.name}.{secrets.token_hex(8)}.part"
        # Not by `tempfile`: so it has the permissions of any new file.
        handle = os.open(name, _NEW, 0o666)
        temporary = name
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise explain(path, error) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def write_bytes(path: Path, data: bytes) -> None:
    """Writes `data` to `path`, all of it or nothing."""
    with replacing(path) as file:
        file.write(data)


def write_json(path: Path, data: Any) -> None:
    """Writes `data` as readable JSON, all of it or nothing."""
    write_bytes(path, (json.dumps(data, indent=2) + "\n").encode())
