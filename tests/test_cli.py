"""The command line: what it does, and the sentence with which it refuses."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.numpy

import pushforward
from pushforward.cli import main
from pushforward.errors import UnfinishedWarning, UsageError
from pushforward.training import Status

MODEL = """
import jax.numpy as jnp
import pushforward as pf

WIDTH = 2.0

def log_density(x):
    return -0.5 * jnp.sum((x / WIDTH) ** 2)

def two_numbers(x):
    return -x**2

def by_name(p):
    return -p["a"] ** 2

def for_three(x):
    return -x @ jnp.eye(3) @ x

def make():
    return pf.Target(log_density, dim=2, names=("a", "b"))

def make_nothing():
    return 5

def make_trouble():
    raise RuntimeError("no data")

target = make()
"""
FIT = ["fit", "my_model.py:log_density", "--dim", "2", "--method", "gaussian"]
SHORT = ["--steps", "20", "--batch-size", "64"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty working directory with a model, and an import system left as it was."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    before = set(sys.modules)
    (tmp_path / "my_model.py").write_text(MODEL)
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(
            sys.modules[name].__file__
        ):
            del sys.modules[name]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of the model, made once."""
    home = tmp_path_factory.mktemp("home")
    (home / "my_model.py").write_text(MODEL)
    old, path = os.getcwd(), sys.path[:]
    os.chdir(home)
    try:
        assert main([*FIT, *SHORT, "--out", "runs/mine", "--quiet"]) == 0
    finally:
        os.chdir(old)
        sys.path[:] = path
        sys.modules.pop("my_model", None)
    return home / "runs" / "mine"


@pytest.fixture
def run(trained, here):
    """A copy of that run to spoil."""
    return Path(shutil.copytree(trained, here / "run")).relative_to(here)


def everything(folder):
    return {
        p.relative_to(folder): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }


@pytest.fixture
def refuse(here, capsys):
    """Runs a command that must be refused: one sentence, status 2, nothing changed."""

    def refuse(*words):
        before = everything(here)
        status = main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert status == 2
        assert out == ""
        assert err.startswith("pushforward: ") and err.endswith((".\n", "?\n"))
        assert err.count("\n") == 1
        assert everything(here) == before
        return err.removeprefix("pushforward: ").strip()

    return refuse


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pushforward {pushforward.__version__}\n"


COMMANDS = ["demo", "fit", "sample", "check", "report", "targets"]


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help(command, capsys):
    words = [] if command is None else [command]
    with pytest.raises(SystemExit) as stop:
        main([*words, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert " ".join(["usage: pushforward", *words]) in text
    # What has no value to show by default shows none.
    for artefact in ("None", "False", "(default: )"):
        assert artefact not in text
    if command is None:
        assert text.split("{")[1].split("}")[0].split(",") == COMMANDS


def test_no_command_is_a_question(capsys):
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 0
    assert "demo" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence", "where"),
    [
        ("fti", "Unrecognized options: fti", ""),
        ("fit", "Missing from pushforward fit: TARGET", "fit "),
        ("fit donut --out", "Missing value for argument '--out'", "fit "),
        ("fit donut --out r --stpes 3", "Perhaps you meant: --steps N", ""),
        ("fit donut --out r --method magic", "choice 'magic' for argument '--method'",
         "fit "),
        ("fit donut --out r --steps 1e3", "--steps: '1e3' is not a whole number.", ""),
        ("sample r -n many --out x.npy", "'many' is not a whole number.", ""),
        ("sample r --out x.npy", "Missing from pushforward sample: -n N", "sample "),
    ],
)  # fmt: skip
def test_what_cannot_be_parsed(words, sentence, where, here, capsys):
    """Explained by tyro, in a frame: what is wrong, and which help to read."""
    before = everything(here)
    with pytest.raises(SystemExit) as stop:
        main(words.split())
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    said = " ".join(re.sub(r"\x1b\[[0-9;]*m|[│─╭╮╰╯]", " ", err).split())
    assert sentence in said and said.endswith(f"pushforward {where}--help")
    assert everything(here) == before


def test_targets_lists_them_all(capsys):
    assert main(["targets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(pushforward.targets.names())
    assert lines[0].split()[0] == "name"


@pytest.mark.once
@pytest.mark.parametrize("word", ["targets", "--help"])
def test_a_reader_that_has_read_enough(word):
    pipe = subprocess.PIPE
    words = [sys.executable, "-m", "pushforward", word]
    child = subprocess.Popen(words, stdout=pipe, stderr=pipe)
    assert child.stdout is not None
    child.stdout.close()
    _, complaint = child.communicate(timeout=120)
    assert (child.returncode, complaint) == (0, b"")


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("dounut", "There is no built-in target 'dounut'; did you mean 'donut'?"),
        ("donut --dim 3", "donut has 2 coordinates; leave --dim out."),
        ("other.py:f --dim 2", "There is no file other.py."),
        ("other:f --dim 2", "There is no module 'other'; a file is named with its"),
        ("my_model.py", "Say which function of my_model.py it is, as in my_model.py:"),
        ("my_model.py:log_densty --dim 2", "did you mean 'log_density'?"),
        ("my_model:WIDTH", "my_model:WIDTH is neither a function of one point nor a"),
        ("my_model.py:log_density", "Say how many coordinates my_model.py:log_density"),
        ("my_model.py:log_density --dim 0", "dim must be a whole number of at least 1"),
        ("my_model.py:make --dim 3", "my_model.py:make has 2 coordinates;"),
        ("my_model.py:make_nothing", "should make a Target, and it made a int;"),
        (
            "my_model.py:make_trouble",
            "my_model.py:make_trouble raised RuntimeError: no data (my_model.py, line "
            "26, in make_trouble).",
        ),
        (
            "my_model.py:two_numbers --dim 2",
            "returned an array of shape (2,), and must",
        ),
        (
            "my_model.py:for_three --dim 2",
            "(my_model.py, line 17, in for_three): dim is 2; is that the number of",
        ),
        (
            "my_model.py:by_name --dim 1",
            "in by_name): parameters with names need a Target with example= instead of",
        ),
        ("donut --seed -1", "--seed must lie between 0 and 2^32 - 1, and is -1."),
        ("donut --steps 0", "steps must be a whole number of at least 1, not 0."),
        ("donut --batch-size 0", "batch_size must be a whole number of at least 1"),
    ],
)
def test_targets_that_cannot_be_fitted(target, sentence, refuse):
    assert sentence in refuse("fit", *target.split(), "--out", "runs/new")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("reproduce toy2d --scale smoke", "toy2d, covertype or mnist"),
        ("report --results x", "report"),
        ("sample digits", "digits"),
    ],
)
def test_commands_of_earlier_versions(old, new, refuse):
    said = refuse(*old.split())
    assert said.endswith(f"from a checkout of the repository, use python -m "
                         f"reproduction {new}.")  # fmt: skip


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (
            "import jax\nimport not_installed\n",
            "cannot be imported: it raised ModuleNotFoundError: No module named "
            "'not_installed' (broken.py, line 2, in <module>).",
        ),
        ("def f(:\n", "it raised SyntaxError: invalid syntax (broken.py, line 1)."),
    ],
)
@pytest.mark.parametrize("name", ["broken.py:f", "broken:f"])
def test_a_file_that_cannot_be_imported(name, source, sentence, refuse, here):
    (here / "broken.py").write_text(source)
    text = refuse("fit", name, "--dim", "2", "--out", "r")
    assert text.startswith(name.removesuffix(":f"))
    assert sentence in text


def test_tracebacks_on_request(monkeypatch):
    monkeypatch.setenv("PUSHFORWARD_TRACEBACK", "1")
    with pytest.raises(UsageError):
        main(["fit", "dounut", "--out", "r"])


def test_fit_says_what_to_do_next(monkeypatch, capsys):
    asked = {}

    def fit(key, target, method, **options):
        asked.update(options, target=target, method=method)
        return SimpleNamespace(status=Status.FINISHED, message="Finished.")

    monkeypatch.setattr(pushforward, "fit", fit, raising=False)
    words = ["fit", "my_model:target", "--method", "kl", "--steps", "7", "--out", "r"]
    assert main(words) == 0
    assert asked["target"].names == ("a", "b")
    assert asked["method"] == pushforward.methods.KL()
    assert asked["steps"] == 7 and asked["progress"] and not asked["resume"]
    assert asked["spec"]["target"] == "my_model:target"
    out = capsys.readouterr().out
    assert "Finished.\n" in out and "pushforward check r --trust\n" in out
    assert main([*words, "--quiet", "--resume"]) == 0
    assert asked["resume"] and not asked["progress"]
    assert capsys.readouterr().out == ""


def test_an_interrupted_fit_says_how_to_go_on(monkeypatch, capsys):
    def stop(*arguments, **options):
        warnings.warn("Stopped by Ctrl-C.", UnfinishedWarning, stacklevel=2)
        return SimpleNamespace(status=Status.INTERRUPTED, message="Stopped by Ctrl-C.")

    monkeypatch.setattr(pushforward, "fit", stop, raising=False)
    assert main(["fit", "donut", "--out", "r"]) == 130
    assert capsys.readouterr() == ("", "Stopped by Ctrl-C.\n")
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "pushforward: interrupted.\n"

    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(pushforward, "fit", interrupt, raising=False)
    assert main(["fit", "donut", "--out", "r"]) == 130
    assert capsys.readouterr().err == "pushforward: interrupted.\n"


def test_a_run_holds_what_it_needs(trained):
    names = {p.name for p in trained.iterdir()}
    assert {"config.json", "state.safetensors", "sampler.safetensors"} <= names
    spec = json.loads((trained / "config.json").read_text())["target"]["spec"]
    assert spec["target"] == "my_model.py:log_density" and spec["dim"] == 2


def test_an_output_path_that_is_taken(run, refuse):
    text = refuse(*FIT, *SHORT, "--out", run)
    assert text.startswith("run already holds a run; pass resume=True (--resume)")
    assert "run/config.json" in refuse(*FIT, *SHORT, "--out", f"{run}/config.json")
    assert "my_model.py/run" in refuse(*FIT, *SHORT, "--out", "my_model.py/run")


def test_resume_refuses_another_run(run, refuse, here):
    again = [*SHORT, "--out", run, "--resume"]
    assert "another key" in refuse(*FIT, *again, "--seed", "5")
    other = ["fit", "my_model.py:log_density", "--dim", "2", "--method", "kl"]
    assert "the method 'gaussian' and cannot" in refuse(*other, *again)
    (here / "my_model.py").write_text(MODEL.replace("WIDTH = 2.0", "WIDTH = 3.0"))
    assert "The target is not the one this run" in refuse(*FIT, *again)


def test_sample_writes_the_draws_of_the_sampler(run, capsys):
    assert main(["sample", str(run), "-n", "500", "--out", "draws.npy"]) == 0
    assert capsys.readouterr().out == "500 draws are in draws.npy.\n"
    import jax

    expected = pushforward.load(run).sample(jax.random.key(1), 500)
    np.testing.assert_array_equal(np.load("draws.npy"), expected)
    # The one file of the sampler is enough.
    shutil.copy(run / "sampler.safetensors", "mine.pf")
    words = ["sample", "mine.pf", "-n", "500", "--out", "again.npy", "--quiet"]
    assert main(words) == 0
    assert capsys.readouterr() == ("", "")
    np.testing.assert_array_equal(np.load("again.npy"), expected)


class Payload:
    """Unpickled, it writes a file."""

    def __reduce__(self):
        return Path.write_text, (Path("pwned"), "")


def test_files_that_cannot_be_read(run, refuse, here):
    to = ["-n", "10", "--out", "draws.npy"]
    assert refuse("sample", "none", *to) == "There is no file none."
    (here / "empty").mkdir()
    assert refuse("sample", "empty", *to) == "There is no run in empty."
    whole = (run / "sampler.safetensors").read_bytes()
    for size in (0, 5, 100, len(whole) - 1):
        (here / "cut.pf").write_bytes(whole[:size])
        text = refuse("sample", "cut.pf", *to)
        assert text.startswith("cut.pf is truncated or is not a pushforward file")
    (here / "text.pf").write_text("a text that somebody wrote")
    assert "is not a pushforward" in refuse("sample", "text.pf", *to)
    (here / "code.pf").write_bytes(pickle.dumps(Payload()))
    assert "is not a pushforward" in refuse("sample", "code.pf", *to)
    foreign = safetensors.numpy.save({"weight": np.zeros(3)}, {"format": "pt"})
    (here / "foreign.pf").write_bytes(foreign)
    assert refuse("sample", "foreign.pf", *to) == (
        "foreign.pf is not a pushforward sampler file."
    )
    with safetensors.safe_open(run / "sampler.safetensors", "numpy") as file:
        header = json.loads(file.metadata()["pushforward"])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    header.update(format=99, version="9.0")
    newer = safetensors.numpy.save(arrays, {"pushforward": json.dumps(header)})
    (here / "newer.pf").write_bytes(newer)
    assert "was written by a newer pushforward (9.0)" in refuse(
        "sample", "newer.pf", *to
    )


def test_a_run_that_is_not_finished(run, refuse):
    (run / "sampler.safetensors").unlink()
    text = refuse("sample", run, "-n", "10", "--out", "draws.npy")
    assert text.startswith(
        "The run in run is not finished; repeat its fit command with"
    )


def test_draws_that_cannot_be_written(run, refuse, here):
    (here / "draws.npz").write_text("precious")
    text = refuse("sample", run, "-n", "10", "--out", "draws.txt")
    assert text.startswith("Draws are written as .npy, .npz, .csv, ")
    assert refuse("sample", run, "-n", "10", "--out", "no/draws.npz") == (
        "no/draws.npz cannot be written, for there is no folder no; make it, or choose "
        "another place."
    )
    assert refuse("sample", run, "-n", "-4", "--out", "draws.npz") == (
        "The number of draws must be a whole number of at least 0, or a tuple of them, "
        "not -4."
    )


@pytest.mark.parametrize(
    ("outcome", "status"), [("passed", 0), ("failed", 1), ("inconclusive", 3)]
)
def test_check_answers_by_its_exit_status(outcome, status, run, monkeypatch, capsys):
    class Verdict:
        def __init__(self):
            self.outcome = outcome

        def __str__(self):
            return "a verdict"

        def to_dict(self):
            return {"outcome": outcome}

    asked = {}

    def check(key, target, sampler, **options):
        asked.update(options, target=target, sampler=sampler)
        return Verdict()

    monkeypatch.setattr(pushforward, "check", check, raising=False)
    bounded = ["--max-evaluations", "9000"]
    assert main(["check", str(run), "--trust", "-n", "700", *bounded]) == status
    assert capsys.readouterr().out == "a verdict\n"
    assert asked["max_evaluations"] == 9000
    assert asked["n"] == 700 and asked["target"].dim == asked["sampler"].dim == 2
    assert main(["check", str(run), "--trust", "--json"]) == status
    assert json.loads(capsys.readouterr().out) == {"outcome": outcome}


def test_check_finds_the_density_again(trained, monkeypatch, here, refuse):
    found = []

    def check(key, target, sampler, **options):
        found.append(target)
        return SimpleNamespace(outcome="passed")

    monkeypatch.setattr(pushforward, "check", check, raising=False)
    # From another directory: the run remembers where it was started.
    (here / "my_model.py").unlink()
    assert main(["check", str(trained), "--trust"]) == 0
    assert main(["check", str(trained), "--target", "gaussian"]) == 0
    assert [t.names for t in found] == [("x[0]", "x[1]"), ("x", "y")]


def test_check_needs_a_density(run, refuse, here):
    shutil.copy(run / "sampler.safetensors", "mine.pf")
    text = refuse("check", "mine.pf")
    assert text.startswith("mine.pf does not remember what it was trained for; say so ")
    assert refuse("check", "none") == "There is no run or file none."
    assert "is not a pushforward file" in refuse("check", "my_model.py")
    text = refuse("check", run, "--target", "student_t")
    assert text.endswith("name the target that it was trained for.")
    config = json.loads((run / "config.json").read_text())
    config["target"]["spec"]["folder"] = str(here)
    del config["checksum"]
    (run / "config.json").write_text(json.dumps(config))
    (here / "my_model.py").write_text(MODEL.replace("WIDTH = 2.0", "WIDTH = 3.0"))
    text = refuse("check", run, "--trust")
    assert text.startswith("my_model.py:log_density is no longer the density this run")
    for spec in (None, "mine", {}):
        config["target"]["spec"] = spec
        (run / "config.json").write_text(json.dumps(config))
        assert "run does not remember what" in refuse("check", run)
    (run / "config.json").write_text("{")
    assert "is damaged" in refuse("check", run)


def test_the_page_of_a_run(run, capsys):
    few = ["-n", "200", "--max-evaluations", "60000"]
    assert main(["report", str(run), "--trust", *few]) == 0
    out = capsys.readouterr().out
    assert f"Page:     {run / 'report.html'}" in out
    numbers = json.loads((run / "report.json").read_text())
    assert out.startswith(numbers["verdict"]["outcome"])
    assert numbers["training"]["message"].startswith("Finished 20 steps")
    assert numbers["title"] == "my_model.py:log_density in 2 dimensions"


def test_pages_that_cannot_be_written(run, refuse):
    assert "written as .html" in refuse("report", run, "--trust", "--out", "page.pdf")
    assert "pass --trust" in refuse("report", run)
    assert "There is no run or file" in refuse("report", "nowhere")


def test_a_demo_ends_with_what_to_type_next(trained, monkeypatch, capsys, here):
    class Verdict:
        outcome = "passed"

        def __str__(self):
            return "passed: a verdict"

    fit = SimpleNamespace(
        status=Status.FINISHED,
        message="Finished.",
        sampler=pushforward.load(trained),
    )
    monkeypatch.setattr(pushforward, "fit", lambda *a, **k: fit, raising=False)
    monkeypatch.setattr(pushforward, "check", lambda *a, **k: Verdict(), raising=False)
    monkeypatch.setattr("pushforward.cli.DEMO_SPEED", 1000)
    assert main(["demo", "--out", "new/demo"]) == 0
    out = capsys.readouterr().out
    assert "passed: a verdict" in out and "draws a second" in out
    assert "pushforward sample new/demo/donut.pf -n 1000000 --out draws.npz" in out
    assert (here / "new/demo/donut.png").read_bytes().startswith(b"\x89PNG")
    assert pushforward.load(here / "new/demo/donut.pf").dim == 2


@pytest.mark.once
def test_as_its_own_program(here):
    done = subprocess.run(
        [sys.executable, "-m", "pushforward", "fit", "my_model.py:two_numbers",
         "--dim", "2", "--out", "runs/new"],
        capture_output=True,
        text=True,
        timeout=120,
        # The first command that keeps programs says so.
        env={**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "0"},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("pushforward: Your log_density returned an array of")
    assert done.stderr.count("\n") == 1
    assert not (here / "runs").exists()


@pytest.mark.once
def test_as_a_module():
    program = [sys.executable, "-m", "pushforward"]
    pipe = {"capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run([*program, "--version"], **pipe)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"pushforward {pushforward.__version__}\n"
    done = subprocess.run([*program, "fit", "--help"], **pipe)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: pushforward fit ")
