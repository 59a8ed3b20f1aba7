"""Compiled programs on disk, so that the next process need not compile them again."""

import atexit
import contextlib
import hashlib
import os
import platform
import sys
from pathlib import Path

import jax

from pushforward import _files
from pushforward.errors import UsageError

# What the programs of all densities may take up; the oldest are removed first.
MOST_BYTES = 2**30
# Programs that compile faster are not worth a file.
_LEAST_SECONDS = 0.2
_MARK = ".running-"


def cache_programs(folder: str | Path | None = None) -> Path | None:
    """Keeps compiled programs on disk, and takes them from there.

    Most of the time of a first fit is compilation. With this call before it, the next
    process that fits the same density, or continues or checks a run, does not compile
    again. The results are the same, bit for bit. The command line does so by itself.

    It sets JAX's own persistent compilation cache. Where that has been set up already,
    or turned off (`JAX_ENABLE_COMPILATION_CACHE=0`), nothing is changed.

    Args:
        folder: where to keep the programs; by default in the user's cache folder,
            `$XDG_CACHE_HOME/pushforward` or `~/.cache/pushforward`. Programs are for
            one kind of processor, so that each has a folder of its own in it. They are
            code, and are run: take no folder that others can write to.

    Returns:
        The folder, or None where programs are not kept: where it cannot be written to,
        or JAX's cache has been turned off.
    """
    if folder is not None and not isinstance(folder, str | Path):
        raise UsageError(f"folder must be a path, and it is {folder!r}.")
    settings = jax.config.values
    if not settings["jax_enable_compilation_cache"]:
        return None
    if settings["jax_compilation_cache_dir"]:
        return Path(settings["jax_compilation_cache_dir"])
    if folder is None:
        base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "pushforward"
    else:
        base = Path(folder)
    with contextlib.suppress(OSError, RuntimeError):
        place = base.expanduser().absolute() / _processor()
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        if sys.platform != "win32" and place.stat().st_uid != os.getuid():
            # Somebody else's programs are not run.
            return None
        _clean(place)
        mark = place / f"{_MARK}{os.getpid()}"
        _files.write_bytes(mark, b"")
        atexit.register(_unmark, mark, os.getpid())
        jax.config.update("jax_compilation_cache_dir", str(place))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _LEAST_SECONDS)
        return place
    return None


def _processor() -> str:
    """A name for the kind of processor: programs use what it can do."""
    features = platform.processor()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
        names = "flags", "Features", "model name"
        features = next(iter(sorted({li for li in lines if li.startswith(names)})), "")
    digest = hashlib.sha256(features.encode()).hexdigest()[:8]
    return f"{platform.machine() or 'any'}-{digest}"


def _clean(place: Path) -> None:
    """Removes what a killed process may have written half, and what is too much."""
    entries, marks = [], []
    with os.scandir(place) as found:
        for entry in found:
            if entry.is_file(follow_symlinks=False):
                part = marks if entry.name.startswith(_MARK) else entries
                part.append((entry.stat().st_mtime, entry.stat().st_size, entry.path))
    since = float("inf")
    for began, _, path in marks:
        if not _lives(Path(path).name.removeprefix(_MARK)):
            # JAX writes its entries in place, and never again.
            since = min(since, began)
            _remove(path)
    total = 0
    for written, size, path in sorted(entries, reverse=True):
        total += size
        if written >= since or total > MOST_BYTES:
            _remove(path)


def _lives(pid: str) -> bool:
    """Whether there is a process of that number; where that cannot be told, yes."""
    if not pid.isdecimal() or sys.platform == "win32":
        return pid.isdecimal()
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _unmark(mark: Path, pid: int) -> None:
    # A child that was forked runs it too.
    if os.getpid() == pid:
        _remove(mark)


def _remove(path: str | Path) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
