"""The verdict: what passes, what fails by name, and what cannot be told."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pushforward as pf
from pushforward.errors import UsageError


@pytest.fixture(scope="module")
def mog2():
    return pf.targets.get("mog2")


def weighted(target, key, n, share):
    """Exact draws of each mode of mog2, with `share` of them in the first."""
    draws = target.sample_flat(key, 4 * n)
    first = draws[draws[:, 0] < 0][: round(n * share)]
    second = draws[draws[:, 0] > 0][: n - len(first)]
    return jnp.concatenate([first, second])


def test_exact_draws_pass(mog2):
    # A family-wise false alarm of 1 %: of 10 fixed seeds, one failure has a chance of
    # about 10 %, two of less than 1 %.
    verdicts = [
        pf.check(jax.random.key(i), mog2, mog2.sample(jax.random.key(100 + i), 2000))
        for i in range(10)
    ]
    assert sum(v.passed is True for v in verdicts) >= 9
    verdict = verdicts[0]
    assert str(verdict).startswith("passed") and "exact draws" in verdict.reference
    assert json.loads(json.dumps(verdict.to_dict()))["passed"] is True
    # Beside every figure of the draws stands the reference's.
    assert all(f.reference is not None for f in verdict.findings)


@pytest.mark.parametrize("share", [1.0, 0.8])
@pytest.mark.parametrize("exact", [True, False])
def test_lost_and_lopsided_modes_fail_by_name(mog2, share, exact):
    """Also where the reference is a tempered-SMC run made by the check itself."""
    target = mog2 if exact else pf.Target(mog2.function, dim=2)
    draws = weighted(mog2, jax.random.key(1), 2000, share)
    verdict = pf.check(jax.random.key(2), target, draws)
    assert verdict.passed is False and str(verdict).startswith("FAILED")
    finding = next(f for f in verdict.findings if f.name == "mode weights")
    assert finding.ok is False
    assert "mode near" in finding.sentence and "%" in finding.sentence
    if not exact:
        assert "target evaluations" in verdict.reference


def test_a_sampler_is_checked_like_its_draws(mog2):
    method = pf.methods.Gaussian(steps=30, batch_size=16, particles=128)
    fitted = pf.fit(jax.random.key(0), mog2, method, progress=False)
    assert pf.check(jax.random.key(1), mog2, fitted.sampler).passed is False


def test_a_score_alone_cannot_pass():
    target = pf.ScoreTarget(lambda x: -x, dim=2)
    draws = jax.random.normal(jax.random.key(0), (1000, 2))
    assert pf.check(jax.random.key(1), target, draws).passed is None
    shifted = pf.check(jax.random.key(1), target, draws + 1.0)
    assert shifted.passed is False
    reference = jax.random.normal(jax.random.key(3), (1000, 2))
    given = pf.check(jax.random.key(1), target, draws, reference=reference)
    assert given.passed is True


def test_draws_that_are_not_finite_fail(mog2):
    draws = mog2.sample(jax.random.key(0), 1000).at[3, 1].set(jnp.nan)
    verdict = pf.check(jax.random.key(1), mog2, draws)
    assert verdict.passed is False and "not finite" in str(verdict)


@pytest.mark.parametrize("shape", [(10, 2), (1000, 3), (1000,)])
def test_bad_draws_get_a_sentence(mog2, shape):
    with pytest.raises(UsageError) as error:
        pf.check(jax.random.key(0), mog2, np.zeros(shape))
    assert "\n" not in str(error.value)


def test_refining_repairs_what_is_close(mog2):
    """Too wide a sampler is moved by MALA towards the target."""
    wide = mog2.sample(jax.random.key(0), 2000)
    wide = wide + 0.5 * jax.random.normal(jax.random.key(1), wide.shape)
    energy = jax.jit(jax.vmap(mog2.log_density))
    exact = energy(mog2.sample(jax.random.key(2), 2000)).mean()
    refined = pf.refine(jax.random.key(3), mog2, wide, steps=50)
    gap = abs(float(energy(refined).mean() - exact))
    # The sd of a log density of 2-d Gaussians is 1: 2000 draws give .02 each side.
    assert gap < 0.1 < abs(float(energy(wide).mean() - exact))
