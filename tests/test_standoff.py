"""Draws that differ from a reference made by `check`: which of the two is wrong?"""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import pushforward as pf
from pushforward.diagnostics import check
from pushforward.diagnostics.reference import make_reference
from pushforward.diagnostics.standoff import movement
from pushforward.diagnostics.trials import Trial
from pushforward.diagnostics.two_sample import SlicedW2
from pushforward.targets.schools import EightSchoolsCentred

# The references are Markov chains of many steps.
pytestmark = pytest.mark.optimised

# Six groups whose spread the data hardly know: a funnel whose neck is so narrow that
# tempered particles come to it late.
GROUPS = EightSchoolsCentred(
    effects=(2.2, -1.0, 0.5, 1.2, -0.9, 0.3), standard_errors=(1.0,) * 6, tau_scale=1.0
)
EXAMPLE = {"mu": 0.0, "tau": 1.0, "theta": jnp.zeros(6)}


@pytest.fixture(scope="module")
def groups():
    return pf.targets.constrained(GROUPS, {"tau": "positive"}, example=EXAMPLE)


@pytest.fixture(scope="module")
def gaussian():
    """A target without exact draws, a reference made for it, and exact draws."""
    target = pf.Target(lambda x: -0.5 * jnp.sum(x**2), 2)
    made = make_reference(jax.random.key(0), target, None, 2000)
    return target, made, np.random.default_rng(0).standard_normal((2000, 2))


def test_exact_draws_of_a_centred_model_do_not_fail(groups):
    for i in range(3):
        draws = GROUPS.sample(jax.random.key(100 + i), 2000)
        found = check(jax.random.key(i), groups, draws)
        # A false alarm among three has a chance of at most 3 %, whatever the reference.
        assert found.passed is not False, str(found)


def test_draws_without_the_neck_do_not_pass(groups):
    draws = GROUPS.sample(jax.random.key(0), 4000)
    kept = np.flatnonzero(np.asarray(draws["tau"]) > np.exp(-1.5))[:2000]
    draws = jax.tree.map(lambda leaf: leaf[kept], draws)
    assert check(jax.random.key(0), groups, draws).passed is not True


def test_exact_draws_stand_still_whatever_the_reference(gaussian):
    target, made, _ = gaussian
    wrong = dataclasses.replace(made, draws=0.7 * made.draws + 0.2)
    rng = np.random.default_rng(1)
    p_values = [
        movement(
            jax.random.key(i), target, rng.standard_normal((400, 2)), wrong
        ).p_value
        for i in range(25)
    ]
    # Never more small p-values than uniform ones would have.
    assert stats.kstest(p_values, "uniform", alternative="greater").pvalue > 0.01


@pytest.mark.parametrize(
    "spoil",
    [
        lambda x: 1.1 * x,
        lambda x: 0.9 * x,
        lambda x: x + np.array([0.2, 0.0]),
        lambda x: np.where(np.arange(len(x))[:, None] < 20, 6.0, x),
    ],
    ids=["wide", "narrow", "shifted", "outliers"],
)
def test_draws_that_are_wrong_move(gaussian, spoil):
    target, made, exact = gaussian
    found = movement(jax.random.key(2), target, spoil(exact), made)
    # Each is off by at least four standard errors of what 2,000 draws and as many
    # moved ones say: p < 1e-4, but for the least that a permutation test can say.
    assert found.p_value <= 3 / 1200


def test_more_draws_than_a_block_holds(gaussian):
    target, made, _ = gaussian
    many = 1.1 * np.random.default_rng(3).standard_normal((5000, 2))
    assert movement(jax.random.key(2), target, many, made).p_value <= 3 / 1200


def judged(monkeypatch, gaussian, draws, *trials):
    """The verdict where the tests are these, and the reference finds no fault."""
    target, made, _ = gaussian
    assert made.made_here and not made.complaints
    module = sys.modules[check.__module__]
    monkeypatch.setattr(module, "make_reference", lambda *_: made)
    monkeypatch.setattr(module, "run_trials", lambda *_: ([*trials], []))
    return check(jax.random.key(1), target, draws)


ENERGY = Trial("energy", 1.0, 0.0, 1e-9, "the draws lie elsewhere", "mean log density")


def test_neither_moves_and_either_may_be_wrong(monkeypatch, gaussian):
    exact = gaussian[2]
    verdict = judged(monkeypatch, gaussian, exact, ENERGY)
    assert verdict.passed is None
    assert "energy: the draws lie elsewhere" in verdict.summary
    assert "either may be wrong; give a reference=" in verdict.summary
    energy, moved = verdict.findings
    assert energy.ok is None and moved.ok is True
    assert "50 HMC moves leave the draws where they are" in moved.sentence


def test_draws_that_move_are_those_that_are_wrong(monkeypatch, gaussian):
    verdict = judged(monkeypatch, gaussian, 1.2 * gaussian[2], ENERGY)
    assert verdict.passed is False
    energy, moved = verdict.findings
    assert energy.ok is False and moved.ok is False
    assert moved.p_value <= moved.threshold == 0.005
    assert "the draws are not there yet" in moved.sentence


@pytest.mark.parametrize(
    "other",
    [
        # What no local move can change, and what needs no reference.
        Trial("mode weights", 0.1, 0.0, 0.008, "a mode is light", "largest difference"),
        Trial("Stein discrepancy", 1.0, 0.0, 1e-9, "no fit", "U-statistic", False),
    ],
)
def test_other_evidence_stands_without_moves(monkeypatch, gaussian, other):
    verdict = judged(monkeypatch, gaussian, gaussian[2], ENERGY, other)
    assert verdict.passed is False
    assert len(verdict.findings) == 2


def test_the_approach_to_a_reference_is_calibrated():
    rng = np.random.default_rng(0)
    p_values = []
    for _ in range(200):
        # Exchangeable pairs with heavy tails, and a reference of another law.
        common = rng.standard_t(2, (60, 2))
        x, y = (common + rng.standard_normal((60, 2)) for _ in range(2))
        reference = 3 + rng.standard_normal((90, 2))
        tested = SlicedW2(rng, 2, 8).approach(x, y, reference, permutations=99)
        p_values.append(tested.p_value)
    # Never more small p-values than uniform ones would have.
    assert stats.kstest(p_values, "uniform", alternative="greater").pvalue > 0.01
    nearer = SlicedW2(rng, 2).approach(x, y + 1, reference, permutations=99)
    further = SlicedW2(rng, 2).approach(x, y - 1, reference, permutations=99)
    assert nearer.p_value == pytest.approx(0.01)
    assert further.p_value > 0.5
    assert nearer.statistic > 0 > further.statistic


@pytest.mark.slow
def test_exact_draws_of_a_centred_model_do_not_fail_in_twenty_seeds(groups):
    verdicts = [
        check(jax.random.key(i), groups, GROUPS.sample(jax.random.key(200 + i), 2000))
        for i in range(20)
    ]
    # With false alarms of 1 %, more than one in 20 has a chance of 2 %.
    assert sum(verdict.passed is False for verdict in verdicts) <= 1
