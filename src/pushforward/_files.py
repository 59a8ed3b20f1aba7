"""Files: never half-written, never read beyond what they should be."""

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from pushforward.errors import FileError

try:
    import fcntl
except ImportError:  # Windows has none.
    fcntl = None

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_LOOK = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
# What a file is called until all of it has been written.
_PART = re.compile(r"\.(.+)\.[0-9a-f]{16}\.part")


def explain(path: Path, error: OSError) -> FileError:
    """The sentence for an operating system's refusal to write `path`."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FileError(
            f"The disk is full: {path} was not written, and a file that was there is "
            "unchanged; free some space and try again."
        )
    if error.errno == errno.ENOENT and not path.parent.exists():
        return FileError(
            f"{path} cannot be written, for there is no folder {path.parent}; make it, "
            "or choose another place."
        )
    reason = error.strerror or str(error)
    return FileError(f"{path} cannot be written ({reason}); choose another place.")


def require_regular(path: Path) -> None:
    """Refuses what is there and is no ordinary file: a pipe, a device, a socket."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"{path} cannot be read ({reason}).") from error
    if not stat.S_ISREG(mode):
        what = "a directory" if stat.S_ISDIR(mode) else "no ordinary file"
        raise FileError(f"{path} is {what}; give the name of a file.")


def read_bytes(path: Path, most: int) -> bytes:
    """The content of an ordinary file of at most so many bytes."""
    require_regular(path)
    try:
        with open(path, "rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"{path} cannot be read ({reason}).") from error
    if len(data) > most:
        raise FileError(f"{path} is damaged: it is larger than {most:,} bytes.")
    return data


def lock(handle: int) -> bool | None:
    """Takes the lock on an open file; the system frees it when the process ends.

    Returns:
        Whether it could be taken; None where the file system has no locks.
    """
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return True


def sweep(folder: Path, name: str | None = None) -> None:
    """Removes what killed processes left of files that they were writing.

    Whoever writes such a file holds its lock: what can be locked belongs to nobody.

    Args:
        folder: where to look.
        name: the name of the file that was to be written; any by default.
    """
    try:
        with os.scandir(folder) as entries:
            found = [e.name for e in entries if e.name.endswith(".part")]
    except OSError:
        return
    for entry in found:
        match = _PART.fullmatch(entry)
        if match is None or name not in (None, match.group(1)):
            continue
        with contextlib.suppress(OSError):
            handle = os.open(folder / entry, _LOOK)
            try:
                if stat.S_ISREG(os.fstat(handle).st_mode) and lock(handle):
                    os.unlink(folder / entry)
            finally:
                os.close(handle)


def _begin_part(path: Path) -> tuple[Path, int]:
    """A new file beside `path`, locked as long as it is open."""
    for _ in range(3):
        part = path.parent / f".{path.name}.{secrets.token_hex(8)}.part"
        # Not by `tempfile`: so it has the permissions of any new file.
        handle = os.open(part, _NEW, 0o666)
        # Before it was locked another process may have swept it away.
        if lock(handle) is not False and os.fstat(handle).st_nlink:
            return part, handle
        os.close(handle)
    raise OSError(errno.EAGAIN, "another process removes new files there")


@contextlib.contextmanager
def replacing(path: Path, *, follow: bool = True) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` only when all of it has been written.

    Args:
        path: the file.
        follow: if `path` is a link, whether to write what it points to; otherwise the
            link is replaced.
    """
    part = None
    try:
        if follow and path.is_symlink():
            path = Path(os.path.realpath(path))
        if path.exists():
            require_regular(path)
        sweep(path.parent, path.name)
        part, handle = _begin_part(path)
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if fcntl is not None:
                # While its lock is held: nobody takes it for one that was left.
                os.replace(part, path)
        if fcntl is None:
            os.replace(part, path)
        part = None
    except OSError as error:
        raise explain(path, error) from error
    finally:
        if part is not None:
            with contextlib.suppress(OSError):
                os.unlink(part)


def write_bytes(path: Path, data: bytes, *, follow: bool = True) -> None:
    """Writes `data` to `path`, all of it or nothing; links as in `replacing`."""
    with replacing(path, follow=follow) as file:
        file.write(data)
