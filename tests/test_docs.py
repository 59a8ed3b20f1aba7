"""The documentation: its programs run, public names are in it, links lead somewhere.

Long pages run with the slow tests; every name that a program takes from the package is
looked up with the fast ones.
"""

import ast
import importlib
import os
import re
import subprocess
import sys
import types
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import pushforward as pf

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
QUICK = Path(__file__).parent / "quick"
# A block stands still where such a comment before it says why.
BLOCK = re.compile(
    r"(?:<!-- not run: (?P<why>.+?) -->\n)?^```python\n(?P<text>.*?)^```", re.M | re.S
)
ROOMS = ("", "targets", "networks", "objectives", "methods", "mcmc", "diagnostics",
         "bridges", "plot", "errors")  # fmt: skip
# Quick enough for every day.
FAST = ("explanations/ksd.md",)


def blocks(path: Path) -> list[str]:
    """The programs of a page that are run."""
    found = BLOCK.finditer(path.read_text("utf-8"))
    return [match["text"] for match in found if match["why"] is None]


def name(path: Path) -> str:
    return path.relative_to(DOCS).as_posix()


PAGES = [path for path in sorted(DOCS.rglob("*.md")) if blocks(path)]


def test_most_pages_have_programs():
    assert {name(page).split("/")[0] for page in PAGES} >= {
        "index.md", "guides", "explanations",
    }  # fmt: skip
    assert len(PAGES) >= 14


def run(text: str, folder: Path) -> None:
    path = [str(QUICK), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "MPLBACKEND": "agg",
    }
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=folder, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if name(page) in FAST else pytest.mark.slow)
        for page in PAGES
    ],
    ids=name,
)
def test_page_runs(page, tmp_path):
    """The programs of a page, one after the other, with training cut short."""
    run("\n".join(blocks(page)), tmp_path)


def _chain(node: ast.AST) -> str | None:
    """`pf.methods.DFT` for the attribute that it is; None for other expressions."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(names)])


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_names_in_programs_exist(page):
    for text in blocks(page):
        chains = map(_chain, ast.walk(ast.parse(text)))
        for chain in {c for c in chains if c and c.startswith("pf.")}:
            value = pf
            for part in chain.split(".")[1:]:
                value = getattr(value, part)


def _module(room: str) -> types.ModuleType:
    return importlib.import_module(pf.__name__) if not room else getattr(pf, room)


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_is_documented(room):
    module = _module(room)
    dotted = f"pushforward.{room}" if room else "pushforward"
    text = (DOCS / "api" / f"{room or 'index'}.md").read_text("utf-8")
    said = set(re.findall(rf"^(?:::: |`){dotted}\.(\w+)", text, re.M))
    modules = {n for n in module.__all__ if isinstance(getattr(module, n), type(ast))}
    if room:
        modules = set()
    assert said == set(module.__all__) - modules
    assert modules <= {*ROOMS, "constraints", "symmetries"}


def test_every_room_has_a_page():
    rooms = {n for n in pf.__all__ if isinstance(getattr(pf, n), types.ModuleType)}
    assert rooms - {"constraints", "symmetries"} == set(ROOMS) - {""}
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    for page in DOCS.rglob("*.md"):
        assert name(page) in navigation, f"{name(page)} is in no menu"


# The built site.


class _Page(HTMLParser):
    """The links of a page, what it loads, and the places in it."""

    def __init__(self, path: Path):
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.places = {""}
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attributes):
        found = {k: v or "" for k, v in attributes}
        self.places |= {found.get("id", ""), found.get("name", "")}
        if tag == "a":
            self.links.append(found.get("href", ""))
        elif "src" in found or (tag == "link" and "href" in found):
            self.loaded.append(found.get("src") or found["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="the site needs mkdocs: make docs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return {path.resolve(): _Page(path) for path in folder.rglob("*.html")}


@pytest.mark.slow
def test_links_lead_somewhere(site):
    broken = []
    for path, page in site.items():
        # What is shown for an address that does not exist has absolute links.
        if path.name == "404.html":
            continue
        for link in (*page.links, *page.loaded):
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto", "data"):
                continue
            there = (path.parent / unquote(parts.path)).resolve()
            there = path if not parts.path else there
            there = there / "index.html" if there.is_dir() else there
            known = there in site and unquote(parts.fragment) in site[there].places
            if not (known or (there.exists() and there not in site)):
                broken.append(f"{path.name}: {link}")
    assert not broken


@pytest.mark.slow
def test_the_site_needs_no_network(site):
    for path, page in site.items():
        for link in page.loaded:
            assert urlsplit(link).scheme in ("", "data"), f"{path.name} loads {link}"
