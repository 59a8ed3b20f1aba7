"""Sections that the pages of all experiments have."""

from pathlib import Path

from reproduction.common.results import Results
from reproduction.common.tables import broken_down


def test_training_that_stopped_early_is_named():
    done, frozen = ({"status": s, "steps": 900} for s in ("finished", "frozen"))
    # As files of version 0.1 have it.
    said = "Training stopped after 1200 steps: no."
    cells = {
        "dft|ours|donut": {"training": [done]},
        "dft|ours|funnel": {"training": [frozen]},
        "dft|ours|mog2": {"status": said},
        "dft|ours|banana": {"status": "Finished 9 steps in 1 s.", "statuses": []},
        "kl|ours": {"training": [done, frozen, done]},
        "ld|50 steps|donut": {},
    }
    results = Results("toy2d", "full", Path("none"), cells)
    section = broken_down(results, lambda name: name.replace("|", ", "))
    lines = [line for line in section.splitlines() if line.startswith("- ")]
    assert lines == [
        "- dft, ours: frozen after 900 steps on `funnel`, after 1,200 steps on `mog2`.",
        "- kl, ours: frozen after 900 steps (1 of 3).",
    ]
    del cells["dft|ours|funnel"], cells["dft|ours|mog2"], cells["kl|ours"]
    assert broken_down(results, str) == ""
