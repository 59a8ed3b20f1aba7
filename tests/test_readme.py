"""The README's Python and shell blocks run as they stand, with training cut short."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

README = Path(__file__).parents[1] / "README.md"
# Its sitecustomize.py cuts training short.
QUICK = Path(__file__).parent / "quick"
BLOCKS = re.findall(r"^```(python|bash)\n(.*?)^```", README.read_text(), re.M | re.S)


def test_there_are_blocks_of_both_kinds():
    assert {kind for kind, _ in BLOCKS} == {"python", "bash"}


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block_runs(number, tmp_path):
    kind, text = BLOCKS[number]
    path = [str(QUICK), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    # Compiling well takes longer than the few steps that are made.
    environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    # The `pushforward` command of this environment, not another one on the path.
    binaries = Path(sys.executable).parent
    environment["PATH"] = f"{binaries}{os.pathsep}{environment['PATH']}"
    command = [sys.executable, "-c", text]
    if kind == "bash":
        command = ["bash", "-euo", "pipefail", "-c", text]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
