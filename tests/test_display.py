"""What a person sees during a run."""

import io

import pytest
from rich.console import Console

from pushforward.training.display import Bar, Lines


@pytest.mark.parametrize("kind", [Bar, Lines])
def test_names_are_shown_as_they_are(kind):
    """In the words of the library that draws them, brackets would be markup."""
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=kind is Bar)
    shown = kind(console)
    shown.stage("[/a]", 10, 0)
    shown.update(10, {"[/b]": 1.5})
    shown.say("[/c]")
    shown.close()
    assert all(text in out.getvalue() for text in ("[/a]", "[/b] 1.5", "[/c]"))
