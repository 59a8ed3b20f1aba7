"""The command line with any words: a status it documents, and one line on stderr."""

import contextlib
import io
import random
import tempfile
from pathlib import Path

import jax

import pushforward as pf
from pushforward import methods
from pushforward.cli import main

from .tally import Tally

# A command that works compiles for a while.
SECONDS = 120.0
MODEL = """
import jax.numpy as jnp, pushforward as pf
def log_density(x): return -0.5 * jnp.sum(x**2)
def make(): return pf.Target(log_density, dim=2)
def broken(x): raise ValueError("mine")
def leaving(x): raise SystemExit(0)
number = 5
"""
COMMANDS = ("fit", "sample", "check", "report", "targets")
TARGETS = (
    "gaussian", "donut", "model.py:log_density", "model.py:make", "model.py:broken",
    "model.py:leaving", "model.py:number", "model.py:", "model.py", ":", "", "..",
    "no.py:f", "os:abort_", "sys:exit", "math:sin", "nope", "model:make", "a\x1b[2J",
)  # fmt: skip
NUMBERS = ("0", "1", "2", "5", "-1", "2.5", "99999999999999999999", "", "x", "1e3", "٣")
PATHS = ("run", "sampler.pf", "model.py", "none", "", ".", "..", "new", "/dev/null",
    "/proc/self/mem", "empty", "link", "x" * 300, "a\nb",
    "run/config.json")  # fmt: skip
FILES = ("a.npy", "a.npz", "a.csv", "a.txt", "", "none/a.npy", "run", "/dev/full",
    "/dev/null", "link.npy", "x" * 300 + ".npy", "/proc/a.npy")  # fmt: skip


def words(dice: random.Random) -> list[str]:
    """A command that might be meant."""
    number, path = dice.choice(NUMBERS), dice.choice(PATHS)
    command = dice.choice(
        ("fit", "fit", "sample", "sample", "check", "report", "targets", "?")
    )
    match command:
        case "fit":
            method = dice.choice(("gaussian", "gaussian", "gaussian", "nope", ""))
            said = ["fit", dice.choice(TARGETS), "--out", path, "--method", method]
            said += ["--steps", dice.choice(("3", number)), "--batch-size", "8"]
        case "sample":
            count = dice.choice(("5", number))
            said = ["sample", path, "-n", count, "--out", dice.choice(FILES)]
        case "check" | "report":
            said = [command, path, "-n", dice.choice(("20", "5", number))]
            said += ["--max-evaluations", dice.choice(("20000", number))]
            if dice.random() < 0.7:
                said += ["--target", dice.choice(TARGETS)]
        case _:
            said = [command]
    for flag in ("--quiet", "--resume", "--trust", "--json", "--seed", "--dim"):
        if dice.random() < 0.15:
            said.append(flag)
            if flag in ("--seed", "--dim"):
                said.append(number)
    if dice.random() < 0.2:
        said.pop(dice.randrange(len(said)))
    if dice.random() < 0.1:
        said.insert(dice.randrange(len(said) + 1), dice.choice(TARGETS + FILES))
    return said


def _prepare(folder: Path) -> None:
    (folder / "model.py").write_text(MODEL)
    (folder / "empty").mkdir()
    target = pf.targets.get("gaussian")
    method = methods.Gaussian(steps=3, batch_size=8, particles=16)
    fit = pf.fit(jax.random.key(0), target, method, out=folder / "run", progress=False)
    fit.sampler.save(folder / "sampler.pf")
    (folder / "link").symlink_to(folder / "nowhere")
    (folder / "link.npy").symlink_to(folder / "elsewhere.npy")


def campaign(seed: int, count: int) -> Tally:
    """Each command in the same process and folder, one after the other."""
    tally, dice = Tally(), random.Random(seed)
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        _prepare(Path(name))
        for _ in range(count):
            said = words(dice)
            out, err = io.StringIO(), io.StringIO()
            status: object = None
            kind = said[0] if said and said[0] in COMMANDS else "no command"
            with (
                tally.guarded(kind, seconds=SECONDS),
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(err),
            ):
                parsed = True
                try:
                    status = main(said)
                except SystemExit as stop:
                    # Of the parser: help, or what it cannot read.
                    status, parsed = stop.code, False
                lines = err.getvalue().splitlines()
                told = f"{said}: status {status}: {err.getvalue()[-300:]}"
                assert status in (0, 1, 2, 3), told
                assert "Traceback" not in err.getvalue(), told
                assert status != 2 or lines, told
                assert status != 2 or not parsed or len(lines) <= 30, told
                assert "\x1b[2J" not in out.getvalue() + err.getvalue(), told
    return tally
