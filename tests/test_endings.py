"""How the command line and a training end: statuses, streams, signals, trust."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import pushforward as pf
from pushforward import methods
from pushforward.cli import main
from pushforward.errors import FileError
from pushforward.targets import naming
from pushforward.training import runner

pytestmark = pytest.mark.once

TINY = methods.Gaussian(steps=20, batch_size=8, particles=16)
PROGRAM = [sys.executable, "-m", "pushforward"]


def said(capsys):
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err.removeprefix("pushforward: ").strip()


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    return tmp_path


def started(spec):
    """A run that names this density, without any training."""
    from pushforward.training.rundir import RunDirectory

    directory = RunDirectory("run")
    config = {
        "format": 2, "version": "9", "steps": 5, "key": [0, 0],
        "method": {"name": "gaussian"},
        "target": {"kind": "Target", "dim": 2, "spec": spec, "fingerprint": []},
    }  # fmt: skip
    directory.create(config)
    directory.release()


@pytest.mark.parametrize(
    "name", ["evil.py:make", "evil:make", "{here}/evil.py:make", "os:abort", "evil.py"]
)
def test_a_strangers_run_runs_nothing(name, here, capsys):
    model = "from pathlib import Path\nPath('ran').touch()\ndef make(): pass\n"
    (here / "evil.py").write_text(model)
    started({"target": name.format(here=here), "dim": None, "folder": str(here)})
    assert main(["check", "run"]) == 2
    assert "runs its code; if you trust" in said(capsys)
    assert not (here / "ran").exists() and "evil" not in sys.modules


def test_a_spec_of_another_kind(here, capsys):
    for spec in ({"target": "a.py:b", "folder": 5}, {"target": "gaussian", "dim": "x"}):
        started(spec)
        assert main(["check", "run", "--trust"]) == 2
        assert "is damaged" in said(capsys)
        (here / "run" / "config.json").unlink()


@pytest.mark.parametrize(
    "model",
    [
        "import sys\nsys.exit()",
        "import sys\ndef make():\n    sys.exit(0)",
        "import sys\ndef make(x):\n    sys.exit(0)",
    ],
)
def test_a_model_that_ends_the_program(model, here, capsys):
    (here / "leaving.py").write_text(model)
    try:
        words = ["fit", "leaving.py:make", "--out", "r", "--dim", "2", "--quiet"]
        assert main(words) == 2
        assert "SystemExit" in (line := said(capsys)) or "sys.exit" in line
    finally:
        sys.modules.pop("leaving", None)
    assert not (here / "r").exists()


def test_a_run_that_names_a_function_that_ends_the_program(here, capsys):
    started({"target": "sys:exit", "dim": None, "folder": str(here)})
    assert main(["check", "run"]) == 2
    capsys.readouterr()
    assert main(["check", "run", "--trust"]) == 2
    assert "sys:exit raised SystemExit" in said(capsys)


def test_a_module_that_raises_when_it_is_asked(here):
    source = "def __getattr__(name):\n    raise ValueError('no')"
    (here / "asked.py").write_text(source)
    try:
        with pytest.raises(pf.errors.UsageError, match="raised ValueError: no"):
            naming.target_from_spec("asked.py:f", 2)
    finally:
        sys.modules.pop("asked", None)


def test_a_mistake_of_ours_has_a_status_of_its_own(here, capsys, monkeypatch):
    def broken(*arguments, **options):
        return {}["no such\nname"]

    monkeypatch.setattr(pf, "load", broken, raising=False)
    (here / "a.pf").touch()
    words = ["sample", "a.pf", "-n", "3", "--out", "a.npy"]
    # The test's own function would be the user's code.
    monkeypatch.setattr("pushforward._user_errors.location", lambda error: "")
    assert main(words) == 4
    line = said(capsys)
    assert line.startswith("internal error: KeyError: ") and "report it" in line
    monkeypatch.setenv("PUSHFORWARD_TRACEBACK", "1")
    with pytest.raises(KeyError):
        main(words)


def test_the_users_own_mistake_is_not_ours(here, capsys, monkeypatch):
    def broken(*arguments, **options):
        raise ValueError("mine")

    monkeypatch.setattr(pf, "load", broken, raising=False)
    (here / "a.pf").touch()
    assert main(["sample", "a.pf", "-n", "3", "--out", "a.npy"]) == 2
    assert said(capsys).startswith("Your code raised ValueError: mine (test_endings.py")


def test_what_a_file_holds_does_not_reach_the_terminal(here, capsys):
    (here / "a\x1b[2Jb.pf").write_bytes(b"")
    assert main(["sample", "a\x1b[2Jb.pf", "-n", "3", "--out", "a.npy"]) == 2
    assert "\x1b" not in said(capsys)


def test_help_tells_the_statuses(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "2 what was asked for cannot be done" in text


def spoken(redirection, *words, **environment):
    """A command under a shell's redirection: its status, and what it said."""
    line = " ".join(["exec", *PROGRAM, *words, redirection])
    done = subprocess.run(
        ["bash", "-c", line],
        env={**os.environ, **environment},
        capture_output=True,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr.decode()


def test_output_that_cannot_be_written():
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    status, _, complaint = spoken("> /dev/full", "targets")
    assert status == 2 and complaint == (
        "pushforward: The output cannot be written (No space left on device); write it "
        "elsewhere.\n"
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams(closed):
    status, _, complaint = spoken(closed, "targets")
    assert (status, complaint) == (0, "")


def test_a_directory_that_is_gone(tmp_path, monkeypatch, capsys):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["targets"]) == 2
    assert said(capsys).startswith("The working directory is not there any more")


def test_an_encoding_without_ticks():
    script = "from pushforward import _streams; _streams.prepare(); print('✓ ✗ … ü')"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, b"+ x ... ?\n")


def signal_after(monkeypatch, count, number):
    """Sends a signal to the process after so many chunks."""
    advance, calls = runner.advance, []

    def counted(*arguments):
        calls.append(1)
        if len(calls) == count:
            signal.raise_signal(number)
        return advance(*arguments)

    monkeypatch.setattr(runner, "advance", counted)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_leaves_a_run_that_can_go_on(name, here, monkeypatch):
    number = getattr(signal, name)
    target = pf.targets.get("gaussian")
    seen = []
    before = signal.signal(number, lambda *arguments: seen.append(arguments[0]))
    try:
        with monkeypatch.context() as patch, pytest.warns(pf.errors.UnfinishedWarning):
            signal_after(patch, 5, number)
            fit = pf.fit(jax.random.key(3), target, TINY, out="run", progress=False)
        # What there was before is called once the run is saved, and stays.
        assert seen == [number] and signal.getsignal(number) is not runner
        assert 0 < fit.steps < 20
        assert fit.status is pf.Status.INTERRUPTED
    finally:
        signal.signal(number, before)
    whole = pf.fit(jax.random.key(3), target, TINY, out="whole", progress=False)
    rest = pf.fit(
        jax.random.key(3), target, TINY, out="run", resume=True, progress=False
    )
    assert rest.finished
    draws = [f.sampler.sample(jax.random.key(0), 10) for f in (whole, rest)]
    assert jnp.array_equal(*draws)


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_ends_a_command_after_its_checkpoint(
    name, status, here, monkeypatch, capsys
):
    signal_after(monkeypatch, 5, getattr(signal, name))
    words = ["fit", "gaussian", "--method", "gaussian", "--steps", "40", "--out", "run"]
    before = signal.getsignal(getattr(signal, name))
    assert main([*words, "--batch-size", "8", "--quiet"]) == status
    assert said(capsys) == (
        f"stopped by {name}; what it had learnt by then is in run: to continue, "
        "repeat the command with --resume."
    )
    assert signal.getsignal(getattr(signal, name)) is before
    assert (here / "run" / "state.safetensors").exists()
    monkeypatch.undo()
    os.chdir(here)
    assert main([*words, "--batch-size", "8", "--quiet", "--resume"]) == 0


def test_what_is_ignored_stays_so(here, monkeypatch):
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        signal_after(monkeypatch, 3, signal.SIGHUP)
        target = pf.targets.get("gaussian")
        assert pf.fit(jax.random.key(3), target, TINY, progress=False).steps == 20
    finally:
        signal.signal(signal.SIGHUP, before)


def test_two_that_begin_in_one_directory(here):
    """The second finds it out when it comes to make the directory its own."""
    from pushforward.training.rundir import RunDirectory

    first, second = RunDirectory("run"), RunDirectory("run")
    config = {"format": 2, "method": {"name": "a"}, "steps": 5}
    first.create(config)
    with pytest.raises(FileError, match="Another process is training in run"):
        second.create(config)
    first.release()
    with pytest.raises(FileError, match="which another process began just now"):
        second.create(config)
    assert json.loads(Path("run/config.json").read_text())["steps"] == 5
