"""Reporting an exception that the user's own code raised: what, where, what to try."""

import re
import sysconfig
import traceback
from pathlib import Path

from pushforward.errors import DensityError

_HERE = Path(__file__).resolve().parent
_LIBRARIES = tuple(
    Path(path).resolve()
    for name, path in sysconfig.get_paths().items()
    if name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_LONGEST = 240


def raised(what: str, error: BaseException) -> str:
    """`Your log_density raised TypeError: ... (my_model.py, line 12, in log_density)`.

    Args:
        what: which code it is, as the subject of the sentence ("Your log_density").
        error: what it raised.
    """
    # The message of an error can be a page long; its first line says what happened.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = lines[0] if lines else ""
    if isinstance(error, SyntaxError):
        message = error.msg
    if len(message) > _LONGEST:
        message = message[:_LONGEST].rstrip() + " ..."
    place = location(error)
    return (
        f"{what} raised {type(error).__name__}"
        + (f": {message.rstrip('.')}" if message else "")
        + (f" ({place})" if place else "")
    )


def density_error(what: str, error: BaseException, advice: str = "") -> DensityError:
    """The same sentence as a `DensityError`, with what to try.

    Args:
        what: which code it is, as the subject of the sentence ("Your log_density").
        error: what it raised.
        advice: what to try, ending in a full stop.
    """
    return DensityError(raised(what, error) + (f": {advice}" if advice else "."))


def location(error: BaseException) -> str:
    """The innermost line of the user's own code, or nothing where there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if _is_users(f.filename)]
    if not own:
        return ""
    frame = own[-1]
    return f"{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}"


_PACKAGE_HINTS: dict[str, str] = {}


def register_hint(package: str, sentence: str) -> None:
    """What to advise where an exception came out of a package; bridges call this."""
    _PACKAGE_HINTS[package] = sentence


def package_hint(error: BaseException) -> str | None:
    """The advice for the package that the exception came out of, if there is any."""
    frames = traceback.extract_tb(error.__traceback__)
    parts = {part for frame in frames for part in Path(frame.filename).parts}
    return next((s for name, s in _PACKAGE_HINTS.items() if name in parts), None)


def _is_users(filename: str) -> bool:
    # "<string>" and "<stdin>" are the user's; "<frozen importlib>" is Python's.
    if filename.startswith("<"):
        return not filename.startswith(("<frozen", "<__array_function__", "<@beartype"))
    path = Path(filename).resolve()
    return not any(path.is_relative_to(other) for other in (_HERE, *_LIBRARIES))


_SHAPES = re.compile(
    r"shape|dimension|broadcast|unpack|out of bounds|too many indices|size",
    re.IGNORECASE,
)
_HINTS = {
    "TracerArrayConversionError": "use jax.numpy instead of numpy or scipy.",
    "TracerBoolConversionError": "use jnp.where instead of if.",
    "ConcretizationTypeError": "use jax.numpy instead of math, float and int.",
    "TracerIntegerConversionError": "use jax.numpy for what depends on the parameters.",
}


def hint(error: BaseException, *, shapes: str) -> str:
    """What to try, where the kind of error says it.

    Args:
        error: the exception.
        shapes: the advice for shapes that do not fit.
    """
    for kind in type(error).__mro__:
        if kind.__name__ in _HINTS:
            return _HINTS[kind.__name__]
    smells = isinstance(error, TypeError | ValueError | IndexError)
    return shapes if smells and _SHAPES.search(str(error)) else ""
