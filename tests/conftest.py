"""Turns the foot-guns of JAX into errors, for every test.

This runs before any test module is imported, and so before JAX starts a device and
before any module of pushforward is loaded.
"""

import gc
import importlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import matplotlib
import pytest
from jaxtyping import install_import_hook

matplotlib.use("agg")

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Compilation is most of the suite's time, and in XLA up to jax 0.10 the older emitters
# take half of what the newer ones take; later ones refuse the flag. Child processes
# inherit it.
EMITTERS = "--xla_cpu_use_fusion_emitters=false"
flags = os.environ.get("XLA_FLAGS", "")
if jax.__version_info__ < (0, 11) and EMITTERS not in flags:
    os.environ["XLA_FLAGS"] = f"{flags} {EMITTERS}".strip()
# With several devices, code that quietly relies on there being one fails here.
jax.config.update("jax_num_cpu_devices", 4)

# From here on every annotated function of both packages checks its arguments and its
# result. The handle's uninstall() is never called: the tests run under it to the end.
install_import_hook(["pushforward", "reproduction"], "beartype.beartype")

# Tests of one file share programs over more densities than a user has at a time.
importlib.import_module("pushforward._programs").KEPT = 1000


def pytest_configure(config: pytest.Config) -> None:
    # Compilation is most of the suite's time, and a second run repeats it exactly.
    # Set here and not in the environment: a test that kills its child processes must
    # not leave half-written entries in the cache.
    if getattr(config, "cache", None) is not None:
        directory = config.cache.mkdir("jax-programs")
        jax.config.update("jax_compilation_cache_dir", str(directory))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    # Most programs run once, for less time than it takes to optimise them. A hook and
    # not a fixture: it comes before the fixtures of the module, which compile too.
    long = any(map(item.get_closest_marker, ("optimised", "slow")))
    jax.config.update("jax_disable_most_optimizations", not long)


# Linux gives a process 65,530 memory maps by default. Every compiled program takes
# some, and XLA crashes when there are none left. They are counted now and then: reading
# them takes longer the more there are.
_MAPS = Path("/proc/self/maps")
_MOST_MAPS, _COUNT_EVERY = 20_000, 10
_tests = itertools.count(1)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    if next(_tests) % _COUNT_EVERY or not _MAPS.exists():
        return
    if _MAPS.read_bytes().count(b"\n") > _MOST_MAPS:
        jax.clear_caches()
        gc.collect()


# The files that take longest, the longest first.
_LONGEST = (
    "test_kill.py",
    "test_contracts.py",
    "test_verdict.py",
    "test_toy2d.py",
    "test_readme.py",
    "test_covertype.py",
    "test_mnist.py",
    "test_images.py",
    "test_engine.py",
    "test_methods.py",
    "test_several.py",
    "test_cli.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # They come first: a worker that began one at the end would be waited for.
    place = {name: i for i, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


def _data_folders() -> list[Path]:
    folders = [Path(__file__).resolve().parents[2] / "shared" / "data"]
    if named := os.environ.get("PUSHFORWARD_DATA"):
        folders.insert(0, Path(named).expanduser())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return [*folders, cache / "pushforward"]


@pytest.fixture(scope="session")
def find_data() -> Callable[[str], Path]:
    """Gives `find_data("covertype/covtype_int16.npz")`: its path, or a skipped test."""

    def find(name: str) -> Path:
        for folder in _data_folders():
            if (folder / name).is_file():
                return folder / name
        pytest.skip(
            f"the data file {name} is not on this machine: "
            "set PUSHFORWARD_DATA to the folder that holds it"
        )

    return find


@pytest.fixture
def x64() -> Iterator[None]:
    """The test runs in 64-bit, whatever the session's own width is."""
    with jax.enable_x64(True):
        yield
