"""Result files: the measurements of an experiment, cell by cell.

    {"experiment": "toy2d", "scale": "full", "cells": {NAME: CELL}}

A cell is a unit of work that is run once. It holds records, one per metric, each a flat
mapping that describes itself completely, and the data that its figures need.
"""

import dataclasses
import json
import platform
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

import pushforward as pf
from pushforward.errors import FileError
from reproduction.common.files import make_folder, write_bytes

FORMAT = 1


def ending(trained: "pf.Fit | pf.Trained") -> dict[str, Any]:
    """How a training ended, as it stands in a cell under `training`."""
    return {"status": trained.status.name.lower(), "steps": trained.steps}


def endings(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """How the trainings of a cell ended; none, where nothing was trained."""
    if "training" in cell:
        return cell["training"]
    # Files of version 0.1 hold sentences instead.
    sentences = cell.get("statuses") or [cell[k] for k in ("status",) if k in cell]
    return [_from_sentence(sentence) for sentence in sentences]


def _from_sentence(sentence: str) -> dict[str, Any]:
    made = re.search(r"(?:Finished|after) (\d+)", sentence)
    finished = sentence.startswith("Finished")
    steps = {"steps": int(made[1])} if made else {}
    return {"status": "finished" if finished else "nonfinite", **steps}


@dataclasses.dataclass
class Results:
    """The cells of one experiment at one scale, and the file that holds them."""

    experiment: str
    scale: str
    path: Path
    cells: dict[str, dict[str, Any]]
    # Stored with the cells that are added from now on.
    remark: str = ""

    @staticmethod
    def open(path: Path, experiment: str, scale: str, seed: int) -> "Results":
        """Reads the file, or starts an empty one; refuses another scale or seed."""
        if not path.exists():
            return Results(experiment, scale, path, {})
        found = read(path, experiment)
        if found.scale != scale:
            raise FileError(
                f"{path} holds results of --scale {found.scale}; choose another --out "
                f"for {scale}."
            )
        others = found.seeds - {seed}
        if others:
            raise FileError(
                f"{path} holds results of --seed {others.pop()}; choose another --out "
                f"for --seed {seed}."
            )
        return found

    def accepts(self, found: "Results", seed: int) -> None:
        """Refuses cells of another scale or seed."""
        if found.scale != self.scale:
            raise FileError(
                f"{found.path} holds results of --scale {found.scale} and cannot be "
                f"merged into {self.scale}."
            )
        others = found.seeds - {seed}
        if others:
            raise FileError(
                f"{found.path} holds results of --seed {others.pop()} and cannot be "
                f"merged into those of --seed {seed}."
            )

    def merge(self, found: "Results", seed: int) -> int:
        """Copies cells that are missing here from another file; returns how many."""
        self.accepts(found, seed)
        new = {
            name: cell for name, cell in found.cells.items() if name not in self.cells
        }
        if new:
            self.cells.update(new)
            self.save()
        return len(new)

    @property
    def seeds(self) -> set[Any]:
        """The seeds of all records."""
        return {record.get("seed") for record in self.records()}

    def add(self, name: str, cell: dict[str, Any]) -> None:
        """Stores a finished cell, with the remark if there is one."""
        self.cells[name] = cell | ({"remark": self.remark} if self.remark else {})
        self.save()

    def save(self) -> None:
        """Writes the file atomically."""
        head = {
            "format": FORMAT,
            "experiment": self.experiment,
            "scale": self.scale,
        }
        lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in head.items()]
        # One cell a line, so that files can be read and compared.
        cells = [
            f"    {json.dumps(name)}: {json.dumps(cell)}"
            for name, cell in sorted(self.cells.items())
        ]
        body = ",\n".join(cells)
        lines.append(f'  "cells": {{\n{body}\n  }}')
        text = "{\n" + ",\n".join(lines) + "\n}\n"
        write_bytes(self.path, text.encode())

    def records(self, **wanted: Any) -> Iterator[dict[str, Any]]:
        """The records whose fields have the values asked for."""
        for cell in self.cells.values():
            for record in cell["records"]:
                if all(record.get(k) == v for k, v in wanted.items()):
                    yield record

    def find(self, **wanted: Any) -> dict[str, Any] | None:
        """The first record with these values, or None."""
        return next(self.records(**wanted), None)


def read(path: Path, experiment: str) -> Results:
    """Reads a result file of `experiment`."""
    try:
        content = json.loads(path.read_text())
        cells = content["cells"]
        if not all(_is_cell(cell) for cell in cells.values()):
            raise ValueError("the records of a cell must be a list of mappings")
        right = content["experiment"] == experiment and content["format"] <= FORMAT
        scale = str(content["scale"])
    except FileNotFoundError:
        raise FileError(f"There is no result file {path}.") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"{path} cannot be read ({reason}).") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FileError(
            f"{path} is not a result file of pushforward; move it away or choose "
            "another directory."
        ) from None
    if not right:
        raise FileError(
            f"{path} does not hold results of {experiment!r} that this version reads."
        )
    return Results(experiment, scale, path, cells)


def _is_cell(cell: Any) -> bool:
    records = cell["records"]
    return isinstance(records, list) and all(isinstance(r, dict) for r in records)


def prepare(
    out: Path,
    experiment: str,
    scale: str,
    seed: int,
    merge: Iterable[Path],
    say: Callable[[str], None],
    check: Callable[[Results], None] = lambda found: None,
    remark: str = "",
) -> Results:
    """Opens or creates the result file in `out` and merges other files into it.

    Args:
        out: the directory, which is created.
        experiment: the name of the experiment, and of the file.
        scale: the scale of the run.
        seed: the seed of the run.
        merge: result files whose cells are copied.
        say: receives one line for every file merged.
        check: raises if a file does not fit; called before anything is written.
        remark: stored with every cell that is added.
    """
    results = Results.open(out / f"{experiment}.json", experiment, scale, seed)
    adopted = [read(path, experiment) for path in merge]
    for found in (results, *adopted):
        check(found)
        results.accepts(found, seed)
    make_folder(out)
    for found in adopted:
        say(f"{results.merge(found, seed)} cells copied from {found.path}.")
    results.remark = remark
    return results


def key_for(key: PRNGKeyArray, *parts: str) -> PRNGKeyArray:
    """A key that depends only on `key` and the names."""
    for part in parts:
        key = jax.random.fold_in(key, zlib.crc32(part.encode()))
    return key


def about() -> dict[str, Any]:
    """The device and the versions that a record was made with."""
    device = jax.devices()[0]
    return {
        "device": f"{device.platform}: {device.device_kind}",
        "versions": {
            "pushforward": pf.__version__,
            "jax": jax.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def rounded(value: float, digits: int = 6) -> float | None:
    """Rounds a number for a file; None if it is not finite."""
    value = float(value)
    return float(f"{value:.{digits}g}") if np.isfinite(value) else None
