"""The project holds to its own map: pins, versions, who imports whom."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import pushforward

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "pushforward"
MODULES = sorted(PACKAGE.rglob("*.py"))

# From top to bottom: a room may import from itself and from the rooms before it.
ROOMS = (
    "targets",
    "networks",
    "objectives",
    "draws",
    "sampler",
    "numpy_reader",
    "mcmc",
    "diagnostics",
    "methods",
    "training",
    "bridges",
    "reporting",
    "cli",
)
# A fit makes its own page: one lazy import that points up the map.
FORWARDS = {"training/status.py": {"reporting"}}
# These see the package as its users do, through `import pushforward`.
OUTSIDERS = ("cli",)


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def _room(dotted: str) -> str:
    """The room of a module: `pushforward.targets.base` -> `targets`."""
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 else ""


def _is_shared(room: str) -> bool:
    return room == "errors" or room.startswith("_")


def _imports(source: str, package: str) -> set[str]:
    """The rooms that a module of `package` imports from; "" is the package itself.

    Imports inside functions and under TYPE_CHECKING count: a room that must name
    another one knows it, whenever that happens.
    """
    rooms = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                parents = parents[: len(parents) - node.level + 1]
                base = ".".join(parents + ([base] if base else []))
            # `from pushforward import targets, fit` imports from two rooms.
            names = [f"{base}.{a.name}" for a in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "pushforward":
                room = _room(name)
                rooms.add(pushforward._HOME.get(room, room))
    return rooms


def _trespasses(room: str, imported: set[str]) -> set[str]:
    """Which of the imported rooms `room` must not import from."""
    others = {other for other in imported if other != room and not _is_shared(other)}
    if _is_shared(room):
        return others
    if room in OUTSIDERS:
        others.discard("")
    return others - set(ROOMS[: ROOMS.index(room)])


@pytest.mark.parametrize(
    ("package", "line", "expected"),
    [
        ("pushforward", "import jax, numpy.random", set()),
        ("pushforward", "import pushforward as pf", {""}),
        ("pushforward", "from pushforward.targets import Target", {"targets"}),
        ("pushforward", "from pushforward import fit, mcmc", {"training", "mcmc"}),
        ("pushforward", "from pushforward import __version__", {"__version__"}),
        ("pushforward", "def f():\n  import pushforward.cli", {"cli"}),
        ("pushforward.methods", "from . import dft", {"methods"}),
        ("pushforward.methods", "from ..objectives import sliced", {"objectives"}),
        ("pushforward.methods", "from .. import training", {"training"}),
    ],
)
def test_imports_are_read_from_the_source(package, line, expected):
    assert _imports(line, package) == expected


def test_trespasses_are_noticed():
    assert _trespasses("methods", {"targets", "objectives", "errors", "_x"}) == set()
    assert _trespasses("methods", {"training", ""}) == {"training", ""}
    assert _trespasses("targets", {"mcmc"}) == {"mcmc"}
    assert _trespasses("cli", {"", "training"}) == set()
    assert _trespasses("_trees", {"targets", "errors"}) == {"targets"}


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_arrows_point_down_only(path):
    if path.parent == PACKAGE and path.name in ("__init__.py", "__main__.py"):
        return  # the package's face looks at every room
    dotted = ".".join(("pushforward", *path.relative_to(PACKAGE).parts))
    room = _room(dotted.removesuffix(".py"))
    assert room in ROOMS or _is_shared(room), f"{room} is not on the map"
    package = dotted.removesuffix(".py").rpartition(".")[0]
    trespasses = _trespasses(room, _imports(path.read_text("utf-8"), package))
    trespasses -= FORWARDS.get(_name(path), set())
    assert not trespasses, f"{_name(path)} imports from below: {sorted(trespasses)}"


def test_contributing_shows_the_same_map():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    block = text.split("## The map")[1].split("```")[1]
    rooms = [line.split()[0] for line in block.strip().splitlines()]
    assert tuple(r.removesuffix("/").removesuffix(".py") for r in rooms) == ROOMS


def test_the_package_does_not_know_the_reproduction():
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [a.name for a in getattr(node, "names", []) if hasattr(a, "name")]
            module = getattr(node, "module", None) or ""
            assert not any(n.split(".")[0] == "reproduction" for n in [module, *names])


# What only targets/ may look at: other rooms ask a target by its methods.
KINDS = {
    "Target",
    "ScoreTarget",
    "MinibatchTarget",
    "Minibatch",
    "NoiseConditionalTarget",
    "Preconditioned",
    "SwitchTarget",
    "StackedTargets",
}
FLAGS = {
    "has_values",
    "is_noise_conditional",
    "is_stochastic",
    "knowledge",
    "through_minibatches",
}


def _kinds_looked_at(source: str) -> set[str]:
    """The kinds of target that a program tells apart by itself, and their flags."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in FLAGS:
            found.add(node.attr)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id in ("isinstance", "issubclass"):
            names = [n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)]
            names += [
                n.attr for n in ast.walk(node.args[1]) if isinstance(n, ast.Attribute)
            ]
            found |= KINDS & set(names)
    return found


def test_looking_at_a_kind_is_noticed():
    assert _kinds_looked_at("isinstance(t, (int, pf.ScoreTarget))") == {"ScoreTarget"}
    assert _kinds_looked_at("if target.is_stochastic: pass") == {"is_stochastic"}
    assert not _kinds_looked_at("isinstance(t, AbstractTarget); t.noise_range")


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_only_targets_know_their_kinds(path):
    if _room(f"pushforward.{_name(path).replace('/', '.')}") != "targets":
        assert not _kinds_looked_at(path.read_text("utf-8"))


def test_public_names_have_a_home_and_a_place_in_dir():
    lazy = {*pushforward._HOME, *pushforward._ROOMS}
    assert lazy | {"__version__"} == set(pushforward.__all__)
    assert set(pushforward.__all__) <= set(dir(pushforward))
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        _ = pushforward.fitt


@pytest.mark.parametrize("name", sorted(pushforward.__all__))
def test_public_name_can_be_imported(name):
    assert getattr(pushforward, name) is not None


def _constraints() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    return [Requirement(line) for line in lines]


def test_constraints_hold_names_and_versions_only():
    pin = r"[a-z0-9]+(-[a-z0-9]+)*==[0-9][0-9a-z.]*"
    marker = r'(; python_version (<|>=) "3\.\d+")?'
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    assert lines == sorted(lines, key=lambda line: line.split("==")[0])
    for line in lines:
        assert re.fullmatch(pin + marker, line), line


def test_constraints_pin_what_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    declared = project["dependencies"] + project["optional-dependencies"]["dev"]
    for requirement in map(Requirement, declared):
        pins = [
            p for p in _constraints() if p.name == canonicalize_name(requirement.name)
        ]
        assert pins, f"{requirement.name} is not pinned"
        for pin in pins:
            version = next(iter(pin.specifier)).version
            assert version in requirement.specifier, f"{pin} against {requirement}"


def test_version_is_the_same_everywhere():
    version = pushforward.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.search(r"^## \[(.+?)\]", changelog, re.MULTILINE)[1] == version
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {version}\n" in citation


_LOADED = """
import json, sys
sys.argv = ["pushforward", *sys.argv[1:]]
status = 0
if len(sys.argv) == 1:
    import pushforward
    pushforward.targets
    dir(pushforward)
else:
    from pushforward.cli import main
    try:
        status = main()
    except SystemExit as stop:
        status = stop.code
print()
print(json.dumps([status or 0, sorted({name.split(".")[0] for name in sys.modules})]))
"""


@pytest.mark.parametrize("arguments", [[], ["--help"], ["targets"]], ids=" ".join)
def test_light_commands_load_neither_jax_nor_matplotlib(arguments, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _LOADED, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    *printed, last = done.stdout.splitlines()
    status, loaded = json.loads(last)
    assert status == 0
    assert {"jax", "jaxlib", "matplotlib"}.isdisjoint(loaded)
    assert not arguments or "".join(printed).strip()
