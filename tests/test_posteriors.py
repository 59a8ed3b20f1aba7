"""The suite of real posteriors: its models are posteriordb's, its distances right."""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

# The programs of benchmarks/ import each other as programs do.
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import expect
import posterior_models
import posteriors
import render_posteriors

sys.path.pop(0)

MODELS = posterior_models.POSTERIORS
# One of each kind of mapping between parameters and names.
FAST = "eight_schools-eight_schools_noncentered", "mesquite-logmesquite_logva"


@pytest.mark.once
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FAST else pytest.mark.slow)
        for name in MODELS
    ],
)
def test_the_score_of_a_model_is_that_of_its_reference_draws(name):
    """Stein's identities, coordinate by coordinate: `E[s] = 0` and `E[u s] = -1`."""
    if posterior_models.find(f"{posterior_models.FOLDER}/arK.data.json") is None:
        pytest.skip("posteriordb's data are not on this machine")
    model = MODELS[name]
    target = model.target()
    params = jax.tree.map(jnp.asarray, model.reference_params())
    u_flat = target.structure.flatten_draws(params)
    score = jax.jit(jax.vmap(jax.grad(target.log_density)))(u_flat)
    score, u = np.asarray(score, np.float64), np.asarray(u_flat, np.float64)
    # 600 statistics over all models; posteriordb accepts draws whose effective size is
    # about their number.
    bound = 4.8
    for values in (score, (u - u.mean(0)) * score + 1):
        z = values.mean(0) / values.std(0) * np.sqrt(len(values))
        assert np.abs(z).max() < bound
    # Names and parameters are inverse to each other.
    names, draws = model.reference()
    found = model.flat(jax.vmap(target.structure.unflatten)(u_flat))
    np.testing.assert_allclose(
        found, draws.reshape(-1, len(names)), rtol=1e-3, atol=1e-3
    )


def test_distances_to_a_shifted_normal():
    rng = np.random.default_rng(0)
    reference = rng.normal(size=(40_000, 2))
    draws = rng.normal([0.3, 0.0], size=(posteriors.SETS * posteriors.DRAWS, 2))
    found = posteriors.distances(jax.random.key(0), 0, draws, reference)
    # W1 is .3 along the first coordinate; along a direction of angle a, W2 is .3 cos a,
    # whose square is .045 on average.
    own = found["marginal_w1_reference"]
    assert abs(found["marginal_w1"] - (0.3 + own) / 2) < 0.01
    assert abs(found["sliced_w2"] - np.sqrt(0.045)) < 0.03
    assert found["sliced_w2_reference"] < 0.05


def test_the_page_shows_the_worst_seed_and_counts_verdicts():
    row = {
        "posterior": "a-b",
        "family": "mixture",
        "dim": 2,
        "sliced_w2_ratio": 1.0,
        "marginal_w1_ratio": 1.0,
        "mean_error": 0.01,
        "mean_error_of": "x",
        "sd_error": 0.02,
        "sd_error_of": "y",
        "pareto_k": 0.3,
        "ess": 0.9,
        "log_z": -1.0,
        "log_z_se": 0.01,
        "verdict": "passed",
        "seconds": 10.0,
        "evaluations": 10**6,
        "check_evaluations": 10**6,
        "bad": False,
        "seed": 0,
        "device": "cpu: invented",
        "cores": 2,
        "versions": {"jax": "0"},
    }
    other = row | {"sliced_w2_ratio": 2.5, "bad": True, "verdict": "failed", "seed": 1}
    page = render_posteriors.posteriors_page({"rows": [row, other]})
    assert "| bad | 0 | 0 | 1 | 1 |" in page
    assert "| not bad | 1 | 0 | 0 | 1 |" in page
    assert "| `a-b` **bad** | 2 | 2.50 |" in page
    assert "Of 2 rows, 1 have" in page


@pytest.mark.once
def test_the_pages_are_what_the_files_say():
    if not render_posteriors.RESULT.exists():
        pytest.skip("benchmarks/posteriors.py has not been run for this version")
    result = json.loads(render_posteriors.RESULT.read_text("utf-8"))
    page = render_posteriors.PAGE.read_text("utf-8")
    assert page == render_posteriors.posteriors_page(result)
    readme = expect.PAGE.read_text("utf-8")
    found = expect.expectations(expect.RESULTS)
    assert readme == expect.with_expectations(readme, found)
