"""Draws that differ from a reference made by `check`: which of the two is wrong?"""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import pushforward as pf
from pushforward import diagnostics
from pushforward.diagnostics import Outcome, check, stationarity
from pushforward.diagnostics.evaluation import log_densities
from pushforward.diagnostics.reference import make_reference
from pushforward.diagnostics.stationarity import hmc_movement
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
        assert found.outcome is not Outcome.FAILED, str(found)


def test_draws_without_the_neck_do_not_pass(groups):
    draws = GROUPS.sample(jax.random.key(0), 4000)
    kept = np.flatnonzero(np.asarray(draws["tau"]) > np.exp(-1.5))[:2000]
    draws = jax.tree.map(lambda leaf: leaf[kept], draws)
    assert check(jax.random.key(0), groups, draws).outcome is not Outcome.PASSED


def test_exact_draws_stand_still_whatever_the_reference(gaussian):
    target, made, _ = gaussian
    wrong = dataclasses.replace(made, draws=0.7 * made.draws + 0.2)
    rng = np.random.default_rng(1)
    p_values = [
        hmc_movement(
            jax.random.key(i), target, rng.standard_normal((400, 2)), wrong, 0.005
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
    found = hmc_movement(jax.random.key(2), target, spoil(exact), made, 0.005)
    # Each is off by at least four standard errors of what 2,000 draws and as many
    # moved ones say: p < 1e-4, but for the least that a permutation test can say.
    assert found.p_value <= 3 / 1200


def test_more_draws_than_a_block_holds(gaussian):
    target, made, _ = gaussian
    many = 1.1 * np.random.default_rng(3).standard_normal((5000, 2))
    assert (
        hmc_movement(jax.random.key(2), target, many, made, 0.005).p_value <= 3 / 1200
    )


def found(name, p_value, sentence, outcome=Outcome.FAILED):
    return diagnostics.TestResult(name, outcome, sentence, p_value=p_value, level=0.005)


def judged(monkeypatch, gaussian, draws, *results):
    """The verdict where the tests find this, and the reference is trusted."""
    target, made, _ = gaussian
    assert made.made_here and not made.doubts
    module = sys.modules[check.__module__]
    monkeypatch.setattr(module, "make_reference", lambda *_: made)
    monkeypatch.setattr(module, "_run_tests", lambda *_: ([*results], []))
    return check(jax.random.key(1), target, draws)


LOG_DENSITY = found("log density", 1e-9, "the draws lie elsewhere")


def test_neither_moves_and_either_may_be_wrong(monkeypatch, gaussian):
    exact = gaussian[2]
    verdict = judged(monkeypatch, gaussian, exact, LOG_DENSITY)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "log density: the draws lie elsewhere" in verdict.summary
    assert "either may be wrong; give a reference=" in verdict.summary
    density, moved = verdict.findings
    assert density.outcome is Outcome.INCONCLUSIVE
    assert moved.outcome is Outcome.PASSED
    assert "50 HMC moves leave the draws where they are" in moved.sentence


def test_draws_that_move_are_those_that_are_wrong(monkeypatch, gaussian):
    verdict = judged(monkeypatch, gaussian, 1.2 * gaussian[2], LOG_DENSITY)
    assert verdict.outcome is Outcome.FAILED
    density, moved = verdict.findings
    assert density.outcome is moved.outcome is Outcome.FAILED
    assert moved.p_value <= moved.level == 0.005
    assert "the draws do not follow the target yet" in moved.sentence


@pytest.mark.parametrize(
    "other",
    [
        # What no local move can change, and what needs no reference.
        found("mode weights", 0.008, "largest difference", Outcome.PASSED),
        found("Stein discrepancy", 1e-9, "no fit"),
    ],
)
def test_other_evidence_stands_without_moves(monkeypatch, gaussian, other):
    verdict = judged(monkeypatch, gaussian, gaussian[2], LOG_DENSITY, other)
    assert verdict.outcome is Outcome.FAILED
    assert len(verdict.findings) == 2


def test_a_chain_that_is_rejected_everywhere_proves_nothing(gaussian):
    """Nor does one that leads where nothing is defined; both used to pass."""
    target, made, exact = gaussian
    values = log_densities(target, exact)
    key = jax.random.key(0)
    tuned = stationarity.tune_mala(key, target, made.draws)
    hasty = dataclasses.replace(tuned, step_size=1e4)
    moved = stationarity.mala_movement(key, target, exact, values, hasty)
    assert moved.p_value == 1 and moved.unmoved == 1 and not moved.is_informative
    assert "0 % accepted, 100 % of the draws never moved" in moved.chain
    assert stationarity.mala_movement(key, target, exact, values, tuned).is_informative

    def rough(x):
        # A narrow comb: no step of a size that suits the whole is ever accepted.
        away = 64 * x - jnp.round(64 * x)
        return -0.5 * jnp.sum(x**2) - 1e8 * jnp.sum(away**2)

    comb = pf.Target(rough, 2)
    peaks = np.round(64 * exact) / 64
    assert hmc_movement(key, comb, peaks, made, 0.005).p_value == pytest.approx(1)


def test_the_test_of_stationarity_is_inconclusive_where_nothing_moves(gaussian):
    from pushforward.diagnostics import reference, tests
    from pushforward.diagnostics.evaluation import Sample

    exact = gaussian[2]

    @jax.custom_jvp
    def wall(x):
        return -0.5 * jnp.sum(x**2)

    # A gradient that leads nowhere: every proposal is far out.
    wall.defjvp(lambda p, t: (wall(*p), 1e8 * jnp.sum(t[0])))
    target = pf.Target(wall, 2)
    generator = reference.generator(jax.random.key(0))
    sample, _ = Sample.of(generator, target, exact)
    test = next(t for t in tests.TESTS if t.name == "stationarity")
    evidence = tests.Evidence(target, sample)
    result = test.run(jax.random.key(1), evidence, 0.01)
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "20 MALA steps hardly move the draws (0 % accepted" in result.sentence


def test_the_kernel_does_not_depend_on_the_draws():
    """The p-values of exact draws are uniform; few draws and a rough tuning show it."""
    target = pf.Target(lambda x: -jnp.sum(jnp.abs(x) ** 3), 2)
    rng = np.random.default_rng(0)
    p_values = []
    for i in range(60):
        # |x|^3 follows a Gamma law of shape 1/3.
        size = rng.gamma(1 / 3, size=(100, 2)) ** (1 / 3)
        draws = size * rng.choice([-1, 1], size=(100, 2))
        keys = jax.random.split(jax.random.key(i))
        kernel = stationarity.tune_mala(keys[0], target, rng.standard_normal((50, 2)))
        values = log_densities(target, draws)
        moved = stationarity.mala_movement(keys[1], target, draws, values, kernel)
        p_values.append(moved.p_value)
    assert stats.kstest(p_values, "uniform").pvalue > 0.01


def test_the_improvement_test_is_calibrated():
    rng = np.random.default_rng(0)
    p_values = []
    for _ in range(200):
        # Exchangeable pairs with heavy tails, and a reference of another law.
        common = rng.standard_t(2, (60, 2))
        x, y = (common + rng.standard_normal((60, 2)) for _ in range(2))
        reference = 3 + rng.standard_normal((90, 2))
        tested = SlicedW2(rng, 2, 8).improvement_test(x, y, reference, permutations=99)
        p_values.append(tested.p_value)
    # Never more small p-values than uniform ones would have.
    assert stats.kstest(p_values, "uniform", alternative="greater").pvalue > 0.01
    nearer = SlicedW2(rng, 2).improvement_test(x, y + 1, reference, permutations=99)
    further = SlicedW2(rng, 2).improvement_test(x, y - 1, reference, permutations=99)
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
    assert sum(verdict.outcome is Outcome.FAILED for verdict in verdicts) <= 1
