"""Pictures: one for the plane, one for more dimensions, and nothing half-written."""

import importlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.image import imread

import pushforward as pf
from pushforward.errors import FileError, MissingDependencyError, UsageError
from pushforward.reporting.plot import draws_figure
from pushforward.targets import Target, catalogue, constrained
from pushforward.training.history import History

KEYS = jax.random.split(jax.random.key(0), 2)


TREE = constrained(
    lambda p: -p["tau"] - jnp.sum(p["theta"] ** 2),
    {"tau": "positive"},
    example={"tau": 1.0, "theta": jnp.zeros((4, 4))},
)


@pytest.fixture(autouse=True)
def closed():
    """Every picture is closed after its test."""
    yield
    pyplot.close("all")


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


def test_the_plane_has_the_reference_on_the_same_axes():
    target, ours = planar(KEYS[0])
    first, second = pf.plot.draws(target, ours)
    assert first.get_xlim() == second.get_xlim()
    dots = np.asarray(first.collections[0].get_offsets())
    np.testing.assert_allclose(dots, np.asarray(ours), atol=1e-6)
    assert second.get_title().startswith("exact: 5,000 draws")


def test_marginals_are_densities():
    target, ours = structured(KEYS[0])
    panels = pf.plot.marginals(target, ours, ours, most=5)
    assert panels.shape == (5,)
    for panel in panels:
        (outline,) = [p for p in panel.patches if not p.get_fill()]
        corners = outline.get_xy()
        area = np.abs(np.trapezoid(corners[:, 1], corners[:, 0]))
        # Not all draws are between the limits.
        assert 0.9 < area < 1.2
    assert {t.get_xlabel() for t in panels} >= {"tau", "theta[0,0]"}


def test_pairs_begin_with_the_worst_parameter():
    target, exact = structured(KEYS[0])
    ours = {**exact, "theta": exact["theta"].copy()}
    ours["theta"][:, 2, 1] += 1
    panels = pf.plot.pairs(target, ours, exact, most=3)
    assert panels.shape == (3, 3)
    assert panels[2, 0].get_xlabel() == "theta[2,1]"
    shown, theirs = (c.get_offsets() for c in panels[1, 0].collections)
    assert abs(np.mean(np.asarray(theirs - shown), axis=0)[0] - 1) < 1e-3


def test_draws_that_are_off_leave_the_band():
    target, exact = structured(KEYS[0])
    ours = {**exact, "theta": exact["theta"] + 1.0 * (np.arange(16) == 3).reshape(4, 4)}
    panels = pf.plot.ecdf(target, ours, exact, most=2)
    assert panels[0].get_title() == "theta[0,3]"
    (width,) = {round(float(p.get_y() + p.get_height()), 6) for p in panels[0].patches}
    reference, own = (line.get_ydata() for line in panels[0].lines)
    assert np.abs(own).max() > width > np.abs(reference).max()
    assert np.abs(panels[1].lines[1].get_ydata()).max() < width


def test_bounds_of_log_z_share_a_panel():
    rows = [{"step": i, "loss": 1.0 / (i + 1), "seconds": 0.1} for i in range(5)]
    rows += [
        {"step": i, "elbo": -1.0 / i, "eubo": 1.0 / i, "kept": 1.0} for i in (1, 2)
    ]
    panels = pf.plot.training(History(rows), log_normaliser=0.0)
    assert [p.get_title() for p in panels] == ["bounds of log Z", "loss"]
    lower, upper, exact = (line.get_ydata() for line in panels[0].lines)
    assert list(lower) == [-1.0, -0.5] and list(upper) == [1.0, 0.5]
    assert set(exact) == {0.0}


def test_the_weights_of_an_exact_sampler_are_one():
    sample = pf.ImportanceSample(
        np.zeros((8, 1)), np.full(8, 1 / 8), 0.5, 0.0, 8.0, 0.0
    )
    panel = pf.plot.weights(sample)
    line, exact = panel.lines
    np.testing.assert_allclose(line.get_xdata(), 1.0)
    assert set(exact.get_xdata()) == {1.0}
    assert panel.get_title().startswith("log Z = 0.5")


def test_what_cannot_be_plotted():
    target, ours = structured(KEYS[0])
    with pytest.raises(UsageError, match="no exact draws to compare with"):
        pf.plot.pairs(target, ours)
    with pytest.raises(UsageError, match="needs what fit returned"):
        pf.plot.training(5)
    with pytest.raises(UsageError, match="structure"):
        pf.plot.draws(target, np.zeros((5, 2)), ours)
