"""One program for many targets, and the floor."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pushforward as pf
from pushforward import methods, networks
from pushforward.diagnostics import ExactBaseline, ksd
from pushforward.errors import UsageError
from pushforward.targets.stacked import StackedTargets, SwitchTarget

TINY = methods.Gaussian(steps=40, batch_size=64, particles=256)


class Shifted(eqx.Module):
    centre: jax.Array

    def __call__(self, x):
        return -0.5 * jnp.sum((x - self.centre) ** 2)


def test_targets_of_one_kind_are_stacked():
    targets = [pf.Target(Shifted(jnp.full(2, c)), dim=2) for c in (0.0, 5.0)]
    together = StackedTargets.of(targets)
    assert not isinstance(together.first, SwitchTarget)
    keys = jax.random.split(jax.random.key(0), 2)
    fits = pf.fit_many(keys, targets, TINY, progress=False)
    for fit, centre in zip(fits, (0.0, 5.0), strict=True):
        draws = fit.sampler.sample(jax.random.key(1), 10_000)
        # A Gaussian is fitted exactly: what is left is the noise of the last steps.
        np.testing.assert_allclose(draws.mean(axis=0), centre, atol=0.1)


def test_different_targets_are_fitted_as_each_alone():
    targets = [pf.targets.get(name) for name in ("gaussian", "squiggle")]
    assert isinstance(StackedTargets.of(targets).first, SwitchTarget)
    keys = jax.random.split(jax.random.key(3), 2)
    # In the targets' own coordinates: exploration multiplies rounding errors.
    method = methods.KSD(
        network=networks.residual(8, 1), steps=20, batch_size=16, whiten=False
    )
    together = pf.fit_many(keys, targets, method, progress=False)
    for key, target, ours in zip(keys, targets, together, strict=True):
        alone = pf.fit(key, target, method, progress=False)
        a, b = (f.sampler.sample(jax.random.key(1), 100) for f in (alone, ours))
        # The same draws up to the rounding of a batched program; the steps of Adam are
        # 1e-3 long, so the wrong target would differ by some hundredths.
        np.testing.assert_allclose(a, b, atol=1e-3)
        # The last ones are those of the draws at the end.
        assert ours.evaluations == alone.evaluations == 20 * 16 + 2048


def test_different_targets_keep_their_noise_levels():
    targets = [
        pf.NoiseConditionalTarget(score, dim=2, sigma_range=(0.3, 3.0))
        for score in (lambda x, s: -x / (1 + s**2), lambda x, s: -x / (2 + s**2))
    ]
    among = StackedTargets.of(targets).first
    assert isinstance(among, SwitchTarget) and among.noise_range == (0.3, 3.0)
    noise = methods.KL().resolve(among).objective.noise
    assert noise.levels == noise.sampler_levels == (0.3, 3.0)


def test_targets_that_do_not_go_together():
    plane, line = pf.targets.get("gaussian"), pf.Target(lambda x: -(x[0] ** 2), dim=1)
    keys = jax.random.split(jax.random.key(0), 2)
    with pytest.raises(UsageError, match="one dimension and be of one kind"):
        pf.fit_many(keys, [plane, line], TINY, progress=False)
    with pytest.raises(UsageError, match="2 keys and 1 targets"):
        pf.fit_many(keys, [plane], TINY, progress=False)

    def posterior(n):
        return pf.MinibatchTarget(
            lambda x: -jnp.sum(x**2),
            lambda x, y: -jnp.sum((x - y) ** 2),
            jnp.ones((n, 1)),
            dim=1,
            batch_size=2,
        )

    with pytest.raises(UsageError, match="differ in their data alone"):
        StackedTargets.of([posterior(4), posterior(5)])


def test_the_baseline_of_exact_draws():
    target = pf.targets.get("gaussian")
    baseline = ExactBaseline(jax.random.key(0), target, 100, sets=200)
    exact = baseline.compare(jax.random.key(1), target.sample_flat, comparisons=6)
    # Three means of exact draws, each above its bound with probability 1/600, or a few
    # times that, since the distances are skewed.
    assert all(found.indistinguishable for found in exact.values())
    assert abs(exact["ksd_u"].exact) < 4 * exact["ksd_u"].exact_sd / 200**0.5
    assert exact["sliced_w2"].ratio == pytest.approx(1.0, abs=0.2)
    assert exact["ksd_v"].error == exact["ksd_v"].sd / 20**0.5

    def shifted(key, n):
        return target.sample_flat(key, n) + 0.5

    moved = baseline.compare(jax.random.key(2), shifted, sets=5)
    assert not any(found.indistinguishable for found in moved.values())
    # One that has run away is not at the floor, and no warning (an error here) either.
    away = baseline.compare(jax.random.key(2), lambda key, n: jnp.full((n, 2), jnp.inf))
    assert not any(found.indistinguishable for found in away.values())
    x = target.sample_flat(jax.random.key(9), 100)
    direct = ksd(x, jax.vmap(target.score)(x))
    only = baseline.measure(jax.random.key(3), lambda key, n: x, 1)
    assert only["ksd_v"][0] == pytest.approx(float(direct.v), rel=1e-5)
    assert only["ksd_u"][0] == pytest.approx(float(direct.u), rel=1e-4)
