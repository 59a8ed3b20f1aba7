"""The course of a training: its curves, its reviews, and what was decided."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pushforward.training.history import History

# A page has room for so many reviews.
_REVIEWS = 40
# What has no curve of its own.
_NO_CURVE = ("stage", "step", "seconds", "skipped", "kept")


def describe_training(
    run: dict[str, Any], history: History | None
) -> dict[str, Any] | None:
    """Curves of every column, the reviews, and how training ended."""
    if history is None or not len(history):
        return None
    offsets, stages = _offsets(history), {}
    reviews = [row for row in history.rows if "kept" in row]
    for row in history.rows:
        curves = stages.setdefault(row.get("stage", ""), {})
        at = offsets.get(row.get("stage", ""), 0) + row.get("step", 0)
        for name, value in row.items():
            if name not in _NO_CURVE and isinstance(value, int | float):
                curves.setdefault(name, []).append([at, float(value)])
    return {
        "message": run.get("message"),
        "method": (run.get("config") or {}).get("method", {}).get("name"),
        "stages": [{"name": name, "curves": c} for name, c in stages.items()],
        "reviews": _thinned(reviews, _REVIEWS),
        "decisions": _decisions(history, reviews),
    }


def _offsets(history: History) -> dict[str, int]:
    """The steps made before each stage."""
    last = {row.get("stage", ""): row.get("step", 0) for row in history.rows}
    offsets, total = {}, 0
    for stage, steps in last.items():
        offsets[stage] = total
        total += steps
    return offsets


def _decisions(history: History, reviews: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was decided during training, and why."""
    said = []
    started = next(
        (r for r in history.rows if "forward" in r and "loss" in r and r["loss"] != 0),
        None,
    )
    if started is not None:
        said.append(
            f"By step {started['step']:,} distillation was over: sampler and particles "
            "agreed, more of it no longer helped, or its share of the steps was used. "
            "Reverse KL along the sampler's own draws joined forward KL."
        )
    if not reviews:
        return said
    kept = [row for row in reviews if row["kept"]]
    said.append(
        f"Of {len(reviews)} reviews {len(kept)} kept the weights of that step: "
        "their divergence from held-out particles was no larger than the best before "
        "it."
    )
    if kept:
        last = kept[-1]
        said.append(
            f"The sampler is that of step {last['step']:,}, whose bounds of log Z "
            f"(ELBO and EUBO) were {last['elbo']:.4g} and {last['eubo']:.4g}."
        )
    return said


def _thinned(rows: Sequence[Any], most: int) -> list[Any]:
    if len(rows) <= most:
        return list(rows)
    return [rows[i] for i in np.linspace(0, len(rows) - 1, most).astype(int)]
