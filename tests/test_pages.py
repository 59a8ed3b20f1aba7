"""The rendered page and the result files agree; sections that all pages have."""

from pathlib import Path

import pytest

from pushforward.experiments.results import Results
from pushforward.report.pages import benchmarks_page
from pushforward.report.tables import broken_down

ROOT = Path(__file__).parents[1]


@pytest.mark.once
def test_the_page_is_what_the_files_say():
    assert (ROOT / "docs" / "benchmarks.md").read_text() == benchmarks_page(
        ROOT / "results"
    )


def test_training_that_stopped_early_is_named():
    done = "Finished 9 steps in 1 s. 3 steps were not finite and were skipped."
    frozen = "Training went non-finite; this seed was frozen where it stood."
    cells = {
        "dft|ours|donut": {"status": done},
        "dft|ours|funnel": {"status": frozen},
        "dft|ours|mog2": {"status": "Training stopped after 1200 steps: no."},
        "kl|ours": {"status": done, "statuses": [done, frozen, done]},
        "ld|50 steps|donut": {},
    }
    results = Results("toy2d", "full", Path("none"), cells)
    section = broken_down(results, lambda name: name.replace("|", ", "))
    lines = [line for line in section.splitlines() if line.startswith("- ")]
    assert lines == [
        "- dft, ours: frozen before the end on `funnel`, after 1,200 steps on `mog2`.",
        "- kl, ours: frozen before the end (1 of 3).",
    ]
    del cells["dft|ours|funnel"], cells["dft|ours|mog2"], cells["kl|ours"]
    assert broken_down(results, str) == ""
