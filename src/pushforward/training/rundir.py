"""The run directory: config.json, state.safetensors, metrics.jsonl, the sampler.

Every file is written under a temporary name and moved into place. The state is the
truth: metric lines later than it are cut on resume. How the last call of `fit` ended is
in ending.json, for people and for the page of a run.
"""

import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pushforward import _files, _io
from pushforward.errors import FileError
from pushforward.training.loop import NOT_ENDED, PATIENCE, RunState

# What the engine counts beside the state of a learner, by the names of version 1.
_RENAMED_1 = {
    ".step": "step",
    ".count": "count",
    ".skipped": "nonfinite_total",
    ".streak": "nonfinite_in_a_row",
}


def _upgrade_state_1(header: dict[str, Any], arrays: _io.Arrays):
    """Arrays had the names of attributes, and no callback could end a run."""
    named = {}
    for name, value in arrays.items():
        if name.startswith(".sums["):
            named[f"sums.{name[7:-2]}"] = value
        elif name.startswith(".state"):
            named[f"learner.{name.removeprefix('.state').removeprefix('.')}"] = value
        else:
            named[_RENAMED_1[name]] = value
    broken = named["nonfinite_in_a_row"] >= PATIENCE
    named["ended"] = np.where(broken, named["step"], NOT_ENDED).astype(np.int32)
    return header, named


def _upgrade_config_1(header: dict[str, Any], arrays: _io.Arrays):
    """Methods were flat tables of fields, and `train` had entries of its own."""
    fields = dict(header.get("method") or header["task"])
    data = {"kind": "data", "checksum": header.get("data")}
    kept = {k: v for k, v in header.items() if k not in ("task", "data")}
    about = {"name": fields.pop("kind").lower(), OF_0_1: fields}
    more = {"method": about, "steps": fields["steps"]}
    return {**kept, **more, "target": header.get("target", data)}, arrays


# Under it stands what an upgraded config of version 0.1 said of its method.
OF_0_1 = "of_version_0_1"
STATE_FORMAT = _io.Format("state", 2, {1: _upgrade_state_1})
CONFIG_FORMAT = _io.Format("config", 2, {1: _upgrade_config_1})
CONFIG, STATE, METRICS = "config.json", "state.safetensors", "metrics.jsonl"
SAMPLER, ENDING = "sampler.safetensors", "ending.json"


class RunDirectory:
    """One run on disk."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def exists(self) -> bool:
        """Whether a run has been started here."""
        return (self.path / CONFIG).exists()

    def create(self, config: dict[str, Any]) -> None:
        """Starts a run: the directory and its config."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for name in (STATE, METRICS, SAMPLER, ENDING):
                (self.path / name).unlink(missing_ok=True)
        except OSError as error:
            raise _files.explain(self.path, error) from error
        self.write_config(config)

    def write_config(self, config: dict[str, Any]) -> None:
        """Writes the config."""
        _files.write_json(self.path / CONFIG, config)

    def read_config(self) -> dict[str, Any]:
        """The config of the run."""
        path = self.path / CONFIG
        try:
            config = json.loads(path.read_text())
        except FileNotFoundError:
            raise FileError(
                f"There is no run in {self.path} ({CONFIG} is missing)."
            ) from None
        except (OSError, ValueError) as error:
            raise FileError(
                f"{path} is damaged and cannot be read ({error})."
            ) from error
        if not isinstance(config, dict) or not isinstance(config.get("format"), int):
            raise FileError(f"{path} is not the config of a pushforward run.")
        return _io.upgrade(path, config, {}, CONFIG_FORMAT)[0]

    def write_state(self, position: dict[str, Any], state: RunState) -> None:
        """Writes the state of training: `position` (plain numbers) and all arrays."""
        arrays = array_names(jax.device_get(state))
        _io.write(self.path / STATE, STATE_FORMAT, position, arrays)

    def read_position(self) -> dict[str, Any] | None:
        """Where training stands, or None where no state has been written yet."""
        if not (self.path / STATE).exists():
            return None
        return _io.read(self.path / STATE, STATE_FORMAT)[0]

    def read_state(self, skeleton: RunState) -> RunState:
        """The arrays of the state, in the shape of `skeleton`."""
        path = self.path / STATE
        _, arrays = _io.read(path, STATE_FORMAT)
        return _io.restore(skeleton, arrays, path, array_names)

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Adds a line to metrics.jsonl; JSON has no NaN, so that is written null."""
        path = self.path / METRICS
        row = {k: v if _is_json(v) else None for k, v in row.items()}
        try:
            with open(path, "a") as file:
                file.write(json.dumps(row, allow_nan=False) + "\n")
        except OSError as error:
            raise _files.explain(path, error) from error

    def write_ending(self, ending: dict[str, Any]) -> None:
        """Writes how a call of `fit` ended, as plain names and numbers."""
        plain = {k: v if _is_json(v) else None for k, v in ending.items()}
        _files.write_json(self.path / ENDING, plain)

    def read_ending(self) -> dict[str, Any]:
        """What `write_ending` wrote; nothing where it has not been written."""
        path = self.path / ENDING
        if not path.exists():
            return {}
        try:
            ending = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise FileError(
                f"{path} is damaged and cannot be read ({error}); without it the run "
                "can be used as before, so delete it."
            ) from error
        return ending if isinstance(ending, dict) else {}

    def read_metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl, or none where it has not been written."""
        path = self.path / METRICS
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        try:
            return _rows(lines)
        except ValueError as error:
            raise FileError(
                f"{path} is damaged and cannot be read ({error})."
            ) from error

    def cut_metrics(self, rows: int) -> list[dict[str, Any]]:
        """Keeps the first `rows` lines, which it returns: the rest is done again."""
        path = self.path / METRICS
        lines = path.read_text().splitlines()[:rows] if path.exists() else []
        _files.write_bytes(path, "".join(f"{line}\n" for line in lines).encode())
        return _rows(lines)


def _rows(lines: list[str]) -> list[dict[str, Any]]:
    kept = [json.loads(line) for line in lines]
    return [{k: math.nan if v is None else v for k, v in row.items()} for row in kept]


def _is_json(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def array_names(state: RunState) -> dict[str, Any]:
    """The arrays of a state by their names in a file.

    Those of the learner, which may be of any classes, have their paths for names.
    """
    return {
        "step": state.step,
        "count": state.count,
        "nonfinite_total": state.nonfinite_total,
        "nonfinite_in_a_row": state.nonfinite_in_a_row,
        "ended": state.ended,
        "complete": state.complete,
        **_io.with_prefix("sums", state.sums),
        **_io.with_prefix("learner", _io.by_path(state.state)),
    }
