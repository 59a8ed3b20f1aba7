"""Tails: the level of their comparison, and what it sees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import pushforward as pf
from pushforward.diagnostics import Outcome, check
from pushforward.diagnostics.extremes import Directions, compare_extremes
from pushforward.diagnostics.permutations import num_permutations
from pushforward.diagnostics.two_sample import RobustScaler
from pushforward.networks import AffineMap
from pushforward.sampler import Sampler
from pushforward.targets.classic import StudentT
from pushforward.targets.preconditioner import Preconditioner

LEVEL = 0.01 / 9


def student(rng, n, dim=2, df=5):
    z = rng.standard_normal((n, dim))
    return z * np.sqrt(0.5 * df / rng.gamma(0.5 * df, size=(n, 1)))


def log_density(x, df=5):
    return -0.5 * (df + x.shape[1]) * np.log1p(np.sum(x**2, axis=1) / df)


def compare(rng, own, other, worth=None, level=LEVEL):
    """Tails by log density, distance and coordinates."""
    scaler = RobustScaler.of(other)
    names = [f"x[{i}]" for i in range(own.shape[1])]
    one, two = (
        Directions.of(scaler, names, x, {"the log density": log_density(x)})
        for x in (own, other)
    )
    m = len(other)
    weights = np.full(m, (worth or m) / m)
    return compare_extremes(
        rng, one, two, weights, permutations=num_permutations(level)
    )


@pytest.mark.parametrize(
    ("make", "n", "m"),
    [(student, 150, 600), (lambda rng, n: rng.poisson(1, (n, 2)), 200, 200)],
)
def test_draws_of_one_law_are_told_apart_as_often_as_the_level_says(make, n, m):
    """Also of a law with many ties."""
    rng = np.random.default_rng(0)
    p_values = [
        compare(rng, 1.0 * make(rng, n), 1.0 * make(rng, m), level=0.02).p_value
        for _ in range(300)
    ]
    for level in (0.05, 0.2, 0.5):
        found = int(np.sum(np.array(p_values) <= level))
        assert stats.binom.sf(found - 1, len(p_values), level) > 1e-3
    # Nor is it a test that never rejects.
    assert np.mean(np.array(p_values) <= 0.2) > 0.1


def test_a_reference_of_copies_is_worth_its_distinct_draws():
    """Each draw of the reference comes three times, and its worth says so."""
    rng = np.random.default_rng(0)
    p_values = []
    for _ in range(200):
        reference = np.repeat(student(rng, 400), 3, axis=0)
        found = compare(rng, student(rng, 200), reference, worth=400, level=0.02)
        p_values.append(found.p_value)
    found = int(np.sum(np.array(p_values) <= 0.05))
    assert stats.binom.sf(found - 1, len(p_values), 0.05) > 1e-3


def test_a_tail_that_is_cut_off_has_the_chance_of_the_closed_form():
    """No draw where k of m reference draws lie: (m / (n + m))^k in one direction."""
    n, m, k = 100, 300, 20
    values = np.concatenate([np.arange(n), np.arange(m - k) / m, n + np.arange(k)])
    own, other = (
        Directions(v[:, None], ("it is high",), np.ones(1))
        for v in (values[:n], values[n:])
    )
    found = compare_extremes(
        np.random.default_rng(0), own, other, np.ones(m), permutations=99
    )
    bound = (m / (n + m)) ** k
    # Bonferroni over the lines that were tried.
    assert bound < found.p_value < 400 * bound
    assert found.where == "it is high"
    # Lines are drawn ever more rarely, so that one of the twenty may be missed.
    assert found.share == 0 and found.reference >= (k - 1) / m


@pytest.mark.parametrize(("dim", "kept", "least"), [(2, 0.98, 6), (5, 0.995, 4)])
def test_cut_tails_are_seen(dim, kept, least):
    """At 99.5 % ten of 2,000 draws are missing: exact ones miss them once in 20,000."""
    rng = np.random.default_rng(0)
    cut = np.quantile(log_density(student(rng, 100_000, dim)), 1 - kept)
    seen = 0
    for _ in range(6):
        draws = student(rng, 4000, dim)
        draws = draws[log_density(draws) > cut][:2000]
        found = compare(rng, draws, student(rng, 20_000, dim), level=LEVEL)
        seen += found.p_value <= LEVEL
    assert seen >= least


def test_heavy_tails_are_seen():
    rng = np.random.default_rng(0)
    found = compare(rng, student(rng, 2000, df=3), student(rng, 8000))
    assert found.p_value < 1e-4 and found.share > found.reference


@pytest.fixture(scope="module")
def target():
    return pf.Target(
        lambda x: -3.5 * jnp.log1p(jnp.sum(x**2) / 5),
        dim=2,
        sample=StudentT(dim=2).sample,
    )


@pytest.mark.optimised
def test_the_verdict_sees_cut_tails(target):
    """It used to pass them."""
    draws = np.asarray(target.sample(jax.random.key(0), 1500), float)
    values = log_density(draws)
    draws = draws[values > np.quantile(values, 0.02)][:1000]
    verdict = check(jax.random.key(1), target, draws, n=1000)
    found = next(f for f in verdict.findings if f.name == "extremes")
    assert verdict.outcome is found.outcome is Outcome.FAILED
    assert "the tails are wrong: where" in found.sentence
    assert "there are 0 % of the draws, and" in found.sentence


@pytest.mark.optimised
def test_a_sampler_is_judged_by_its_weights_where_there_is_no_reference():
    """A normal law in place of a Student t: too little far out, and the weights say so.

    The target has no exact draws, and a reference cannot be afforded.
    """
    normal = pf.Target(lambda x: -0.5 * jnp.sum(x**2), dim=2)
    student = pf.Target(lambda x: -3.5 * jnp.log1p(jnp.sum(x**2) / 5), dim=2)
    for law, scale, outcome in (
        (normal, 1.0, Outcome.PASSED),
        (student, 1.15, Outcome.FAILED),
    ):
        sampler = Sampler(
            AffineMap(2),
            Preconditioner.affine(jnp.zeros(2), scale * jnp.eye(2)),
            law.structure,
        )
        verdict = check(jax.random.key(0), law, sampler, max_evaluations=1_000_000)
        assert verdict.evaluations <= 1_000_000
        found = next(f for f in verdict.findings if f.name == "weighted extremes")
        assert found.outcome is outcome, str(verdict)
        assert "exact ones, Pareto k" in found.sentence
    # Draws alone have no weights.
    draws = np.random.default_rng(0).standard_normal((200, 2))
    verdict = check(jax.random.key(0), normal, draws, max_evaluations=1_000_000)
    assert "weighted extremes" not in [f.name for f in verdict.findings]
