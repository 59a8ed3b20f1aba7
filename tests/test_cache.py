"""Compiled programs on disk: found again, never half, never too many."""

import os
import subprocess
import sys
import textwrap

import pytest

from pushforward import _cache

PROGRAM = textwrap.dedent(
    """
    import sys, jax, jax.monitoring, pushforward as pf
    hits = []
    jax.monitoring.register_event_listener(
        lambda name, **_: hits.append(name) if name.endswith("cache_hits") else None
    )
    from pushforward import _cache
    _cache._LEAST_SECONDS = 0.0
    place = pf.cache_programs(sys.argv[1])
    jax.jit(lambda x: (x @ x).sum())(jax.numpy.ones((3, 3)))
    print(place, len(hits))
    """
)


def _run(folder, **environment):
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    environment = {**os.environ, **environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    place, hits = done.stdout.split()
    return place, int(hits)


@pytest.mark.once
def test_a_second_process_finds_what_the_first_compiled(tmp_path):
    place, hits = _run(tmp_path)
    assert hits == 0
    again, hits = _run(tmp_path)
    assert again == place and hits > 0
    # Whoever ended has taken its mark away.
    assert not list(tmp_path.glob(f"*/{_cache._MARK}*"))
    # A folder that cannot be made, and a cache that is turned off, are no errors.
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert _run(blocked)[0] == "None"
    assert _run(tmp_path, JAX_ENABLE_COMPILATION_CACHE="0")[0] == "None"
    assert _run(tmp_path, JAX_COMPILATION_CACHE_DIR=str(blocked))[0] == str(blocked)


def _entry(place, name, size, written):
    path = place / name
    path.write_bytes(b"x" * size)
    os.utime(path, (written, written))
    return path


@pytest.mark.once
def test_what_a_killed_process_may_have_written_half_goes(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    before = _entry(tmp_path, "before-cache", 3, 100.0)
    _entry(tmp_path, f"{_cache._MARK}{child.pid}", 0, 200.0)
    mine = _entry(tmp_path, f"{_cache._MARK}{os.getpid()}", 0, 50.0)
    after = _entry(tmp_path, "after-cache", 3, 300.0)
    _cache._clean(tmp_path)
    assert before.exists() and mine.exists() and not after.exists()
    assert not (tmp_path / f"{_cache._MARK}{child.pid}").exists()


@pytest.mark.once
def test_the_oldest_programs_go_first(tmp_path, monkeypatch):
    monkeypatch.setattr(_cache, "MOST_BYTES", 25)
    paths = [_entry(tmp_path, f"{i}-cache", 10, 100.0 + i) for i in range(4)]
    _cache._clean(tmp_path)
    assert [path.exists() for path in paths] == [False, False, True, True]
