"""The rendered page of benchmarks and the result files agree."""

from pathlib import Path

import pytest

from benchmarks.render import benchmarks_page, energy_step

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
    page = " ".join(energy_step(result).split())
    assert "a further step takes **1.02 times** as long" in page
    assert "paid once, 1.10 times. The step runs at **40 %**" in page
    assert "alone, run at 50 to 50 %" in page
