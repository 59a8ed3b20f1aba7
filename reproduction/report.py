"""The pages and figures of all result files in a directory."""

from pathlib import Path

from pushforward.errors import FileError
from reproduction.common import results as result_files
from reproduction.common.files import make_folder, write_bytes
from reproduction.covertype import figures as covertype_figures
from reproduction.covertype import page as covertype
from reproduction.mnist import figures as mnist_figures
from reproduction.mnist import page as mnist
from reproduction.toy2d import figures as toy2d_figures
from reproduction.toy2d import page as toy2d

# How each experiment's page is written and its figures are drawn.
EXPERIMENTS = {
    "toy2d": (toy2d.page, toy2d_figures.figures),
    "covertype": (covertype.page, covertype_figures.figures),
    "mnist": (mnist.page, mnist_figures.figures),
}


def render(results: Path, out: Path) -> list[Path]:
    """Renders the page and the figures of every experiment found in `results`."""
    found = [name for name in EXPERIMENTS if (results / f"{name}.json").exists()]
    if not found:
        raise FileError(
            f"There is no result file in {results}; make one with python -m "
            f"reproduction toy2d --out {results}."
        )
    read = {n: result_files.read(results / f"{n}.json", n) for n in found}
    make_folder(out)
    made = []
    for name, result in read.items():
        text, figures = EXPERIMENTS[name]
        write_bytes(out / f"{name}.md", text(result).encode())
        made += [out / f"{name}.md", *figures(result, out)]
    return made
