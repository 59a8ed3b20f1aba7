"""Pages of digits, and the small files that hold a sampler of them."""

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest

import pushforward as pf
from pushforward.errors import UsageError
from pushforward.networks import ResidualMap
from pushforward.sampler import load_network, save_network
from reproduction import __main__
from reproduction.__main__ import main
from reproduction.mnist.images import ZOOM, draw_page, grid
from reproduction.mnist.networks import Generator, computing_in

pytestmark = pytest.mark.once

KEY = jax.random.key(0)


def sampler(network, dim):
    return pf.Sampler.from_network(network)


@pytest.fixture
def digits(monkeypatch, tmp_path):
    """An empty working directory, and a tiny sampler of images to draw from."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "kept.safetensors"
    sampler(Generator(4, 8, key=KEY), 1024).save(path, dtype="bfloat16")
    monkeypatch.setattr(__main__, "DIGITS", path)
    return path


def test_a_page_of_digits(digits, tmp_path, capsys):
    assert main(["digits"]) == 0
    assert capsys.readouterr().out == "100 draws are in digits.png.\n"
    page = matplotlib.image.imread(tmp_path / "digits.png")
    side = 10 * 34 + 2
    assert page.shape[:2] == (ZOOM * side, ZOOM * side)
    first = page[2 * ZOOM : 34 * ZOOM : ZOOM, 2 * ZOOM : 34 * ZOOM : ZOOM, 0]
    drawn = pf.load(digits).sample(jax.random.key(1), 100)
    np.testing.assert_allclose(first.ravel(), drawn[0], atol=0.5 / 255 + 1e-6)


def test_another_sampler_and_another_number(digits, tmp_path):
    assert main(["digits", str(digits), "-n", "6", "--out", "few.png"]) == 0
    assert matplotlib.image.imread("few.png").shape[0] == ZOOM * (3 * 34 + 2)


def test_refusals(digits, tmp_path, capsys):
    def refuse(*words):
        assert main(["digits", *words]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and said.startswith("reproduction: ")
        return said

    assert "at least one image" in refuse("-n", "0")
    assert "Argument -n: invalid int value: 'many'; see" in refuse("-n", "many")
    assert "--seed must lie between 0 and 2^32 - 1" in refuse("--seed", "-1")
    sampler(ResidualMap(2, 2, 8, 1, key=KEY), 2).save(tmp_path / "flat.pf")
    assert "draws no images" in refuse("flat.pf", "-n", "6")
    assert "none.pf" in refuse("none.pf")
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".pf"}


def test_the_sampler_that_is_kept(tmp_path):
    assert __main__.DIGITS.stat().st_size < 3e6
    kept = pf.load(__main__.DIGITS)
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
    path = made.save(tmp_path / "half.pf", dtype="bfloat16")
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
    path = save_network(tmp_path / "a.safetensors", network, dtype="bfloat16")
    found = computing_in(load_network(path), "float32")
    assert (found.compute, found.layers[0].compute) == ("float32", "float32")
    # What is computed in bfloat16 loses nothing by being stored so.
    z = jnp.ones(4, jnp.float32)
    before = network(z)
    np.testing.assert_array_equal(load_network(path)(z), before)
    np.testing.assert_allclose(found(z), before, atol=0.05)
