"""First contact: each kind of bad density reads its sentence, good ones pass."""

import json
import math
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import cauchy, gamma, norm
from numpyro.distributions import LKJCholesky
from numpyro.distributions.transforms import CorrCholeskyTransform

from pushforward.errors import DensityError
from pushforward.targets import (
    MinibatchTarget,
    NoiseConditionalTarget,
    ScoreTarget,
    Target,
    catalogue,
    constrained,
    planar,
    probing,
)
from pushforward.targets.constraints import CONSTRAINT_HINT, KINDS
from pushforward.targets.examine import examine, fingerprint, same_target
from pushforward.training.door import admit

KEY = jax.random.key(0)


def normal(x):
    return -0.5 * jnp.sum(x**2)


def test_ticks_and_crosses():
    seen = examine(KEY, Target(normal, dim=2))
    assert seen.passed
    assert all(check.ok for check in seen.checks)
    assert str(seen).count("✓") == len(seen.checks) == len(str(seen).splitlines())
    seen = examine(KEY, Target(lambda x: -(x[0] ** 2), dim=2))
    assert not seen.passed
    assert "\n✗ The density ignores the coordinate 'x[1]'" in str(seen)
    assert str(seen.error) == next(c.sentence for c in seen.checks if not c.ok)


def read(target, key=KEY):
    """The sentence with which a target is refused."""
    with pytest.raises(DensityError) as caught:
        admit(key, target)
    return sentence(str(caught.value))


def doubted(target, key=KEY):
    """The only doubt with which a target is let in."""
    (doubt,) = admit(key, target)
    seen = examine(key, target)
    assert seen.passed and doubt in seen.doubts and f"? {doubt}" in str(seen)
    return sentence(doubt)


def sentence(text):
    assert "\n" not in text and text[-1] in ".?" and text[0].isupper(), text
    return text


def raises(x):
    raise KeyError("the data are not loaded")


def multiplies(x):
    return -x @ jnp.eye(3) @ x


def unpacks(x):
    a, b, c = x
    return -(a**2) - b**2 - c**2


def branches(x):
    return -x[0] if x[1] > 0 else -x[1]


def by_numpy(x):
    return -0.5 * np.linalg.norm(np.asarray(x)) ** 2


def loops(x):
    return jax.lax.while_loop(lambda v: v > 0, lambda v: v - 1, -jnp.sum(x**2))


@pytest.mark.parametrize(
    ("function", "fragments"),
    [
        (raises, ["Your log_density raised KeyError: 'the data are not loaded' (",
                  "test_examine.py, line ", "in raises)."]),
        (multiplies, ["Your log_density raised TypeError: dot_general requires",
                      "in multiplies): dim is 2; is that the number of coordinates"]),
        (unpacks, ["raised ValueError: not enough values to unpack (expected 3, got 2)",
                   "in unpacks): dim is 2; is that"]),
        (branches, ["TracerBoolConversionError", "in branches): use jnp.where"]),
        (by_numpy, ["in by_numpy): use jax.numpy instead of numpy"]),
        (loops, ["Your log_density cannot be differentiated: it raised ValueError"]),
        (lambda x: -(x[0] ** 2) - x[4] ** 2,
         ["reads the element [4] of parameters of shape (2,): dim is 2;"]),
        (lambda x: -0.5 * x**2, ["returned an array of shape (2,)", "sum over the"]),
        (lambda x: None, ["returned nothing (is a return missing?)"]),
        (lambda x: (normal(x), 0), ["returned tuple, and must return one number"]),
        (lambda x: jnp.sum(x.astype(int)), ["returned int", "floating-point"]),
    ],
)  # fmt: skip
def test_what_does_not_run_or_returns_something_else(function, fragments):
    text = read(Target(function, dim=2))
    for fragment in fragments:
        assert fragment in text


def test_a_parameter_that_is_called_otherwise():
    text = read(Target(lambda p: -(p["b"] ** 2), example={"a": 0.0, "c": {"d": 0.0}}))
    assert "raised KeyError: 'b' (" in text
    assert text.endswith("): the parameters in example are 'a', 'c.d'.")


def test_the_users_exception_is_the_cause():
    with pytest.raises(DensityError) as caught:
        admit(KEY, Target(raises, dim=2))
    assert isinstance(caught.value.__cause__, KeyError)


BOUND = (
    "a constraint ('positive', 'greater_than(a)', 'less_than(b)' or 'interval(a, b)') "
    "with constraints=."
)


@pytest.mark.parametrize(
    ("function", "fragments"),
    [
        (lambda x: -(x[0] ** 2) + jnp.log(x[1]) - x[1],
         ["Your log_density is nan at ", " of 96 random starting points, because "
          "'x[1]' is negative there, such as 'x[1]' = -"]),
        (lambda x: jnp.sum(jnp.log(x) - x), ["is nan at ", "is negative there"]),
        (lambda x: -(x[0] ** 2) + jnp.where(x[1] > 0, -x[1], -jnp.inf),
         ["is -inf at ", "because 'x[1]' is negative there"]),
        (lambda x: -(x[0] ** 2) + jnp.log(-x[1]) + x[1],
         ["because of a coordinate's value, such as 'x[1]' = "]),
        (lambda x: normal(x) + jnp.where(x[0] * x[1] > 1, -jnp.inf, 0.0),
         ["is -inf at ", "such as x[0] = "]),
    ],
)  # fmt: skip
def test_zero_density_at_some_points_is_a_doubt(function, fragments):
    text = doubted(Target(function, dim=2))
    for fragment in fragments:
        assert fragment in text
    # What may be a bound has a remedy, and its name.
    assert text.endswith(BOUND)


def test_infinite_density_at_some_points_is_a_doubt():
    text = doubted(Target(lambda x: normal(x) + jnp.where(x[0] > 0, jnp.inf, 0), dim=2))
    assert "is +inf at x[0] = " in text and BOUND not in text


def test_finite_nowhere():
    text = read(Target(lambda x: normal(x) * jnp.nan, dim=2))
    assert "is nan at all random starting points, such" in text
    assert text.endswith(BOUND)
    text = read(Target(lambda x: normal(x) + jnp.inf, dim=2))
    assert "is +inf at x[0] = " in text
    # Each part is finite somewhere, the sum nowhere.
    posterior = MinibatchTarget(
        lambda w: -w[0] + jnp.log(w[0]), lambda w, _: jnp.log(-w[0]), np.zeros(3), 1
    )
    text = read(posterior)
    assert text.startswith("At no random starting point are all parts of the log dens")
    assert "Your log_prior is nan at" in text


def test_the_constraints_that_are_advised_exist():
    found = re.findall(r"'(\w+)['(]", CONSTRAINT_HINT)
    assert found == ["positive", "greater_than", "less_than", "interval"]
    assert set(found) <= set(KINDS)


def test_a_wide_density_of_positive_numbers_has_a_name_to_blame():
    text = read(Target(lambda x: jnp.sum(jnp.log(x) - x), dim=20))
    assert re.search(
        r"at (all|\d+ of 96) .* because 'x\[\d+\]' is negative there", text
    )


def test_gradient_not_finite():
    def trap(x):
        return -(x[0] ** 2) + jnp.where(x[1] > 0, -jnp.sqrt(x[1]), -(x[1] ** 2))

    text = doubted(Target(trap, dim=2, names=("a", "b")))
    assert "gradient of your log density with respect to 'b' is nan at " in text
    assert "such as 'b' = -" in text
    assert "jnp.where" in text

    def broken(x):
        return -jnp.sum(x**2) + 0 * jnp.sqrt(x[1] - x[1])

    assert "with respect to 'x[1]' is nan at 96 of 96" in read(Target(broken, dim=2))


def test_ignored_coordinates():
    text = read(Target(lambda x: -jnp.sum(x[:3] ** 2), dim=4))
    assert text.startswith("The density ignores the coordinate 'x[3]': use it or lower")
    tree = {"mu": 0.0, "theta": jnp.zeros(2)}
    text = read(Target(lambda p: -jnp.sum(p["theta"] ** 2), example=tree))
    assert text.startswith("The density ignores the coordinate 'mu': use it or leave")
    text = read(Target(lambda x: normal(x[:1]) - jnp.round(x[1]) ** 2, dim=2))
    assert "gradient in the coordinate 'x[1]' is 0 at every point, though" in text


def test_a_uniform_density_has_no_gradient():
    def uniform(x):
        return jnp.where(jnp.all(jnp.abs(x) < 0.5), 0.0, -jnp.inf)

    assert "is -inf at" in doubted(Target(uniform, dim=2))


@pytest.mark.parametrize(
    ("function", "where"),
    [
        (lambda x: -(x[0] ** 2) + x[1], "+x[1] "),
        (lambda x: -(x[0] ** 2) - jax.nn.softplus(x[1]), "-x[1] "),
        (lambda x: 0.5 * jnp.sum(x**2), "x["),
        (lambda x: -(x[0] ** 2) + jnp.exp(x[1]), "+x[1] "),
        (lambda x: -(x[0] ** 2) / (1 + x[0] ** 2) - x[1] ** 2, "x[0] "),
        (lambda x: -0.5 * (x[0] - x[1]) ** 2, "0.71 x[0] "),
        (lambda x: jax.nn.log_softmax(x)[0] + jax.nn.log_softmax(x)[1], "0.71 x[0] "),
    ],
)
def test_does_not_fall(function, where):
    text = read(Target(function, dim=2))
    assert text.startswith("The density does not fall in the direction ")
    assert where in text
    assert "cannot be normalised, and draws would run away" in text


@pytest.mark.parametrize(
    ("function", "where"),
    [
        # 1 / t on a line, and 1 / t^2 over the plane, have no integral.
        (lambda x: -0.5 * jnp.log1p(x[0] ** 2) - x[1] ** 2, "x[0] "),
        (lambda x: -0.4 * jnp.log1p(x[0] ** 2) - x[1] ** 2, "x[0] "),
        (lambda x: -jnp.log1p(jnp.sum(x**2)), "x["),
    ],
)
def test_falls_too_slowly(function, where):
    text = read(Target(function, dim=2))
    assert text.startswith("The density falls too slowly in the direction ")
    assert where in text and "cannot be normalised" in text


@pytest.mark.parametrize("name", catalogue.names())
def test_every_builtin_target_passes(name):
    assert admit(KEY, catalogue.get(name)) == ()


def horseshoe(p):
    prior = cauchy.logpdf(p["tau"]) + jnp.sum(cauchy.logpdf(p["lam"]))
    return prior + jnp.sum(norm.logpdf(p["w"], 0, p["tau"] * p["lam"]))


GOOD = {
    "heavy": Target(lambda x: -1.25 * jnp.log1p(2 * jnp.sum(x**2)), dim=2),
    "cauchys": Target(lambda x: -jnp.sum(jnp.log1p(x**2)), dim=5),
    "clipped": Target(lambda x: -0.5 * jnp.sum(jnp.clip(x, -50, 50) ** 2), dim=2),
    "wide": Target(lambda x: -0.5 * jnp.sum((x / 1e6) ** 2), dim=2),
    "wide and narrow": Target(
        lambda x: -0.5 * (x[0] / 1e6) ** 2 - 0.5 * (x[1] / 1e-3) ** 2, dim=2
    ),
    "oblique": Target(
        lambda x: -0.5 * (x[0] - x[1]) ** 2 - 0.5 * ((x[0] + x[1]) / 1e5) ** 2, dim=2
    ),
    "cauchy": Target(lambda x: jnp.sum(cauchy.logpdf(x)), dim=3),
    "barely normalised": Target(lambda x: -0.55 * jnp.log1p(jnp.sum(x**2)), dim=1),
    "far away": Target(lambda x: -0.5 * jnp.sum((x - 1e4) ** 2), dim=2),
    "quartic": Target(lambda x: -jnp.sum(x**4), dim=2),
    "soft box": Target(lambda x: -jnp.sum(jax.nn.relu(jnp.abs(x) - 20) ** 2), dim=2),
    "lasso": Target(lambda x: -jnp.sum(jnp.abs(x)), dim=70),
    "gamma": constrained(
        lambda p: gamma.logpdf(p["r"], 0.5), {"r": "positive"}, example={"r": 1.0}
    ),
    "horseshoe": constrained(
        horseshoe,
        {"tau": "positive", "lam": "positive"},
        example={"tau": 1.0, "lam": jnp.ones(3), "w": jnp.ones(3)},
    ),
    "bounded": constrained(
        lambda p: jnp.log(p["w"][0]) - p["h"] - jnp.sum(p["o"] ** 2),
        {"w": "simplex", "h": "interval(0, 2)", "o": "ordered"},
        example={"w": jnp.ones(3) / 3, "h": 1.0, "o": jnp.arange(2.0)},
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_odd_but_good_densities_pass(name):
    for seed in range(5):
        assert admit(jax.random.key(seed), GOOD[name]) == ()


def test_scores():
    assert examine(KEY, ScoreTarget(lambda x: -x, 2)).passed
    text = read(ScoreTarget(lambda x: -jnp.sum(x), 2))
    assert text.startswith(
        "Your score returned an array of shape (), and must return an"
    )
    text = read(ScoreTarget(lambda x: -x[:2], 3))
    assert "of shape (2,)" in text and "dim is 3;" in text
    text = read(ScoreTarget(lambda x: jnp.stack([-x[0], 0.0 * x[1]]), 2))
    assert text.startswith("The score you gave is 0 in the coordinate 'x[1]'")
    text = doubted(ScoreTarget(lambda x: jnp.stack([-x[0], jnp.log(x[1])]), 2))
    assert "The score you gave with respect to 'x[1]' is nan at " in text


def test_noise_conditional_scores():
    def score(x, sigma):
        return -x / (1 + sigma**2)

    fine = NoiseConditionalTarget(score, 2, sigma_range=(0.01, 1.0))
    seen = examine(KEY, fine)
    assert seen.passed
    assert "at sigma = 0.01" in str(seen) and "at sigma = 1." in str(seen)
    text = read(
        NoiseConditionalTarget(
            lambda x, sigma: score(x, sigma) * jnp.sqrt(0.5 - sigma),
            2,
            sigma_range=(0.01, 1.0),
        )
    )
    assert "The score you gave at sigma = 1 with respect to 'x[0]' is nan" in text


DATA = {"x": jnp.linspace(-1.0, 1.0, 40), "y": jnp.linspace(-1.0, 2.0, 40)}


def likelihood(w, d):
    return -0.5 * (d["y"] - w[0] - w[1] * d["x"]) ** 2


def test_minibatch_parts_are_told_apart():
    assert examine(KEY, MinibatchTarget(normal, likelihood, DATA, 2)).passed
    # Identified by the likelihood alone.
    assert examine(KEY, MinibatchTarget(lambda w: 0.0, likelihood, DATA, 2)).passed
    text = read(MinibatchTarget(lambda w: -(w**2), likelihood, DATA, 2))
    assert text.startswith("Your log_prior returned an array of shape (2,)")
    text = read(MinibatchTarget(normal, lambda w, d: w * d["x"], DATA, 2))
    assert text.startswith("Your log_likelihood returned an array of shape (2,)")
    target = MinibatchTarget(lambda w: jnp.log(w[0]) - w[0], likelihood, DATA, 2)
    text = doubted(target)
    assert text.startswith("Your log_prior is nan at")
    assert "because 'x[0]' is negative there" in text
    broken = {**DATA, "y": DATA["y"].at[17].set(jnp.nan)}
    text = read(MinibatchTarget(normal, likelihood, broken, 2))
    assert text == (
        "Your log_likelihood is nan at all random starting points; "
        "observation 17 of the data alone makes it so."
    )


def test_many_data_and_a_flat_prior():
    # The data looked at first say nothing about w[1]; the others do.
    n = 20_000
    x = jnp.where(jnp.arange(n) % 20 == 3, 1.0, 0.0)
    data = {"x": x, "y": jnp.ones(n)}
    assert examine(KEY, MinibatchTarget(lambda w: 0.0, likelihood, data, 2)).passed
    data["x"] = jnp.zeros(n)
    text = read(MinibatchTarget(lambda w: 0.0 * w[1], likelihood, data, 2))
    assert text.startswith("The density ignores the coordinate 'x[1]'")


def test_fingerprint_tells_densities_apart():
    target = Target(normal, dim=3)
    marks = fingerprint(target)
    assert len(marks) == 3 * (1 + 3)
    assert all(type(m) is float and math.isfinite(m) for m in marks)
    assert marks == fingerprint(Target(lambda x: normal(x), dim=3))
    assert marks != fingerprint(Target(lambda x: normal(x) * 1.01, dim=3))
    assert all(math.isfinite(m) for m in fingerprint(Target(lambda x: jnp.nan, dim=1)))
    score = fingerprint(ScoreTarget(lambda x: -x, 3))
    np.testing.assert_allclose(np.reshape(score, (3, 4))[:, 0], 0)
    np.testing.assert_allclose(
        np.reshape(score, (3, 4))[:, 1:], np.reshape(marks, (3, 4))[:, 1:], rtol=1e-5
    )


def test_edited_data_are_another_target():
    """Though the log density hardly changes: one row of 100,000 is edited."""
    rows = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
    edited = rows.copy()
    edited[31_415] += 0.1

    def posterior(rows):
        return MinibatchTarget(
            normal, lambda x, row: -0.5 * jnp.sum((x - row) ** 2), rows, 2
        )

    target = posterior(rows)
    prints, others = fingerprint(target), fingerprint(posterior(edited))
    np.testing.assert_allclose(prints[:9], others[:9], rtol=1e-3, atol=1e-4)
    assert not same_target(target, prints, others)
    assert same_target(target, prints, prints)
    # Of version 0.1, which looked at the log density only.
    assert same_target(target, prints, prints[:9])
    # Rounded by another device.
    noise = 1 + 1e-7 * np.random.default_rng(1).normal(size=rows.shape)
    assert same_target(target, prints, fingerprint(posterior(rows * noise)))
    assert not same_target(target, prints, fingerprint(posterior(np.roll(rows, 1))))


def test_edited_parameters_are_another_target():
    a, b = (Target(planar.Funnel(y_scale=scale), 2) for scale in (3.0, 3.0001))
    assert not same_target(a, fingerprint(a), fingerprint(b))


def test_few_points_start_walks_at_every_scale(monkeypatch):
    """More than `MANY_DATA` observations have 4 points at each scale instead of 32."""
    target = MinibatchTarget(
        normal, lambda x, row: 0.0, np.zeros(probing.MANY_DATA + 1), 2
    )
    rng = np.random.default_rng(0)
    points = probing.starting_points(rng, target)
    assert len(points) == 12
    few = target.subsample(10)
    seen = probing.evaluate(few, points)
    walks = []

    def record(target, points, sigma=None):
        walks.append(points)
        return evaluate(target, points, sigma)

    evaluate = probing.evaluate
    monkeypatch.setattr(probing, "evaluate", record)
    assert probing.flat_directions(few, rng, points, seen) == []
    first = walks[-1].reshape(3, -1, len(probing.DISTANCES), 2)
    starts = first[:, 0, 0] - [probing.DISTANCES[0], 0.0]
    np.testing.assert_allclose(starts, points[[0, 4, 8]], atol=1e-9)


def network_score(compute, factor=1.0):
    """The score of a small energy model: products of matrices there and back."""
    shapes = (256, 64), (64, 256), (1, 64)
    keys = jax.random.split(KEY, len(shapes))
    layers = [
        (shape[1] ** -0.5 * jax.random.normal(key, shape)).astype(compute)
        for key, shape in zip(keys, shapes, strict=True)
    ]

    def energy(x):
        for weight in layers:
            x = jax.nn.elu((weight @ x.astype(compute)).astype(float))
        return x[0]

    slope = jax.grad(energy)
    return NoiseConditionalTarget(
        lambda x, sigma: factor * slope(x) / sigma, dim=64, sigma_range=(0.5, 1.0)
    )


def test_a_target_resembles_itself_however_it_is_rounded():
    half, single = network_score("bfloat16"), network_score("float32")
    marks, others = fingerprint(half), fingerprint(single)
    # Some numbers of a score are near zero: their own relative error says nothing.
    assert not np.allclose(marks, others, rtol=0.02, atol=1e-4)
    assert same_target(half, marks, others)
    # The bound is 2 % of the largest number, which this edit changes by 5 %.
    assert not same_target(half, marks, fingerprint(network_score("bfloat16", 1.05)))
    assert not same_target(single, others, fingerprint(network_score("float32", 1.01)))
    assert not same_target(single, others, others[:-1])


def complain(x):
    raise RuntimeError("the simulator is busy")


def test_an_exception_that_only_a_run_shows():
    def calls_out(x):
        shape = jax.ShapeDtypeStruct((), x.dtype)
        return jax.pure_callback(complain, shape, x, vmap_method="sequential") * x[0]

    def density(x):
        return normal(x) + jax.lax.stop_gradient(calls_out(jax.lax.stop_gradient(x)))

    text = read(Target(density, dim=2))
    assert text.startswith("Your log_density raised ")


@pytest.mark.once
def test_fingerprint_is_the_same_in_another_process():
    code = (
        "import json; from pushforward.targets import get; "
        "from pushforward.targets.examine import fingerprint; "
        "print(json.dumps(fingerprint(get('donut'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )  # fmt: skip
    assert json.loads(done.stdout) == pytest.approx(
        fingerprint(catalogue.get("donut")), rel=1e-6
    )


FIVE = jnp.arange(5)


def test_an_index_before_the_start():
    text = read(Target(lambda x: normal(x) - x[-7], dim=5))
    assert "reads an element beyond the ends of its parameters: dim is 5;" in text


@pytest.mark.parametrize(
    "function",
    [
        lambda x: normal(x) - x[7],
        lambda x: normal(x) - jnp.sum(x[jnp.array([0, 1, 7])]),
        jax.jit(lambda x: normal(x) - jnp.exp(x)[7]),
        lambda x: jax.lax.fori_loop(0, 8, lambda i, s: s - x[i] ** 2, 0.0),
    ],
)
def test_an_index_beyond_the_end(function):
    text = read(Target(function, dim=5))
    assert " of parameters of shape (5,): dim is 5;" in text
    tree = {"a": jnp.zeros(2), "b": jnp.zeros(5)}
    target = constrained(
        lambda p: normal(p["a"]) + function(p["b"]), {"b": "positive"}, example=tree
    )
    assert " of parameters of shape (5,): do the shapes in example fit" in read(target)


def test_an_index_that_vmap_clips_is_a_doubt():
    target = Target(
        lambda x: -jnp.sum(jax.vmap(lambda i: x[i] ** 2)(jnp.arange(7))), dim=5
    )
    text = doubted(target)
    assert " of parameters of shape (5,), in place of which JAX takes the near" in text


@pytest.mark.parametrize(
    "function",
    [
        lambda x: normal(x) - x[4] - x[-5],
        # What is read beyond the end is not used.
        lambda x: normal(x) - jnp.sum(jnp.where(FIVE < 4, x[FIVE + 1], 0.0)),
        lambda x: normal(x) - jnp.sum((FIVE < 4).astype(float) * x[FIVE + 1]),
        # Not of the parameters, though of their shape.
        lambda x: normal(x) - jnp.arange(5.0)[7] * x[0],
        lambda x: normal(x) - jnp.zeros(5).at[jnp.array([0, 7])].add(x[:2])[0],
        lambda x: jax.lax.fori_loop(0, 5, lambda i, s: s - x[i] ** 2, 0.0),
    ],
)
def test_an_index_that_does_no_harm(function):
    assert examine(KEY, Target(function, dim=5)).passed


def test_a_cholesky_factor_by_a_bijector_of_numpyro():
    bijector = CorrCholeskyTransform()

    def lkj(x):
        # NumPyro mixes types and ranks.
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            factor = bijector(x)
            prior = LKJCholesky(3, 2.0).log_prob(factor)
            return prior + bijector.log_abs_det_jacobian(x, factor)

    assert examine(KEY, Target(lkj, dim=3)).passed
