"""The first experiment at its smallest scale, its result files, its page."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import pushforward
from pushforward.errors import FileError
from pushforward.networks import AffineMap
from pushforward.targets.preconditioner import Preconditioner
from pushforward.targets.structure import Structure
from pushforward.training.history import History
from reproduction.__main__ import main
from reproduction.common.cost import compiling
from reproduction.common.results import Results, read
from reproduction.common.settings import choose_groups
from reproduction.report import render
from reproduction.toy2d import page as report
from reproduction.toy2d import run as toy2d
from reproduction.toy2d import settings
from reproduction.toy2d.run import still_falling

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]
FIELDS = (
    "experiment target method setting metric value n seed steps seconds device versions"
)


def reproduce(out, *words):
    words = ["toy2d", "--scale", "smoke", "--out", str(out), *words]
    return subprocess.run(
        [sys.executable, "-m", "reproduction", *words],
        cwd=ROOT,
        # Compiling well takes longer than the few steps that are made.
        env={**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """The result directory, and what the command said in each of its three runs."""
    out = tmp_path_factory.mktemp("toy2d")
    first = reproduce(out, "--methods", "ld", "--remark", "made first.")
    runs = [first, reproduce(out), reproduce(out)]
    for run in runs:
        assert run.returncode == 0, run.stdout + run.stderr
    return out, [run.stdout for run in runs]


def test_every_cell_is_there_and_says_all_about_itself(smoke):
    results = read(smoke[0] / "toy2d.json", "toy2d")
    groups = settings.groups(settings.scale("smoke"))
    names = {name for group in groups for name in group.cells}
    assert set(results.cells) == names
    for name, cell in results.cells.items():
        assert ("remark" in cell) is name.startswith("ld|")
    for record in results.records():
        assert set(FIELDS.split()) <= set(record)
        assert record["versions"]["jax"]
    for record in results.records(metric="sliced_w2"):
        assert record["exact"] > 0 and record["bound"] > record["exact"]


def test_finished_cells_are_not_run_again(smoke):
    first, second, third = smoke[1]
    assert "LD (50 steps)" in first and "DFT" not in first
    assert "LD" not in second and "DFT-NS (ours)" in second
    assert "[" not in third


def test_the_page_and_the_figures(smoke, tmp_path):
    made = render(smoke[0], tmp_path)
    assert [path.name for path in made] == [
        "toy2d.md",
        report.FIGURE_1,
        report.FIGURE_2,
    ]
    page = made[0].read_text()
    results = read(smoke[0] / "toy2d.json", "toy2d")
    shown = results.find(metric="ksd_protocol", method="ld", target="donut")
    assert shown is not None
    assert f"{shown['value']:.3f}".lstrip("0") in page
    for path in made[1:]:
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000


def test_the_page_in_the_repository_is_what_its_file_says():
    results = read(ROOT / "results" / "toy2d.json", "toy2d")
    page = ROOT / "docs" / "results" / "toy2d.md"
    assert page.read_text() == report.page(results)


def test_what_was_not_measured_alone_is_marked():
    results = read(ROOT / "results" / "toy2d.json", "toy2d")
    names = [name for name in results.cells if name.startswith("steingan|paper|")]
    cells = {name: {**results.cells[name]} for name in names}
    plain = report.page(Results("toy2d", "full", Path("a.json"), cells))
    assert "## Remarks" not in plain and "(14.2) |" in plain
    for cell in cells.values():
        cell["remark"] = "made on a train."
    marked = report.page(Results("toy2d", "full", Path("a.json"), cells))
    # Six cells with the same remark are one line.
    assert "## Remarks\n\n- SteinGAN, paper: made on a train.\n" in marked
    assert "(14.2)* |" in marked


def test_the_swings_of_the_last_evaluations(smoke):
    results = read(smoke[0] / "toy2d.json", "toy2d")
    cell = results.cells["dft|paper|donut"]
    cell["curve"] = [[[1, 9.0, 0.1], *([i, 0.5 + 0.01 * i, 0.1] for i in range(20))]]
    # What came before the last twenty is not looked at.
    assert "| .50 to .69 |" in report.page(results)
    cell["curve"][0][-1][1] = None
    assert "| .50 to .69 |" not in (page := report.page(results))
    assert "| not finite |" in page


def test_what_the_readme_says_about_it():
    found = report.floors(read(ROOT / "results" / "toy2d.json", "toy2d"))
    reached = {name: len(found[name, "ours"][0]) for name in ("recipe", "kl", "flow")}
    assert set(reached.values()) == {6}
    assert {len(found[name, "ours"][0]) for name in ("dft", "fisher")} == {5}
    text = " ".join((ROOT / "README.md").read_text().split())
    claim = (
        "Reverse KL (`Transport`), KL and a coupling flow reach what exact draws score"
    )
    assert f"{claim} on all six; DFT and Fisher training on five." in text


def test_result_files_are_merged(tmp_path):
    one = Results.open(tmp_path / "a.json", "toy2d", "smoke", 3)
    two = Results.open(tmp_path / "b.json", "toy2d", "smoke", 3)
    one.add("x", {"records": [{"metric": "m", "value": 1, "seed": 3}]})
    two.add("x", {"records": []})
    two.add("y", {"records": [{"metric": "m", "value": 2, "seed": 3}]})
    assert one.merge(two, 3) == 1
    again = Results.open(tmp_path / "a.json", "toy2d", "smoke", 3)
    assert [r["value"] for r in again.records(metric="m")] == [1, 2]
    other = Results.open(tmp_path / "c.json", "toy2d", "cpu", 3)
    with pytest.raises(FileError, match="--scale smoke and cannot be merged into cpu"):
        other.merge(one, 3)
    with pytest.raises(FileError, match="choose another --out for cpu"):
        Results.open(tmp_path / "a.json", "toy2d", "cpu", 3)


def test_a_result_file_has_one_seed(tmp_path, capsys):
    old, new = tmp_path / "old" / "toy2d.json", tmp_path / "new"
    old.parent.mkdir()
    records = [{"metric": "m", "value": 1, "seed": 3}]
    Results("toy2d", "smoke", old, {}).add("x", {"records": records})
    before = old.read_bytes()
    words = ["toy2d", "--scale", "smoke", "--seed", "4", "--out"]
    assert main([*words, str(old.parent)]) == 2
    said = capsys.readouterr().err
    assert "holds results of --seed 3; choose another --out for --seed 4." in said
    assert main([*words, str(new), "--merge", str(old)]) == 2
    assert "cannot be merged into those of --seed 4." in capsys.readouterr().err
    assert old.read_bytes() == before and not new.exists()


def test_what_ctrl_c_left_half_trained_is_not_kept(tmp_path, monkeypatch, capsys):
    asked = []

    def interrupted(keys, *arguments, **options):
        asked.append(len(keys))
        status = pushforward.Status.INTERRUPTED
        return [SimpleNamespace(status=status, seconds=1.0) for _ in keys]

    monkeypatch.setattr(pushforward, "fit_many", interrupted, raising=False)
    words = ["toy2d", "--scale", "smoke", "--methods", "dft"]
    assert main([*words, "--out", str(tmp_path)]) == 130
    assert len(asked) == 1
    assert "interrupted" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_cell_keeps_what_its_own_fits_said(tmp_path, monkeypatch):
    def finished(keys, *arguments, **options):
        whitening, structure = Preconditioner.identity(2), Structure.vector(2)
        sampler = pushforward.Sampler(AffineMap(2), whitening, structure)
        history = History([{"made": 1, "ksd": 0.1, "ksd_sd": 0.0}])
        return [
            pushforward.Fit(
                sampler=sampler,
                status=pushforward.Status.FINISHED,
                history=history,
                config={},
                steps=i,
                planned=i,
                nonfinite_steps=0,
                seconds=1.0,
                evaluations=1,
            )
            for i in range(len(keys))
        ]

    monkeypatch.setattr(pushforward, "fit_many", finished, raising=False)
    exact = SimpleNamespace(exact={"ksd_v": np.array([0.1, 0.2])})
    monkeypatch.setattr(toy2d.Bench, "floor", lambda *_: exact)
    results = Results("toy2d", "smoke", tmp_path / "a.json", {})
    bench = toy2d.Bench(settings.scale("smoke"), jax.random.key(0), 0, results)
    method = pushforward.methods.Gaussian(steps=1)
    targets = ("gaussian", "donut")
    bench.run(settings.Group("dft", "figure", method, targets, seeds=2))
    said = [results.cells[f"dft|figure|{name}"] for name in targets]
    steps = [[each["steps"] for each in cell["training"]] for cell in said]
    assert steps == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"cells": 3}',
        '{"cells": {"a": 1}}',
        '{"cells": {"a": {"records": [1]}}}',
    ],
)
def test_a_file_that_is_no_result_file_is_kept_and_refused(text, tmp_path, capsys):
    (tmp_path / "toy2d.json").write_text(text)
    words = ["toy2d", "--scale", "smoke", "--out", str(tmp_path)]
    assert main(words) == 2
    assert "is not a result file of pushforward" in capsys.readouterr().err
    assert (tmp_path / "toy2d.json").read_text() == text


def test_refusals(tmp_path, capsys):
    words = ["toy2d", "--scale", "smoke", "--out"]
    assert main([*words, str(tmp_path), "--methods", "nuts"]) == 2
    assert "There is no method 'nuts' at this scale" in capsys.readouterr().err
    assert main([*words, "/proc/nowhere"]) == 2
    assert "cannot be written" in capsys.readouterr().err
    missing = str(tmp_path / "none.json")
    assert main([*words, str(tmp_path / "new"), "--merge", missing]) == 2
    assert f"There is no result file {missing}." in capsys.readouterr().err
    folder = str(tmp_path)
    assert main([*words, str(tmp_path / "new"), "--merge", folder]) == 2
    assert f"{folder} cannot be read (" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    assert main(["report", "--results", str(tmp_path / "none")]) == 2
    assert "There is no result file in" in capsys.readouterr().err


def test_the_papers_figures():
    """Three cells of the paper's table, read off by eye."""
    assert settings.paper("dft", "ours", "funnel") == (0.081, 0.009)
    assert settings.paper("svgd", "500 steps", "gaussian") == (0.013, 0.001)
    assert settings.paper("fisher", "paper", "funnel") == (7.837, 1.614)
    assert settings.paper("dft", settings.FIVE, "donut") == (0.1, 0.013)
    assert settings.paper("ld", "50 steps", settings.REPLAY) == (0.387, 0.033)
    assert settings.paper("recipe", "ours", "funnel") is None
    assert settings.paper("dft", "w1 = 0.5", "donut") is None


def test_still_falling():
    steps = range(1, 101)
    noise = np.random.default_rng(0).normal(0, 0.01, 100)
    flat = [(s, 0.1 + e, 0.02) for s, e in zip(steps, noise, strict=True)]
    falling = [(s, 10 / s + e, 0.02) for s, e in zip(steps, noise / 10, strict=True)]
    assert not still_falling(flat) and still_falling(falling)
    assert not still_falling([(1, float("nan"), 0.1)] * 100)
    assert not still_falling(flat[:2])


def test_compilation_is_counted():
    with compiling() as counted:
        jax.jit(lambda x: x * 3.25 + 0.125)(1.0)
    seconds = counted.seconds
    assert seconds > 0
    jax.jit(lambda x: x * 5.25 + 0.375)(1.0)
    assert counted.seconds == seconds


def test_a_cell_is_a_line(tmp_path):
    results = Results.open(tmp_path / "a.json", "toy2d", "smoke", 0)
    for name in "ab":
        results.add(name, {"records": [{"metric": "m"}]})
    text = (tmp_path / "a.json").read_text()
    assert len([line for line in text.splitlines() if '"records"' in line]) == 2
    assert json.loads(text)["scale"] == "smoke"


def test_one_setting_of_a_method_can_be_asked_for():
    groups = settings.groups(settings.scale("full"))
    chosen = choose_groups(["dft|paper", "hmc"], groups)
    assert {group.name for group in chosen if group.method == "dft"} == {"dft|paper"}
    assert sum(group.method == "hmc" for group in chosen) == 4
    assert choose_groups([], groups) == groups
