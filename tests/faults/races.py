"""Several processes at once in one directory, or on one file."""

import random
import tempfile
from pathlib import Path

from .kills import METHODS, _different, _fit, _reporting, ended, forked
from .tally import Tally


def campaign(seed: int, count: int) -> Tally:
    """Of those that begin or go on with one run, one does; the others are told."""
    tally, dice = Tally(), random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cache, method = folder / "cache", "transport"
        assert method in METHODS
        assert ended(forked(_fit, method, folder / "whole", cache), 600.0) == 0
        for i in range(count):
            out, many = folder / f"run-{i}", dice.choice((2, 3))
            said = [folder / f"said-{i}-{j}" for j in range(many)]
            children = [forked(_reporting, s, _fit, method, out, cache) for s in said]
            statuses = [ended(child, 600.0) for child in children]
            told = [s.read_text() for s in said]
            fine = 0 in statuses and all(
                status == 0 or "FileError: " in text
                for status, text in zip(statuses, told, strict=True)
            )
            tally.expect("several resume one run", fine, f"{statuses}: {told}")
            different = _different(folder / "whole", out)
            tally.expect("the run they leave", not different, different)
            path = folder / f"files-{i}" / "a.pf"
            path.parent.mkdir()
            many = [
                forked(_reporting, folder / f"saved-{i}-{j}", _whole_often, path)
                for j in range(2)
            ]
            statuses = [ended(child, 600.0) for child in many]
            told = [(folder / f"saved-{i}-{j}").read_text() for j in range(2)]
            left = [p.name for p in path.parent.iterdir()]
            fine = statuses == [0, 0] and left == ["a.pf"]
            tally.expect("two write one file", fine, f"{statuses}: {told}, {left}")
    return tally


def _whole_often(path: Path) -> None:
    import pushforward as pf

    sampler = pf.Sampler.from_network(pf.networks.AffineMap(4))
    for _ in range(200):
        sampler.save(path)
        pf.load(path)
