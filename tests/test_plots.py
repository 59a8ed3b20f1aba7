"""Pictures: one for the plane, one for more dimensions, and nothing half-written."""

import importlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.image import imread

from pushforward.errors import FileError, MissingDependencyError
from pushforward.reporting.plot import draws_figure
from pushforward.targets import Target, catalogue, constrained

KEYS = jax.random.split(jax.random.key(0), 2)


TREE = constrained(
    lambda p: -p["tau"] - jnp.sum(p["theta"] ** 2),
    {"tau": "positive"},
    example={"tau": 1.0, "theta": jnp.zeros((4, 4))},
)


def planar(key):
    target = catalogue.get("donut")
    return target, target.sample(key, 1000)


def structured(key):
    theta = np.asarray(jax.random.normal(key, (1000, 4, 4)))
    return TREE, {"tau": theta[:, 0, 0] ** 2, "theta": theta}


@pytest.mark.parametrize("draw", [planar, structured])
def test_draws_beside_exact_draws(draw, tmp_path):
    (target, ours), (_, exact) = map(draw, KEYS)
    path = tmp_path / "picture.png"
    assert draws_figure(target, ours, exact, path, title="a picture") == path
    picture = imread(path)
    assert min(picture.shape[:2]) > 500
    # Something was drawn, and most of it is paper.
    assert 0.5 < np.mean(picture[..., :3].min(axis=-1) > 0.99) < 0.99


@pytest.mark.parametrize("suffix", [".svg", ".pdf"])
def test_other_formats_and_a_score_without_a_density(suffix, tmp_path):
    target = catalogue.get("funnel_coinsvgd")
    draws = np.random.default_rng(0).normal(size=(50, 2))
    path = tmp_path / f"funnel{suffix}"
    draws_figure(target, draws, draws, path, title="", exact_label="reference")
    assert path.stat().st_size > 1000


def test_draws_that_ran_away(tmp_path):
    target = Target(lambda x: -jnp.sum(x**2), dim=2)
    exact = np.random.default_rng(0).normal(size=(100, 2))
    ours = np.where(np.arange(100)[:, None] < 30, np.inf, exact)
    draws_figure(target, ours, exact, tmp_path / "gone.png", title="gone")


def test_a_place_that_does_not_exist(tmp_path):
    target, draws = structured(KEYS[0])
    with pytest.raises(FileError, match="cannot be written"):
        draws_figure(target, draws, draws, tmp_path / "no" / "a.png", title="")


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "pushforward.reporting.plot")
    with pytest.raises(MissingDependencyError, match=r"pushforward\[plots"):
        importlib.import_module("pushforward.reporting.plot")
