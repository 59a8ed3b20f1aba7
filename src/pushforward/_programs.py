"""Compiled programs: how they are compiled, and how long they are kept.

Most of the time of a first fit is compilation. On a CPU the emitters that XLA has used
since 2025 take longer than the older ones, for code that is no faster here.

A density is a part of the programs that are compiled for it, some 30 MB of them, and
JAX keeps programs as long as the functions that were compiled. Ours live as long as the
process: so they are emptied by hand.
"""

import contextlib
import ctypes
import sys
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import equinox as eqx
import jax

# Of so many densities the programs are kept.
KEPT = 4

# Later versions refuse the option: they have the new emitters alone.
_OPTIONS = (
    {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else None
)

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """`eqx.filter_jit` for a function that no other compiled function calls.

    JAX takes options for the outermost function alone.
    """
    jit: Any = eqx.filter_jit
    return jit(function, compiler_options=_OPTIONS)


_seen: set[Hashable] = set()
_WRAPPER: Any = type(eqx.filter_jit(lambda: None))


def note(target: Any) -> None:
    """Lets go of all programs where this is one density more than are kept."""
    key = _identity(target)
    if key in _seen:
        return
    if len(_seen) >= KEPT:
        release()
    _seen.add(key)


def release() -> None:
    """Lets go of the programs of this package; what is needed is compiled anew.

    Nobody else's are touched.
    """
    _seen.clear()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "pushforward":
            continue
        for value in list(vars(module).values()):
            if isinstance(value, _WRAPPER):
                # Equinox has no public word for it; a test counts what is let go.
                value._cached.clear_cache()
    if sys.platform == "linux":
        # The C library keeps what was freed unless it is told to give it back.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def _identity(target: Any) -> Hashable:
    """What two targets share if they share their programs."""
    leaves, tree = jax.tree.flatten(target)
    kinds = tuple(
        (leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf for leaf in leaves
    )
    try:
        hash((tree, kinds))
    except TypeError:
        return id(target)
    return tree, kinds
