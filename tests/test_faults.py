"""A few seconds' worth of the fault campaign, and the page of the whole of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from faults import render

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[1]
# In one process each; the other campaigns have tests of their own elsewhere.
QUICK = ("files", "words")


@pytest.mark.parametrize("name", QUICK)
def test_a_few_seconds_of_the_campaign(name):
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", name, "--scale", "quick"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_is_what_the_file_says():
    assert render.PAGE.read_text() == render.page(json.loads(render.RESULT.read_text()))
