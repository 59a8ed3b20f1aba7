"""How large the package is, beside an earlier commit.

    python benchmarks/sizes.py
    python benchmarks/sizes.py --before 719ac5a --out results/sizes.json
    python benchmarks/sizes.py --render

The first two measure the commit `--before` and the files as they lie here, write the
result file, and put its table into docs/regression.md; the last only does that. It
counts

- lines of `src/pushforward`, docstrings and blank lines included, by room; the core is
  all but `bridges/` and `report/`;
- the modules of the package that the first tour of its README imports (a fit of few
  steps, draws, their densities where the version has them, a check, a file), and the
  lines of these modules;
- the fields of `methods.DFT()`, and those of its parts with them;
- public functions and methods, and those of them that lack an annotation of an
  argument or of the result;
- the dependencies of an installation without extras;
- the size of the wheel, which pip builds, or uv where there is no pip.
"""

import argparse
import ast
import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "results" / "sizes.json"
PAGE = ROOT / "docs" / "regression.md"
# Between these the table stands on the page.
BEGIN, END = "<!-- sizes: begin -->", "<!-- sizes: end -->"
BEFORE = "719ac5a"
NOT_CORE = ("bridges", "report", "reporting")
# The first tour of the README, shorter. Names of today are used where they exist.
TOUR = """
import dataclasses, json, sys, tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import pushforward as pf


def log_density(x):
    r = jnp.sqrt(jnp.sum(x**2) + 1e-12)
    return -((r - 2.5) ** 2) / 0.5


target = pf.Target(log_density, dim=2)
fit = pf.fit(jax.random.key(0), target, steps=20, progress=False)
sampler = fit.sampler
draws = sampler.sample(jax.random.key(1), 1000)
if hasattr(sampler, "sample_and_log_prob"):
    sampler.sample_and_log_prob(jax.random.key(2), 1000)
print(pf.check(jax.random.key(3), target, draws))
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "donut.pf"
    sampler.save(path)
    pf.load(path)

files = {
    name: module.__file__
    for name, module in sys.modules.items()
    if name.split(".")[0] == "pushforward" and getattr(module, "__file__", None)
}


def count(part):
    if not dataclasses.is_dataclass(part):
        return 0
    values = [getattr(part, f.name) for f in dataclasses.fields(part)]
    return len(values) + sum(map(count, values))


method = pf.methods.DFT()
fields = [len(dataclasses.fields(method)), count(method)]
print()
print(json.dumps({"files": files, "fields": fields, "version": pf.__version__}))
"""


def count_lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def by_room(package: Path) -> dict[str, int]:
    """Lines of each folder of the package and of each module beside them."""
    rooms: dict[str, int] = {}
    for path in sorted(package.rglob("*.py")):
        first, *inside = path.relative_to(package).parts
        name = f"{first}/" if inside else first
        rooms[name] = rooms.get(name, 0) + count_lines(path)
    return rooms


def public_functions(package: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions and methods of public modules and classes, without dunder methods."""
    for path in sorted(package.rglob("*.py")):
        if any(part.startswith("_") for part in path.relative_to(package).parts[:-1]):
            continue
        if path.name.startswith("_") and not path.name.startswith("__"):
            continue
        yield from _public_in(ast.parse(path.read_text("utf-8")))


def _public_in(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for each in getattr(node, "body", ()):
        if getattr(each, "name", "_").startswith("_"):
            continue
        if isinstance(each, ast.ClassDef):
            yield from _public_in(each)
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield each


def lacks_annotation(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether the result or an argument, but for self and cls, is not annotated."""
    given = function.args
    arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    arguments += [a for a in (given.vararg, given.kwarg) if a is not None]
    arguments = [a for a in arguments if a.arg not in ("self", "cls")]
    return function.returns is None or any(a.annotation is None for a in arguments)


def take_tour(root: Path) -> dict:
    """What a fresh process says that takes the tour with this checkout."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", TOUR],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(root / "src")},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise SystemExit(f"The tour failed with {root}:\n{done.stderr}")
    found = json.loads(done.stdout.splitlines()[-1])
    package = root / "src" / "pushforward"
    foreign = [
        f for f in found["files"].values() if not Path(f).is_relative_to(package)
    ]
    assert not foreign, f"imported from elsewhere: {foreign}"
    return found


def wheel_bytes(root: Path) -> int:
    """The size of the wheel of a checkout."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["uv", "build", "--quiet", "--wheel", "--out-dir", folder]
        if importlib.util.find_spec("pip"):
            command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
            command += ["--wheel-dir", folder]
        subprocess.run([*command, str(root)], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        return wheel.stat().st_size


def measure(root: Path) -> dict:
    """The sizes of a checkout."""
    package = root / "src" / "pushforward"
    rooms = by_room(package)
    total = sum(rooms.values())
    tour = take_tour(root)
    functions = list(public_functions(package))
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    return {
        "version": tour["version"],
        "lines": total,
        "core_lines": total - sum(rooms.get(f"{name}/", 0) for name in NOT_CORE),
        "lines_by_room": rooms,
        "tour_modules": len(tour["files"]),
        "tour_lines": sum(count_lines(Path(f)) for f in tour["files"].values()),
        "dft_fields": tour["fields"][0],
        "dft_fields_with_parts": tour["fields"][1],
        "public_functions": len(functions),
        "public_functions_without_annotations": sum(map(lacks_annotation, functions)),
        "dependencies": len(project["dependencies"]),
        "wheel_bytes": wheel_bytes(root),
    }


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def measure_commit(commit: str) -> dict:
    """The sizes of an earlier commit, whose files are laid out for it."""
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "checkout.tar"
        _git("archive", f"--output={archive}", commit)
        root = Path(folder) / "checkout"
        with tarfile.open(archive) as files:
            files.extractall(root, filter="data")
        return {"commit": commit, **measure(root)}


ROWS = {
    "lines": "lines of `src/pushforward`",
    "core_lines": "lines of the core: without `bridges/` and `report/`",
    "tour_modules": "modules that the README's first tour imports",
    "tour_lines": "lines of these modules",
    "dft_fields": "fields of `methods.DFT()`",
    "dft_fields_with_parts": "the same, with the fields of its parts",
    "public_functions": "public functions and methods",
    "public_functions_without_annotations": "of them, with an annotation missing",
    "dependencies": "hard dependencies",
    "wheel_bytes": "bytes of the wheel",
}


def table(result: dict) -> str:
    """The two measurements as a table."""
    before, after = result["before"], result["after"]
    lines = [
        f"| | {before['commit']} | now |",
        "| --- | ---: | ---: |",
    ]
    for name, words in ROWS.items():
        lines.append(f"| {words} | {before[name]:,} | {after[name]:,} |")
    rooms = [each["lines_by_room"] for each in (before, after)]
    for name in sorted({*rooms[0], *rooms[1]}):
        old, new = (f"{room[name]:,}" if name in room else "–" for room in rooms)
        lines.append(f"| lines of `{name}` | {old} | {new} |")
    return "\n".join(lines)


def with_table(page: str, result: dict) -> str:
    """The page with this table between its marks."""
    head, rest = page.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n{table(result)}\n{END}{tail}"


def main() -> None:
    """Measures, and renders what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--before", default=BEFORE, metavar="COMMIT")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--render", action="store_true", help="only render the table")
    arguments = parser.parse_args()
    if not arguments.render:
        before = measure_commit(arguments.before)
        here = _git("describe", "--always", "--dirty").strip()
        result = {"before": before, "after": {"commit": here, **measure(ROOT)}}
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    result = json.loads(arguments.out.read_text("utf-8"))
    PAGE.write_text(with_table(PAGE.read_text("utf-8"), result), "utf-8")
    print(table(result))


if __name__ == "__main__":
    main()
