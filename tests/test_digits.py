"""Pages of digits, and the small files that hold a sampler of them."""

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest

import pushforward as pf
from pushforward import cli
from pushforward.cli import main
from pushforward.errors import UsageError
from pushforward.networks import Generator, ResidualMap, computing_in
from pushforward.report.grids import PAGE, ZOOM, draw_page, grid
from pushforward.sampler import load_network, save_network
from pushforward.targets.coordinates import Whitening
from pushforward.targets.structure import Structure

pytestmark = pytest.mark.once

KEY = jax.random.key(0)


def sampler(network, dim):
    whitening, structure = Whitening.identity(dim), Structure.vector(dim)
    return pf.Sampler(network, whitening, jnp.zeros(()), structure)


@pytest.fixture
def digits(monkeypatch, tmp_path):
    """An empty working directory, and a package with a tiny sampler of images."""
    monkeypatch.chdir(tmp_path)
    made = sampler(Generator(4, 8, key=KEY), 1024)
    path = made.save(tmp_path / "kept.safetensors", half=True)
    monkeypatch.setattr(cli, "DIGITS_FILE", path)
    return made


def test_a_page_of_digits(digits, tmp_path, capsys):
    assert main(["sample", "digits"]) == 0
    assert capsys.readouterr().out == f"{PAGE} draws are in digits.png.\n"
    page = matplotlib.image.imread(tmp_path / "digits.png")
    side = 10 * 34 + 2
    assert page.shape[:2] == (ZOOM * side, ZOOM * side)
    first = page[2 * ZOOM : 34 * ZOOM : ZOOM, 2 * ZOOM : 34 * ZOOM : ZOOM, 0]
    drawn = pf.load(tmp_path / "kept.safetensors").sample(jax.random.key(1), PAGE)
    np.testing.assert_allclose(first.ravel(), drawn[0], atol=0.5 / 255 + 1e-6)


def test_other_files_and_numbers(digits, tmp_path):
    assert main(["sample", "digits", "-n", "6", "--out", "few.png", "--quiet"]) == 0
    assert matplotlib.image.imread("few.png").shape[0] == ZOOM * (3 * 34 + 2)
    assert main(["sample", "digits", "-n", "6", "--out", "few.npy", "--quiet"]) == 0
    assert np.load("few.npy").shape == (6, 1024)
    # A run or a file of that name is what is meant.
    sampler(ResidualMap(2, 2, 8, 1, key=KEY), 2).save(tmp_path / "digits")
    assert main(["sample", "digits", "-n", "6", "--out", "few.npy", "--quiet"]) == 0
    assert np.load("few.npy").shape == (6, 2)


def test_refusals(digits, tmp_path, monkeypatch, capsys):
    def refuse(*words):
        assert main(["sample", *words]) == 2
        return capsys.readouterr().err

    for words in (["kept.safetensors"], ["digits", "--out", "a.npy"]):
        assert "Say how many draws with -n, and where they go" in refuse(*words)
    assert "at least one image" in refuse("digits", "-n", "0")
    sampler(ResidualMap(2, 2, 8, 1, key=KEY), 2).save(tmp_path / "flat.pf")
    assert "draws no images" in refuse("flat.pf", "-n", "6", "--out", "a.png")
    monkeypatch.setattr(cli, "DIGITS_FILE", tmp_path / "none.safetensors")
    said = refuse("digits")
    assert said.count("\n") == 1
    assert "This installation of pushforward has no sampler of digits" in said
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".pf"}


def test_the_sampler_that_comes_with_the_package(tmp_path):
    assert cli.DIGITS_FILE.stat().st_size < 3e6
    kept = pf.load(cli.DIGITS_FILE)
    draw_page(KEY, kept, 25, tmp_path / "page.png")
    draws = np.asarray(kept.sample(KEY, 100))
    # Digits: mostly black, with some white in every one.
    assert np.median(draws) < 0.1
    assert draws.max(axis=1).min() > 0.5


def test_a_grid_is_filled_row_by_row():
    images = np.arange(3, dtype=np.uint8)[:, None] * np.ones((1, 64), np.uint8)
    page = grid(images, 2)
    assert page.shape == (22, 22)
    assert (page[2:10, 2:10] == 0).all() and (page[2:10, 12:20] == 1).all()
    assert (page[12:20, 2:10] == 2).all() and (page[12:20, 12:20] == 255).all()


def test_half_a_sampler(tmp_path):
    """bfloat16 has eight bits: a weight is off by 2^-8 of itself at most."""
    made = sampler(Generator(16, 64, key=KEY), 1024)
    whole = made.save(tmp_path / "whole.pf").stat().st_size
    path = made.save(tmp_path / "half.pf", half=True)
    # Nothing of the whitening, whose matrix would be four megabytes, is in either.
    assert path.stat().st_size < 0.55 * whole < 1e6
    found = pf.load(path)
    for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(found), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=2**-8)
    with pytest.raises(UsageError, match="at least one image"):
        draw_page(KEY, found, 0, tmp_path / "a.png")


def test_half_a_network_in_another_precision(tmp_path):
    network = Generator(4, 8, "bfloat16", key=KEY)
    path = save_network(tmp_path / "a.safetensors", network, half=True)
    found = computing_in(load_network(path), "float32")
    assert (found.compute, found.layers[0].compute) == ("float32", "float32")
    # What is computed in bfloat16 loses nothing by being stored so.
    z = jnp.ones(4, jnp.float32)
    before = network(z)
    np.testing.assert_array_equal(load_network(path)(z), before)
    np.testing.assert_allclose(found(z), before, atol=0.05)
