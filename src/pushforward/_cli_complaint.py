"""What tyro says of words it cannot parse, as one sentence like all others here."""

import re

_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_HELP = re.compile(r"pushforward( \w+)? --help")


def complaint(box: str) -> str | None:
    """The sentence in tyro's framed message, and which help to read.

    The frame holds paragraphs between rules. A paragraph is a line or two, then items
    indented by four, then what the help says of each, indented by more. A message that
    is not framed like this, as that of another version may be, gives None.
    """
    lines = _STYLE.sub("", box).splitlines()
    # The title stands in the frame or, without Unicode, above a rule.
    title = 1 if lines[0].startswith("╭") else 2
    if len(lines) <= title + 1:
        return None
    paragraphs: list[list[str]] = [[]]
    for line in lines[title:]:
        inside = line.replace("│", " ")[2:].rstrip()
        if set(inside) <= set(" ─-╰╯"):
            paragraphs.append([])
        else:
            paragraphs[-1].append(inside)
    said, where = [], "pushforward --help"
    for paragraph in filter(None, paragraphs):
        words = " ".join(" ".join(paragraph).split())
        if words.startswith("For full helptext"):
            found = _HELP.search(words)
            where = found[0] if found else where
        elif not words.startswith("Argument helptext"):
            said.append(_shortened(paragraph))
    if not any(said):
        return None
    text = "; ".join([said[0], *(s[:1].lower() + s[1:] for s in said[1:])])
    # A positional argument is named by its place in our classes.
    text = text.replace("'command.", "'").replace(". Expected", ", expected")
    return f"{text[:1].upper()}{text[1:]}; see {where}."


def _shortened(paragraph: list[str]) -> str:
    """A paragraph without what the help says of its items."""
    head = [line for line in paragraph if not line.startswith(" ")]
    items = [line.strip() for line in paragraph if re.match(r" {4}\S", line)]
    return " ".join([*head, ", ".join(items)]).strip().rstrip(".")
