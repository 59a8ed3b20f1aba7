"""The rendered pages and the result files agree."""

import ast
import json
from pathlib import Path

import pytest

from benchmarks import regression, sizes
from benchmarks.render import benchmarks_page, energy_step, verdict_page

ROOT = Path(__file__).parents[1]


@pytest.mark.once
def test_the_page_is_what_the_files_say():
    assert (ROOT / "docs" / "benchmarks.md").read_text() == benchmarks_page(
        ROOT / "results"
    )


@pytest.mark.once
def test_the_page_of_the_verdict_is_what_the_file_says():
    result = json.loads((ROOT / "results" / "power.json").read_text("utf-8"))
    assert (ROOT / "docs" / "verdict.md").read_text("utf-8") == verdict_page(result)
    rows = [(r["target"], r["kind"], r["n"], r["seed"]) for r in result["rows"]]
    assert len(set(rows)) == len(rows)
    assert len({tuple(pair) for pair in result["counted"]}) == 40


def test_what_a_verdict_missed_is_named():
    def row(kind, n, outcome, failed):
        p_values = {"extremes": 0.5, "repeats": 0.5}
        return {
            "target": "donut",
            "kind": kind,
            "n": n,
            "seed": 0,
            "outcome": outcome,
            "failed": failed,
            "p_values": p_values,
            "seconds": 1.0,
            "device": "cpu: invented",
            "versions": {"jax": "0"},
        }

    result = {
        "reference": 20_000,
        "counted": [["donut", "cut"], ["donut", "copied"], ["donut", "blurred"]],
        "alike": ["cut"],
        "rows": [
            row("cut", 2000, "failed", ["extremes"]),
            row("copied", 2000, "passed", []),
            row("copied", 500, "inconclusive", []),
            row("exact draws", 2000, "passed", []),
        ],
    }
    page = verdict_page(result)
    assert "| 0 | 2 | 1 | 0 | 1 |" in page
    assert "Not failed: copied of `donut`, seed 0 (passed)." in page
    assert "| cut | · ✗ |" in page
    assert "| `donut` | copied | ? ✓ |" in page
    assert "| `donut` | blurred | · · |" in page
    assert "| extremes | 1 | 1 | 0 |" in page


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


@pytest.mark.once
def test_the_table_of_sizes_is_what_the_file_says():
    page = sizes.PAGE.read_text("utf-8")
    assert page == sizes.with_table(page, json.loads(sizes.RESULT.read_text("utf-8")))


@pytest.mark.once
def test_the_table_of_the_regression_is_what_the_files_say():
    page = regression.PAGE.read_text("utf-8")
    both = (json.loads(path.read_text("utf-8")) for path in regression.RESULTS)
    assert page == regression.with_table(page, *both)


def test_a_missing_annotation_is_noticed(tmp_path):
    source = """
def whole(x: int, *more: int, **rest: int) -> int: ...
def no_result(x: int): ...
def no_argument(x, *, y: int) -> int: ...
def no_rest(*more) -> int: ...
def _private(x): ...
class Open:
    def method(self) -> int: ...
    def other(self, x) -> int: ...
    def _own(self, x): ...
class _Closed:
    def method(self, x): ...
"""
    (tmp_path / "a.py").write_text(source)
    (tmp_path / "_b.py").write_text("def hidden(x): ...")
    found = {
        f.name: sizes.lacks_annotation(f) for f in sizes.public_functions(tmp_path)
    }
    assert found == {
        "whole": False,
        "no_result": True,
        "no_argument": True,
        "no_rest": True,
        "method": False,
        "other": True,
    }


@pytest.mark.once
def test_public_functions_are_annotated():
    package = ROOT / "src" / "pushforward"
    functions = sizes.public_functions(package)
    assert not [ast.unparse(f.args) for f in functions if sizes.lacks_annotation(f)]
