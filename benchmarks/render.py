"""Renders docs/benchmarks.md from the files in results/."""

from pathlib import Path

from pushforward.report.pages import benchmarks_page

if __name__ == "__main__":
    root = Path(__file__).parents[1]
    page = root / "docs" / "benchmarks.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text(benchmarks_page(root / "results"))
    print(page)
