"""The rendered page and the result files agree."""

from pathlib import Path

import pytest

from pushforward.report.pages import benchmarks_page

ROOT = Path(__file__).parents[1]


@pytest.mark.once
def test_the_page_is_what_the_files_say():
    assert (ROOT / "docs" / "benchmarks.md").read_text() == benchmarks_page(
        ROOT / "results"
    )
