"""Draws that are copies of others: what is seen, and what is not held against them."""

import jax
import numpy as np
import pytest

import pushforward as pf
from pushforward.diagnostics import Outcome, check
from pushforward.diagnostics.permutations import num_permutations
from pushforward.diagnostics.repeats import Neighbours, repetition
from pushforward.diagnostics.two_sample import RobustScaler

LEVEL = 0.01 / 9


def p_value(rng, draws, others=None):
    scaler = RobustScaler.of(draws if others is None else others)
    return repetition(
        rng,
        scaler,
        draws,
        others,
        level=LEVEL,
        permutations=num_permutations(LEVEL),
    ).p_value


def normal(rng, n, dim):
    return rng.standard_normal((n, dim)).astype(np.float32).astype(float)


def twice(rng, n, dim):
    x = normal(rng, n // 2, dim)
    return np.concatenate([x, x])


def nearly(rng, n, dim):
    x = normal(rng, n // 2, dim)
    return np.concatenate([x, x + 1e-6 * rng.standard_normal(x.shape)])


def groups(rng, n, dim):
    x = normal(rng, n // 20, dim)
    x = np.concatenate(20 * [x])
    return x + 1e-6 * rng.standard_normal(x.shape)


@pytest.mark.parametrize("dim", [1, 2, 10])
@pytest.mark.parametrize("make", [twice, nearly, groups])
def test_copies_are_seen_with_and_without_a_reference(make, dim):
    rng = np.random.default_rng(0)
    draws = make(rng, 400, dim)
    assert p_value(rng, draws) < LEVEL
    assert p_value(rng, draws, normal(rng, 400, dim)) < LEVEL
    # So are they if only a part of the draws repeats.
    some = np.concatenate([draws[:40], draws[200:240], normal(rng, 320, dim)])
    assert make is groups or p_value(rng, some) < LEVEL


def lattice(rng, n):
    return rng.poisson(3, (n, 1)) + 0.0


def half_lattice(rng, n):
    return np.column_stack([rng.poisson(3, n), rng.standard_normal(n)])


def atom(rng, n):
    return np.where(rng.random((n, 1)) < 0.3, 0, rng.standard_normal((n, 2)))


def clumps(rng, n):
    return rng.integers(0, 300, (n, 2)) + 1e-5 * rng.standard_normal((n, 2))


@pytest.mark.parametrize("make", [lattice, half_lattice, atom, clumps])
def test_what_the_reference_repeats_too_is_not_held_against_the_draws(make):
    rng = np.random.default_rng(0)
    for _ in range(5):
        assert p_value(rng, make(rng, 400), make(rng, 400)) > LEVEL
    # But each of them twice is more than the law explains.
    x = make(rng, 200)
    if make is not lattice:
        assert p_value(rng, np.concatenate([x, x]), make(rng, 400)) < LEVEL


def laws():
    yield "normal", lambda rng, n: rng.standard_normal((n, 1))
    yield "Cauchy", lambda rng, n: rng.standard_cauchy((n, 1))
    yield "many scales", lambda rng, n: np.exp(5 * rng.standard_normal((n, 2)))
    yield (
        "a spike",
        lambda rng, n: (
            np.where(rng.random((n, 1)) < 0.5, 1e-4, 1) * rng.standard_normal((n, 2))
        ),
    )
    yield (
        "rounded to 32 bits",
        lambda rng, n: (
            (1e4 + 1e-2 * rng.standard_normal((n, 1))).astype(np.float32).astype(float)
        ),
    )


@pytest.mark.parametrize("law", [law for _, law in laws()], ids=[n for n, _ in laws()])
def test_densities_have_no_copies(law):
    """Without a reference: the p-values are those of at most a uniform number."""
    rng = np.random.default_rng(0)
    p_values = [p_value(rng, law(rng, n)) for n in 10 * [100, 500]]
    assert min(p_values) > 0.05


def test_close_neighbours_are_as_rare_as_the_bound_says():
    """The chance of a ratio below t is t^d, at most t."""
    rng = np.random.default_rng(0)
    for dim in (1, 2):
        x = rng.random((4000, dim))
        ratios = Neighbours.of(RobustScaler.of(x), x).ratios[:, 0]
        for t in (0.1, 0.5):
            assert np.mean(ratios < t) == pytest.approx(t**dim, abs=0.03)


def test_a_few_copies_do_no_harm():
    rng = np.random.default_rng(0)
    draws = normal(rng, 2000, 2)
    draws[:8] = draws[-8:]
    assert p_value(rng, draws) > LEVEL


@pytest.mark.optimised
def test_the_verdict_sees_copies():
    """It used to pass them."""
    target = pf.targets.get("donut")
    half = np.asarray(target.sample(jax.random.key(0), 300), float)
    noise = 1e-6 * np.random.default_rng(0).standard_normal(half.shape)
    for draws in (np.concatenate([half, half]), np.concatenate([half, half + noise])):
        verdict = check(jax.random.key(1), target, draws, n=600)
        assert verdict.outcome is Outcome.FAILED
        assert [f.name for f in verdict.findings if f.outcome == "failed"] == [
            "repeats"
        ]
        assert "100 % of the draws are copies of others, or nearly" in verdict.summary
