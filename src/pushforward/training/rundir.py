"""The run directory: config.json, state.safetensors, metrics.jsonl, the sampler.

Every file is written under a temporary name and moved into place. The state is the
truth: metric lines later than it are cut on resume.
"""

import json
import math
from pathlib import Path
from typing import Any

import jax
import safetensors.numpy

from pushforward import _files
from pushforward._version import __version__
from pushforward.errors import FileError
from pushforward.sampler import FORMAT, fill, named_arrays, read_safetensors

CONFIG, STATE, METRICS = "config.json", "state.safetensors", "metrics.jsonl"
SAMPLER = "sampler.safetensors"


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
            for name in (STATE, METRICS, SAMPLER):
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
        if config["format"] > FORMAT:
            raise FileError(
                f"{self.path} was written by a newer pushforward "
                f"({config.get('version')}); this is {__version__}: update it with "
                "pip install -U pushforward."
            )
        return config

    def write_state(self, position: dict[str, Any], tree: Any) -> None:
        """Writes the state of training: `position` (plain numbers) and all arrays."""
        leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(tree))
        arrays = named_arrays(leaves)
        header = {"format": FORMAT, "version": __version__, "kind": "state", **position}
        data = safetensors.numpy.save(arrays, {"pushforward": json.dumps(header)})
        _files.write_bytes(self.path / STATE, data)

    def read_position(self) -> dict[str, Any] | None:
        """Where training stands, or None where no state has been written yet."""
        if not (self.path / STATE).exists():
            return None
        return read_safetensors(self.path / STATE, kind="state")[0]

    def read_state(self, skeleton: Any) -> Any:
        """The arrays of the state, in the shape of `skeleton`."""
        path = self.path / STATE
        _, arrays = read_safetensors(path, kind="state")
        return fill(skeleton, arrays, path)

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Adds a line to metrics.jsonl; JSON has no NaN, so that is written null."""
        path = self.path / METRICS
        row = {k: v if _is_json(v) else None for k, v in row.items()}
        try:
            with open(path, "a") as file:
                file.write(json.dumps(row, allow_nan=False) + "\n")
        except OSError as error:
            raise _files.explain(path, error) from error

    def cut_metrics(self, rows: int) -> list[dict[str, Any]]:
        """Keeps the first `rows` lines, which it returns: the rest is done again."""
        path = self.path / METRICS
        lines = path.read_text().splitlines()[:rows] if path.exists() else []
        _files.write_bytes(path, "".join(f"{line}\n" for line in lines).encode())
        kept = [json.loads(line) for line in lines]
        return [
            {k: math.nan if v is None else v for k, v in row.items()} for row in kept
        ]


def _is_json(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
