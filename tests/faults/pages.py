"""The page of a run that a stranger wrote: refused, or none of it is their code."""

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pushforward as pf
from pushforward import _io
from pushforward.errors import FileError

from .files import KEY, METHOD, changed
from .tally import Tally

# The first page compiles for a while.
SECONDS = 60.0
# Where each stands for what a stranger may write.
NASTY = ("<script>alert(1)</script>", "\x1b[2J", "\ud800", "a\0b", 10**400, 10**30)


def campaign(seed: int, count: int) -> Tally:
    """One value changed in one of the files that a page is made from."""
    tally, dice = Tally(), random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "run"
        target = pf.targets.get("gaussian")
        sampler = pf.fit(KEY, target, METHOD, out=out, progress=False).sampler
        kept = {path.name: path.read_text() for path in out.glob("*.json*")}
        for _ in range(count):
            for other, text in kept.items():
                (out / other).write_text(text)
            file = dice.choice(sorted(kept))
            (out / file).write_text(_crafted(dice, file, kept[file]))
            page = Path(name) / "page.html"
            page.unlink(missing_ok=True)
            with tally.guarded(f"crafted {file}", FileError, seconds=SECONDS):
                try:
                    pf.report(
                        KEY, target, sampler, page, n=100, max_evaluations=1, run=out
                    )
                except FileError:
                    continue
                except Exception as error:
                    changes = (out / file).read_text()[:300]
                    raise RuntimeError(f"{error!r} from {changes}") from error
                assert "<script>alert" not in page.read_text("utf-8"), "a script"
    return tally


def _crafted(dice: random.Random, file: str, text: str) -> str:
    lines = text.splitlines() if file.endswith("l") else [text]
    at = dice.randrange(len(lines))
    held: Any = changed(dice, json.loads(lines[at]))
    if dice.random() < 0.5:
        # In the place of any entry, as `changed` does with what numbers may be.
        held[dice.choice(sorted(held))] = dice.choice(NASTY)
    if file == "config.json":
        held[_io.CHECKSUM] = _io.checksum(held, {})
    lines[at] = json.dumps(held).replace('"DEEP"', "[" * 10**5 + "]" * 10**5)
    return "\n".join(lines) + "\n"
