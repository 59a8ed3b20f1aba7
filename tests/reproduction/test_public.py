"""The reproduction sees the package as its users do: by public names alone."""

import ast
import importlib
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "reproduction").rglob("*.py"))


def is_public(name: str) -> bool:
    """Whether `pushforward.a.b` is reached through the `__all__` of each module."""
    parts = name.split(".")
    module = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], start=1):
        inside = ".".join(parts[: i + 1])
        if part.startswith("_") and part != "__version__":
            return False
        if part in getattr(module, "__all__", ()):
            module = getattr(module, part)
        elif i == 1 and (ROOT / "src" / "pushforward" / part).is_dir():
            module = importlib.import_module(inside)
        else:
            return False
    return True


def private_names(source: str) -> set[str]:
    """The names of the package that a program uses and that are not public."""
    tree, aliases, names = ast.parse(source), {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "pushforward":
                    names.add(alias.name)
                    aliases[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module.split(".")[0] == "pushforward":
                for alias in node.names:
                    names.add(f"{module}.{alias.name}")
                    aliases[alias.asname or alias.name] = f"{module}.{alias.name}"
    for node in ast.walk(tree):
        parts, value = [], node
        while isinstance(value, ast.Attribute):
            parts.append(value.attr)
            value = value.value
        if not parts or not isinstance(value, ast.Name) or value.id not in aliases:
            continue
        parts.append(aliases[value.id])
        chain = ".".join(reversed(parts)).split(".")
        # Attributes of classes and functions are theirs; modules have public names.
        for i in range(2, len(chain) + 1):
            here = ".".join(chain[:i])
            names.add(here)
            if not _is_module(here):
                break
    return {name for name in names if not is_public(name)}


def _is_module(name: str) -> bool:
    path = ROOT / "src" / Path(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pushforward as pf\npf.fit\npf.mcmc.nuts\npf.Sampler.stream", set()),
        ("from pushforward import methods\nmethods.DFT(steps=2)", set()),
        ("from pushforward.errors import FileError", set()),
        ("import pushforward as pf\npf._files", {"pushforward._files"}),
        ("import pushforward as pf\npf.mcmc.spread", {"pushforward.mcmc.spread"}),
        (
            "from pushforward.targets.base import Target",
            {"pushforward.targets.base.Target"},
        ),
        ("from pushforward import _version", {"pushforward._version"}),
    ],
)
def test_private_names_are_noticed(source, found):
    assert private_names(source) == found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_only_public_names(path):
    assert not private_names(path.read_text("utf-8"))
