"""The rendered page and the result files agree; sections that all pages have."""

from pathlib import Path

import pytest

from pushforward.experiments.results import Results
from pushforward.report.pages import benchmarks_page, energy_step
from pushforward.report.tables import broken_down

ROOT = Path(__file__).parents[1]


@pytest.mark.once
def test_the_page_is_what_the_files_say():
    assert (ROOT / "docs" / "benchmarks.md").read_text() == benchmarks_page(
        ROOT / "results"
    )


def test_the_section_of_a_training_step():
    step = {
        "bare_ms_a_step": 4.0,
        "tflop_a_second": 200.0,
        "engine_over_bare": 1.1,
        "engine_step_over_bare": 1.02,
    }
    result = {
        "batch_128": step,
        "batch_512": step,
        "forward_tflop_a_second": 1.0,
        "convolution_tflop_a_second": {"a, batch 128": 250.0, "b, batch 1024": 500.0},
        "share_of_best_convolution": 0.4,
        "steps": 10,
        "dtype": "bfloat16",
        "device": "gpu: invented",
        "versions": {"jax": "0"},
    }
    page = energy_step(result)
    assert "a further step takes **1.02 times** as long" in page
    assert "paid once, 1.10 times. The\nstep runs at **40 %**" in page
    assert "alone, run at 50 to 50 %" in page


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
