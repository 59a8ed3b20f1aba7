"""Simulation-based calibration: ranks that should be uniform."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pushforward as pf
from pushforward.diagnostics.ranks import Ranks
from pushforward.errors import UsageError
from pushforward.targets.stacked import over_data
from pushforward.training.calibrate import _ranks

pytestmark = pytest.mark.once

N, DRAWS = 256, 63


def ranks_of(scale, seed=0, parameters=3):
    """Of a N(0, 1) prior, an observation of sd 1, and draws of `scale` times the sd."""
    rng = np.random.default_rng(seed)
    found = {}
    for i in range(parameters):
        theta = rng.normal(size=N)
        y = theta + rng.normal(size=N)
        draws = y / 2 + scale * rng.normal(size=(DRAWS, N)) / 2**0.5
        found[f"t{i}"] = (draws < theta).sum(axis=0)
    return Ranks(found, DRAWS)


def test_exact_posteriors_are_inside_and_broken_ones_outside():
    exact = ranks_of(1.0)
    assert exact.inside and exact.num_data_sets == N
    assert "all of them are inside the simultaneous 99 % band" in str(exact)
    for scale in (0.7, 1.4):
        broken = ranks_of(scale)
        assert set(broken.outside) == {"t0", "t1", "t2"}
        assert "outside the simultaneous 99 % band" in str(broken)
    pit = exact.pit["t0"]
    assert (
        pit.min() > 0 and pit.max() < 1 and abs(pit.mean() - 0.5) < 4 / (12 * N) ** 0.5
    )


def test_the_band_is_left_as_often_as_it_says():
    """Uniform ranks of five parameters, 600 times."""
    rng = np.random.default_rng(3)
    left = 0
    for _ in range(600):
        ranks = rng.integers(0, DRAWS + 1, (5, N))
        found = Ranks({f"p{i}": r for i, r in enumerate(ranks)}, DRAWS, level=0.1)
        left += not found.inside
    # Counts are discrete, so that it is a little less: four sd of 600 trials at 10 %.
    assert 0.03 < left / 600 < 0.1 + 4 * (0.09 / 600) ** 0.5


def test_too_few_data_sets():
    with pytest.raises(UsageError, match="at least 8 data sets"):
        Ranks({"a": np.zeros(3, int)}, DRAWS)


X = jnp.linspace(-1.0, 1.0, 5)


def posterior(y):
    def log_density(p):
        return -0.5 * jnp.sum((y - p["b"] * X) ** 2) - 0.5 * p["b"] ** 2 - p["s"]

    return pf.Target(
        log_density, example={"b": 0.0, "s": 1.0}, constraints={"s": "positive"}
    )


def test_posteriors_differ_in_their_arrays_alone():
    data = [X, 2 * X, 3 * X]
    targets = over_data(posterior, data)
    x = jnp.array([0.3, -0.2])
    for target, y in zip(targets, data, strict=True):
        np.testing.assert_allclose(
            target.log_density(x), posterior(y).log_density(x), rtol=1e-6
        )
    with pytest.raises(UsageError, match="a JAX function of the data too"):
        over_data(lambda y: posterior(jnp.asarray(float(y[1]) * X)), data)


def test_ranks_have_the_names_of_the_parameters():
    structure = pf.Target(
        lambda p: 0.0, example={"a": 0.0, "b": np.zeros((1, 2))}
    ).structure
    truth = {"a": np.array([0.0, 1.0]), "b": np.zeros((2, 1, 2))}
    draws = [
        {"a": np.array([-1.0, 2.0, -3.0]), "b": np.full((3, 1, 2), -1.0)},
        {"a": np.array([2.0, 2.0, -3.0]), "b": np.ones((3, 1, 2))},
    ]
    found = _ranks(structure, truth, draws)
    assert {k: v.tolist() for k, v in found.items()} == {
        "a": [2, 1],
        "b[0,0]": [3, 0],
        "b[0,1]": [3, 0],
    }


def _prior(key):
    return {"b": jax.random.normal(key)}


def _simulate(key, p):
    return p["b"] * X + jax.random.normal(key, X.shape)


def _normal_posterior(y):
    return pf.Target(
        lambda p: -0.5 * jnp.sum((y - p["b"] * X) ** 2) - 0.5 * p["b"] ** 2,
        example={"b": 0.0},
    )


@pytest.mark.slow
def test_trained_samplers_are_calibrated():
    found = pf.calibrate(
        jax.random.key(0),
        _prior,
        _simulate,
        _normal_posterior,
        32,
        method=pf.methods.Gaussian(),
        steps=300,
        progress=False,
    )
    assert found.inside and len(found.fits) == 32 and found.seconds > 0
    # A posterior that believes the data twice.
    broken = pf.calibrate(
        jax.random.key(0),
        _prior,
        _simulate,
        lambda y: pf.Target(
            lambda p: -4 * jnp.sum((y - p["b"] * X) ** 2), example={"b": 0.0}
        ),
        32,
        method=pf.methods.Gaussian(),
        steps=300,
        progress=False,
    )
    assert broken.outside == ("b",)
