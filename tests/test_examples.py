"""The examples run, and say what they should."""

import ast
import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pushforward as pf

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SYMMETRIC = ("label_switching", "particle_cluster")


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SYMMETRIC)
def test_an_example_is_short_and_uses_public_names(name):
    text = (EXAMPLES / f"{name}.py").read_text("utf-8")
    assert len(text.splitlines()) <= 80
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            assert not (node.module or "").startswith("pushforward")
        if isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_")


@pytest.mark.parametrize("name", SYMMETRIC)
def test_the_density_of_an_example_has_its_symmetry(name):
    target = load(name).make_target()
    x = jax.random.normal(jax.random.key(0), (target.dim,))
    moved = target.symmetry.move_randomly(jax.random.key(1), x)
    assert not np.allclose(moved, x, atol=0.1)
    found = target.log_density(moved)
    np.testing.assert_allclose(found, target.log_density(x), rtol=1e-4)


def test_labels_are_sorted_with_all_that_belongs_to_them():
    draws = {
        "mu": jnp.array([[2.0, -1.0, 0.5]]),
        "weights": jnp.array([[0.5, 0.2, 0.3]]),
    }
    found = load("label_switching").relabelled(draws)
    np.testing.assert_array_equal(found["mu"], [[-1.0, 0.5, 2.0]])
    np.testing.assert_allclose(found["weights"], [[0.2, 0.3, 0.5]])


@pytest.mark.slow
@pytest.mark.parametrize("name", SYMMETRIC)
def test_an_example_runs(name):
    method = pf.methods.Transport()
    fit, found, *orders = load(name).main(method=method, steps=1500, n=2000)
    assert fit.finished
    if name == "label_switching":
        # All six orders, each as often.
        assert np.all(np.abs(orders[0] / 2000 - 1 / 6) < 0.04)
        assert np.all(np.diff(found["mu"].mean(axis=0)) > 1)
    else:
        (mean, _, shares), (after, _, moved) = found.values()
        assert abs(mean - after) < 0.5
        assert np.abs(shares - moved).max() < 0.05
