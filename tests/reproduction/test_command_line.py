"""The words of `python -m reproduction`."""

import subprocess
import sys
from pathlib import Path

import pytest

from reproduction import report
from reproduction.__main__ import EXPERIMENTS, main

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]


def test_a_seed_that_cannot_be_reproduced_with(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for seed in (-1, 2**32):
        assert main(["toy2d", "--seed", str(seed), "--out", "new"]) == 2
        said = capsys.readouterr().err
        assert said.startswith("reproduction: --seed must lie between 0 and 2^32 - 1")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("toy3d", "invalid choice: 'toy3d'"),
        ("toy2d --scale huge", "Argument --scale: invalid choice: 'huge'"),
        ("mnist --methods", "Argument --methods: expected at least one argument"),
    ],
)
def test_what_cannot_be_parsed(words, sentence, capsys):
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1
    assert "see python -m reproduction" in said


def test_every_experiment_has_a_page():
    assert list(report.EXPERIMENTS) == list(EXPERIMENTS)


def test_it_runs_from_a_checkout():
    done = subprocess.run(
        [sys.executable, "-m", "reproduction", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in (*EXPERIMENTS, "report", "digits"))
