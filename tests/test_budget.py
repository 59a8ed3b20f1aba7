"""`fit(max_evaluations=)`: what it spends, and what it says about it."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pushforward as pf
from pushforward import methods
from pushforward.errors import FileError, UsageError
from pushforward.mcmc.exploration import _first_particles as first_particles
from pushforward.mcmc.smc import EVALUATIONS_PER_TEMPERATURE

KEY = jax.random.key(0)
NORMAL = pf.Target(lambda x: -0.5 * jnp.sum((x - 1.0) ** 2), dim=2)
# Without an exploration nothing is spent before the first step.
PLAIN = methods.Gaussian(steps=500, batch_size=16, whiten=False)
# Draws that every fit ends with.
LAST = 2048


@pytest.mark.parametrize("name", sorted(methods.REGISTRY))
@pytest.mark.parametrize("evaluations", [1, 5_000, 333_333, 10**12])
def test_steps_are_as_many_as_are_paid_for(name, evaluations):
    method = methods.REGISTRY[name]().resolve(NORMAL)
    steps = method.affordable_steps(NORMAL, evaluations)
    assert 1 <= steps <= method.steps
    if steps > 1:
        assert method.evaluations_of(NORMAL, steps) <= evaluations
    if steps < method.steps:
        assert method.evaluations_of(NORMAL, steps + 1) > evaluations


def test_steps_of_two_minibatches_cost_twice():
    x = jnp.arange(40.0)
    target = pf.MinibatchTarget(
        lambda p: -0.5 * jnp.sum(p**2),
        lambda p, row: -0.5 * jnp.sum((row - p) ** 2),
        x,
        batch_size=10,
        dim=1,
    )
    one, two = (m(steps=10).resolve(target) for m in (methods.KL, methods.DFT))
    assert two.minibatches == 2 * one.minibatches
    paid = two.evaluations_of(target, 7)
    assert two.affordable_steps(target, paid) == 7
    assert two.affordable_steps(target, paid - 1) == 6


def test_a_fit_spends_its_budget_and_says_what_that_paid_for(tmp_path):
    budget = LAST + 16 * 130 + 5
    out = tmp_path / "run"
    fit = pf.fit(KEY, NORMAL, PLAIN, max_evaluations=budget, out=out, progress=False)
    assert fit.finished and fit.steps == fit.planned == 130
    assert fit.evaluations == LAST + 16 * 130
    assert "max_evaluations=4,133 paid for 130 steps of 500." in fit.message
    assert fit.message.startswith("Finished 130 steps")
    assert fit.config["max_evaluations"] == budget and fit.config["steps"] == 500
    # The schedule is that of 130 steps, not the beginning of one of 500.
    shorter = pf.fit(KEY, NORMAL, PLAIN, steps=130, progress=False)
    ours, theirs = (f.sampler.sample(KEY, 5) for f in (fit, shorter))
    np.testing.assert_array_equal(ours, theirs)
    # A run keeps its budget: more steps are none, and another one is refused.
    again = pf.fit(KEY, NORMAL, PLAIN, steps=900, out=out, resume=True, progress=False)
    assert again.steps == 130 and again.evaluations == fit.evaluations
    with pytest.raises(FileError, match="max_evaluations=4133 and cannot go on with 9"):
        pf.fit(KEY, NORMAL, PLAIN, max_evaluations=9, out=out, resume=True)


def test_a_budget_that_is_not_reached_changes_nothing():
    plain = pf.fit(KEY, NORMAL, PLAIN, steps=40, progress=False)
    fit = pf.fit(KEY, NORMAL, PLAIN, steps=40, max_evaluations=1e6, progress=False)
    assert fit.steps == 40 and "max_evaluations" not in fit.message
    ours, theirs = (f.sampler.sample(KEY, 5) for f in (fit, plain))
    np.testing.assert_array_equal(ours, theirs)


def test_stopped_and_resumed_it_makes_the_same_steps(tmp_path):
    options = {"max_evaluations": 4000, "progress": False}
    whole = pf.fit(KEY, NORMAL, PLAIN, **options)
    out = tmp_path / "run"
    part = pf.fit(
        KEY,
        NORMAL,
        PLAIN,
        out=out,
        callback=lambda event: event.step == 50,
        callback_every=10,
        **options,
    )
    assert part.steps == 50 and part.planned == whole.planned
    rest = pf.fit(KEY, NORMAL, PLAIN, out=out, resume=True, progress=False)
    assert rest.steps == whole.steps and rest.evaluations == whole.evaluations
    ours, theirs = (f.sampler.sample(KEY, 5) for f in (rest, whole))
    np.testing.assert_array_equal(ours, theirs)


def test_every_key_has_the_budget():
    keys = jax.random.split(KEY, 2)
    fits = pf.fit_many(keys, NORMAL, PLAIN, max_evaluations=4000, progress=False)
    assert [f.evaluations for f in fits] == [LAST + 16 * ((4000 - LAST) // 16)] * 2
    assert all("paid for 122 steps of 500" in f.message for f in fits)


def test_what_is_too_little_is_said():
    fit = pf.fit(KEY, NORMAL, PLAIN, max_evaluations=100, progress=False)
    assert fit.steps == 1 and fit.finished
    assert "max_evaluations=100 did not pay for the least" in fit.message
    assert f"it took {LAST + 16:,} with 1 step of 500" in fit.message


@pytest.mark.parametrize("bad", [0, -5, float("nan")])
def test_what_is_no_number_of_evaluations_is_refused(bad):
    with pytest.raises(UsageError, match="max_evaluations must be a"):
        pf.fit(KEY, NORMAL, PLAIN, max_evaluations=bad)
    with pytest.raises(UsageError, match="max_evaluations must be a"):
        pf.fit_many(jax.random.split(KEY, 2), NORMAL, PLAIN, max_evaluations=bad)


def test_the_start_has_half_of_it():
    few = methods.KL().within(600_000)
    assert few.training.particles == 200
    assert methods.KL().within(10**9).training.particles == 8192
    assert methods.Adaptive().within(600_000).max_evaluations == 300_000
    assert methods.Adaptive(max_evaluations=5).within(600_000).max_evaluations == 5


def test_the_first_particles_are_paid_for():
    each = 15 * EVALUATIONS_PER_TEMPERATURE
    assert first_particles(math.inf) == (1024, True)
    for left in (1e3, 1e5, 3e5, 1e6, 1e7):
        n, enough = first_particles(left)
        runs = 5 if enough else 2
        assert 64 <= n <= 1024
        assert n == 64 or n * runs * each <= left
        # Twice as many would not be, nor are there ever more.
        assert n == 1024 or 2 * n * runs * each > left


@pytest.mark.slow
@pytest.mark.parametrize("name", ["donut", "mog2", "neal_funnel"])
def test_exploration_keeps_its_bound(name):
    target = pf.targets.get(name)
    for bound in (100_000, 400_000, 1_600_000):
        found = pf.explore(KEY, target, max_evaluations=bound)
        assert found.evaluations <= 1.1 * bound
        assert np.isfinite(found.particles).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["default", "kl", "dft", "transport"])
def test_methods_keep_the_budget(name):
    target = pf.targets.get("donut")
    method = None if name == "default" else methods.REGISTRY[name]()
    for budget in (150_000, 600_000):
        fit = pf.fit(KEY, target, method, max_evaluations=budget, progress=False)
        assert fit.finished
        assert fit.evaluations <= 1.1 * budget
        assert f"max_evaluations={budget:,} paid for {fit.steps} steps" in fit.message
