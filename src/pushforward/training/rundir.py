"""The run directory: config.json, state.safetensors, metrics.jsonl, the sampler.

Every file is written under a temporary name and moved into place. The state is the
truth: it holds its own position, and metric lines later than it are cut on resume. One
process at a time trains in a directory, which the lock on it sees to. How the last call
of `fit` ended is in ending.json, for people and for the page of a run.
"""

import dataclasses
import json
import math
import os
import zlib
from pathlib import Path
from typing import Any, TypeGuard

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


# What a config may take up at most, and metrics: more is no file of ours.
_MOST_CONFIG, _MOST_METRICS = 2**26, 2**31
# Where the metrics of a run stand that were damaged.
_ASIDE = "metrics.damaged.jsonl"
# The largest number in a position: whatever is counted is counted in 32 bits.
_MOST = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Position:
    """Where training stands, as the header of a state says it.

    Attributes:
        stage: always 0; earlier versions trained in several stages.
        step: how many steps were made.
        steps: how many were to be made.
        rows: how many rows of metrics there were.
        rows_checksum: of their lines; None in states from before there was one.
        seconds: how long it took so far.
        called: at which step the callback was last called; None in states of version
            0.1.
        affordable: the most steps that the budget of evaluations pays for; None where
            there is no budget.
    """

    stage: int
    step: int
    steps: int
    rows: int
    rows_checksum: int | None
    seconds: float
    called: int | None
    affordable: int | None = None


class RunDirectory:
    """One run on disk."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        # The directory, held open as long as it is locked.
        self._handle: int | None = None
        # Of the lines in metrics.jsonl.
        self._rows, self._rows_checksum = 0, 0

    def exists(self) -> bool:
        """Whether a run has been started here."""
        return (self.path / CONFIG).exists()

    def lock(self) -> None:
        """Keeps other processes from training here, until `release` or the end.

        The system frees the lock when the process ends, however it ends. On a file
        system without locks nothing is kept.
        """
        if self._handle is not None or os.name == "nt":
            return
        try:
            handle = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise _files.explain(self.path, error) from error
        if _files.lock(handle) is False:
            os.close(handle)
            raise FileError(
                f"Another process is training in {self.path}; wait until it ends, or "
                "choose another directory."
            )
        self._handle = handle
        _files.sweep(self.path)

    def release(self) -> None:
        """Lets others train here."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def create(self, config: dict[str, Any]) -> None:
        """Starts a run: the directory, locked, and its config."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock()
            if self.exists():
                raise FileError(
                    f"{self.path} already holds a run, which another process began "
                    "just now; choose another directory."
                )
            for name in (SAMPLER, STATE, METRICS, ENDING):
                if (self.path / name).exists():
                    raise FileError(
                        f"{self.path} holds {name} and no run that it belongs to; move "
                        "that file elsewhere, or choose another directory."
                    )
        except OSError as error:
            raise _files.explain(self.path, error) from error
        self.write_config(config)

    def write_config(self, config: dict[str, Any]) -> None:
        """Writes the config, readable JSON, with its checksum."""
        whole = {**config, _io.CHECKSUM: _io.checksum(config, {})}
        data = (json.dumps(whole, indent=2) + "\n").encode()
        _files.write_bytes(self.path / CONFIG, data, follow=False)

    def read_config(self) -> dict[str, Any]:
        """The config of the run."""
        path = self.path / CONFIG
        if not path.exists():
            raise FileError(f"There is no run in {self.path} ({CONFIG} is missing).")
        try:
            config = _io.parse(_files.read_bytes(path, _MOST_CONFIG))
        except ValueError as error:
            if isinstance(error, FileError):
                raise
            raise FileError(
                f"{path} is damaged and cannot be read ({error})."
            ) from error
        if not isinstance(config, dict) or not isinstance(config.get("format"), int):
            raise FileError(f"{path} is not the config of a pushforward run.")
        _io.check_version(path, config, CONFIG_FORMAT)
        _io.require_checksum(
            path,
            config,
            {},
            "restore it from a copy or, if you edited it yourself, remove the entry "
            f"{_io.CHECKSUM!r} from it.",
        )
        config.pop(_io.CHECKSUM, None)
        config = _io.upgrade(path, config, {}, CONFIG_FORMAT)[0]
        if not _is_config(config):
            raise FileError(
                f"{path} is damaged: it does not say what the run is; restore it from "
                "a copy, or start a new run."
            )
        return config

    def write_state(self, position: dict[str, Any], state: RunState) -> None:
        """Writes the state of training: all arrays, and where it stands.

        Args:
            position: plain numbers; what the state and the metrics know is added.
            state: the state.
        """
        arrays = array_names(jax.device_get(state))
        whole = {
            **position,
            "step": int(arrays["step"]),
            "rows": self._rows,
            "rows_checksum": self._rows_checksum,
        }
        _io.write(self.path / STATE, STATE_FORMAT, whole, arrays, follow=False)

    def read_position(self) -> Position | None:
        """Where training stands, or None where no state has been written yet."""
        path = self.path / STATE
        if not path.exists():
            return None
        header, arrays = _io.read(path, STATE_FORMAT)
        counts: list[Any] = [
            header.get(name) for name in ("stage", "step", "steps", "rows")
        ]
        optional = [header.get("called", 0), header.get("rows_checksum", 0)]
        affordable = header.get("affordable")
        seconds: Any = header.get("seconds")
        held = arrays.get("step")
        if not (
            all(_is_count(n) for n in counts)
            and _is_count(optional[0])
            and _is_count(optional[1], 2**32 - 1)
            and (affordable is None or _is_count(affordable))
            and _is_number(seconds)
            and seconds >= 0
        ):
            raise FileError(f"{path} is damaged: it does not say where training stood.")
        stage, step, steps, rows = counts
        agrees = held is not None and held.shape == () and held == step
        if not agrees or step > steps:
            raise FileError(
                f"{path} is damaged: it says that {step} of {steps} steps were made, "
                f"and holds the state after {held}."
            )
        return Position(
            stage,
            step,
            steps,
            rows,
            header.get("rows_checksum"),
            float(seconds),
            header.get("called"),
            affordable,
        )

    def read_state(self, skeleton: RunState) -> RunState:
        """The arrays of the state, in the shape of `skeleton`."""
        path = self.path / STATE
        _, arrays = _io.read(path, STATE_FORMAT)
        return _io.restore(skeleton, arrays, path, array_names)

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Adds a line to metrics.jsonl; JSON has no NaN, so that is written null."""
        path = self.path / METRICS
        row = {k: v if _is_json(v) else None for k, v in row.items()}
        line = json.dumps(row, allow_nan=False) + "\n"
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise _files.explain(path, error) from error
        self._rows += 1
        self._rows_checksum = zlib.crc32(line.encode(), self._rows_checksum)

    def read_metrics(
        self, position: Position | None, learner: str
    ) -> tuple[list[dict[str, Any]], str | None]:
        """The rows up to a position; what is later is done again, and is cut off.

        Lines that cannot be read are dropped, and the file as it was is kept aside.

        Args:
            position: where training goes on; None is its beginning.
            learner: the name of what is trained.

        Returns:
            The rows, and a sentence if not all of them are as they were written.
        """
        path = self.path / METRICS
        wanted, step = (0, 0) if position is None else (position.rows, position.step)
        data = b""
        if path.exists() or path.is_symlink():
            data = _files.read_bytes(path, _MOST_METRICS)
        lines = data.splitlines(keepends=True)[:wanted]
        rows = [_row(line, (learner, step)) for line in lines]
        kept = [line for line, row in zip(lines, rows, strict=True) if row is not None]
        self._rows, self._rows_checksum = len(kept), zlib.crc32(b"".join(kept))
        sentence = self._repaired(position, wanted, data)
        _files.write_bytes(path, b"".join(kept), follow=False)
        return [row for row in rows if row is not None], sentence

    def _repaired(
        self, position: Position | None, wanted: int, data: bytes
    ) -> str | None:
        if position is None:
            return None
        lost = wanted - self._rows
        sums = (position.rows_checksum, self._rows_checksum)
        if not lost and sums[0] in (None, sums[1]):
            return None
        aside = self.path / _ASIDE
        number = 1
        while aside.exists() or aside.is_symlink():
            number += 1
            aside = self.path / f"metrics.damaged.{number}.jsonl"
        _files.write_bytes(aside, data, follow=False)
        what = f"{lost:,} of its {wanted:,} rows cannot be read and are dropped"
        if not lost:
            what = "its rows are not those that were written; they are kept"
        return (
            f"{self.path / METRICS} was damaged: {what}; the file as it was is "
            f"{aside.name}, and training itself is not affected."
        )

    def write_ending(self, ending: dict[str, Any]) -> None:
        """Writes how a call of `fit` ended, as plain names and numbers."""
        plain = {k: v if _is_json(v) else None for k, v in ending.items()}
        data = json.dumps(plain, allow_nan=False).encode()
        _files.write_bytes(self.path / ENDING, data, follow=False)

    def read_ending(self) -> dict[str, Any]:
        """What `write_ending` wrote; nothing where it has not been written."""
        path = self.path / ENDING
        if not path.exists():
            return {}
        try:
            ending = _io.parse(_files.read_bytes(path, _MOST_CONFIG))
        except ValueError as error:
            raise FileError(
                f"{path} is damaged and cannot be read ({error}); without it the run "
                "can be used as before, so delete it."
            ) from error
        return ending if isinstance(ending, dict) else {}

    def metrics(self) -> list[dict[str, Any]]:
        """All rows that can be read; the file stays as it is."""
        path = self.path / METRICS
        if not path.exists():
            return []
        lines = _files.read_bytes(path, _MOST_METRICS).splitlines(keepends=True)
        rows = [_row(line) for line in lines]
        return [row for row in rows if row is not None]


def _is_count(value: Any, most: int = _MOST) -> TypeGuard[int]:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and 0 <= value <= most


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) < math.inf and math.isfinite(float(value))


def _is_config(config: dict[str, Any]) -> bool:
    """Whether the entries that resuming reads are of their kinds."""
    method, key, target = (config.get(name) for name in ("method", "key", "target"))
    prints = target.get("fingerprint", []) if isinstance(target, dict) else None
    return (
        isinstance(method, dict)
        and isinstance(method.get("name"), str)
        and _is_count(config.get("steps"))
        and (key is None or isinstance(key, list))
        and isinstance(prints, list)
        and all(isinstance(x, int | float) for x in prints)
    )


def _row(line: bytes, before: tuple[str, int] | None = None) -> dict[str, Any] | None:
    """A row of metrics from its line, or None if it cannot be one.

    `before` is the name of what is trained, and the last step that it may be of.
    """
    try:
        row = _io.parse(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not line.endswith(b"\n"):
        return None
    name, step = row.get("stage"), row.get("step")
    if not isinstance(name, str) or not _is_count(step):
        return None
    if before is not None and (name != before[0] or step > before[1]):
        return None
    numbers = {k: _number(v) for k, v in row.items() if k != "stage"}
    if any(v is False for v in numbers.values()):
        return None
    return {"stage": name, **numbers}


def _number(value: Any) -> Any:
    """A number as it stands in a row, or several; False where it is none."""
    if value is None:
        return math.nan
    if isinstance(value, list):
        inner = [_number(each) for each in value]
        return False if any(each is False for each in inner) else inner
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if number else False


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
