"""Text in sentences and files: what it may hold, and how long it is."""

from typing import Any

# Of what a value looks like in a sentence.
_LONGEST = 80


def printable(text: str) -> str:
    """Without what a terminal would obey: what a file holds may stand in it."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def is_text(value: Any) -> bool:
    """Whether it is text that a file can hold: without halves of characters."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(value: Any) -> str:
    """A value as it stands in a sentence: short, whatever it is."""
    try:
        text = " ".join(repr(value).split())
    except Exception:
        if isinstance(value, int):
            return "a number of thousands of digits"
        return f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
