"""Exploration finds the scale, the modes and the normaliser of unknown targets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pushforward as pf
from pushforward.errors import UsageError
from pushforward.mcmc.ascent import ascend, maximum_at

LOG_2PI = float(np.log(2 * np.pi))


def gaussian(means, scales):
    means, scales = jnp.asarray(means), jnp.asarray(scales)
    return pf.Target(
        lambda x: -0.5 * jnp.sum(((x - means) / scales) ** 2), dim=len(means)
    )


def mixture(means, sd, weights):
    means = jnp.asarray(means, float)
    logs = jnp.log(jnp.asarray(weights, float))
    constant = means.shape[1] * (0.5 * LOG_2PI + np.log(sd))

    def log_density(x):
        squares = jnp.sum((x[None] - means) ** 2, axis=1)
        return jax.nn.logsumexp(logs - 0.5 * squares / sd**2) - constant

    return pf.Target(log_density, dim=means.shape[1])


def test_ascents_reach_maxima_at_every_scale():
    scales = jnp.array([1e-4, 1.0, 1e5])
    centre = jnp.array([3e-2, -40.0, 2e6])
    target = gaussian(centre, scales)
    starts = 10.0 * jax.random.normal(jax.random.key(0), (32, 3))
    best, _ = ascend(target.log_density, starts, jnp.ones_like(starts))
    errors = np.abs(np.asarray((best - centre[None]) / scales[None]))
    assert errors.max() < 0.05


def test_an_ascent_returns_from_points_of_no_density():
    def log_density(x):
        return jnp.where(x[0] > 1.0, -jnp.inf, jnp.sqrt(x[1] + 4) - jnp.sum(x**2))

    target = pf.Target(log_density, dim=2)
    starts = jax.random.normal(jax.random.key(0), (16, 2)) - 0.5
    best, height = ascend(target.log_density, starts, 0.5 * jnp.ones((16, 2)))
    # Where 1 / (2 sqrt(y + 4)) = 2 y.
    root = np.roots([16.0, 64.0, 0.0, -1.0])
    y = float(root[(root.real > 0) & (abs(root.imag) < 1e-9)].real[0])
    usable = np.isfinite(np.asarray(height))
    assert usable.sum() >= 14
    np.testing.assert_allclose(best[usable], [[0.0, y]] * usable.sum(), atol=1e-3)


def test_widths_of_a_gaussian_are_its_own():
    factor = jnp.array([[2.0, 0.0], [1.5, 0.1]])
    inverse = jnp.linalg.inv(factor)
    target = pf.Target(lambda x: -0.5 * jnp.sum((inverse @ (x - 3.0)) ** 2), dim=2)
    top = jax.jit(lambda x: maximum_at(target.log_density, x))(jnp.array([2.5, 3.4]))
    np.testing.assert_allclose(top.position, [3.0, 3.0], atol=1e-3)
    covariance = np.asarray(top.axes @ top.axes.T)
    np.testing.assert_allclose(covariance, factor @ factor.T, rtol=1e-2, atol=1e-3)
    mass = LOG_2PI + float(jnp.linalg.slogdet(factor)[1])
    assert float(top.log_mass) == pytest.approx(mass, abs=0.02)


def test_the_width_of_a_flat_top_is_where_the_density_falls():
    target = pf.Target(lambda x: -jnp.sum((x / 5.0) ** 8), dim=1)
    top = maximum_at(target.log_density, jnp.array([0.3]))
    # Down by 2 at 5 * 2^(1/8), which counts as two standard deviations.
    assert float(jnp.abs(top.axes[0, 0])) == pytest.approx(2.5 * 2**0.125, rel=0.1)


@pytest.mark.parametrize("dim", [2, 10])
def test_modes_far_apart_keep_their_weights(dim):
    """Twelve Gaussians in a box of 80 standard deviations a side."""
    rng = np.random.default_rng(3)
    means = rng.uniform(-40, 40, (12, dim))
    shares = rng.dirichlet(np.full(12, 10.0))
    target = mixture(means, 1.0, shares)
    found = pf.explore(jax.random.key(0), target)
    assert found.agreed and found.num_maxima == 12
    # The two halves may differ in log Z by .2, which is the error of a share relative
    # to itself; on top come 4.5 standard deviations of 2,048 independent particles.
    nearest = np.argmin(
        np.linalg.norm(np.asarray(found.particles)[:, None] - means[None], axis=-1), 1
    )
    held = np.bincount(nearest, minlength=12) / len(nearest)
    errors = 0.2 * shares + 4.5 * np.sqrt(shares * (1 - shares) / 2048)
    assert (np.abs(held - shares) < errors).all()
    assert np.sum(found.mode_weights) == pytest.approx(1.0)
    assert abs(found.log_normaliser) < 0.15
    # In the plane some of the twelve overlap.
    assert len(found.mode_weights) == 12 if dim == 10 else len(found.mode_weights) >= 6


def test_scale_and_place_need_not_be_known():
    target = gaussian([3e-3, -20.0, 5e7], [1e-4, 1.0, 1e6])
    found = pf.explore(jax.random.key(1), target)
    truth = 1.5 * LOG_2PI + np.log(1e2)
    assert found.agreed and abs(found.log_normaliser - truth) < 0.15
    assert len(found.mode_weights) == 1
    sds = np.asarray(found.particles).std(axis=0)
    np.testing.assert_allclose(sds, [1e-4, 1.0, 1e6], rtol=0.1)


def test_a_ring_is_one_mode():
    target = pf.targets.get("donut")
    found = pf.explore(jax.random.key(2), target)
    assert found.agreed and len(found.mode_weights) == 1
    assert "1 mode," in repr(found)
    r = np.linspace(0, 10, 20001)
    truth = np.log(
        np.sum(r * np.exp(-((r - 2.5) ** 2) / 0.5)) * (r[1] - r[0]) * 2 * np.pi
    )
    assert abs(found.log_normaliser - truth) < 0.15


def test_a_narrow_maximum_does_not_hide_the_mass():
    """The highest point of a funnel is in its neck, where almost nothing lies."""
    target = pf.targets.get("neal_funnel")
    found = pf.explore(jax.random.key(3), target, max_evaluations=2_000_000)
    scale = np.asarray(found.draws)[:, 0]
    assert abs(scale.mean()) < 3.0 and scale.std() > 1.2


def test_parts_without_density_are_left_out():
    """Half of the plane has density zero, a strip is not a number."""

    def log_density(x):
        value = -0.5 * jnp.sum(x**2)
        value = jnp.where(x[0] < 0, -jnp.inf, value)
        return jnp.where(x[1] > 2.5, jnp.nan, value)

    found = pf.explore(jax.random.key(4), pf.Target(log_density, dim=2))
    x = np.asarray(found.particles)
    assert np.isfinite(x).all() and (x[:, 0] >= 0).all() and (x[:, 1] <= 2.5).all()
    truth = LOG_2PI - np.log(2) + np.log(0.99379)
    assert abs(found.log_normaliser - truth) < 0.15


def test_the_same_key_gives_the_same_exploration():
    target = pf.targets.get("mog2")
    first, second = (pf.explore(jax.random.key(5), target) for _ in range(2))
    np.testing.assert_array_equal(first.particles, second.particles)
    assert first.log_normaliser == second.log_normaliser


def test_draws_come_in_the_users_tree():
    target = pf.constrained(
        lambda p: -p["tau"], {"tau": "positive"}, example={"tau": 1.0}
    )
    found = pf.explore(jax.random.key(6), target)
    assert found.draws["tau"].shape == (len(found.particles),)
    assert (np.asarray(found.draws["tau"]) > 0).all()
    assert abs(found.log_normaliser) < 0.15


def test_bad_input_gets_a_sentence():
    target = pf.Target(lambda x: jnp.nan * jnp.sum(x), dim=2)
    with pytest.raises(UsageError, match="finite at none of the points"):
        pf.explore(jax.random.key(0), target)
    with pytest.raises(
        UsageError, match="max_evaluations must be a whole number of at l"
    ):
        pf.explore(jax.random.key(0), pf.targets.get("donut"), max_evaluations=0)
    score = pf.ScoreTarget(lambda x: -x, dim=2)
    with pytest.raises(UsageError, match="explore needs a log density"):
        pf.explore(jax.random.key(0), score)


def test_supports_that_end_where_the_density_is_flat_or_highest():
    """There is no curvature, and the highest point is a corner."""
    corner = jnp.array([-3.0, 2.0])

    def triangle(x):
        u = (x - corner) / jnp.array([5.0, 0.5])
        inside = (u[0] > 0) & (u[1] > 0) & (u[0] + u[1] < 1)
        return jnp.where(inside, 3 * u[0] - u[1], -jnp.inf)

    def box(x):
        return jnp.where(jnp.all(jnp.abs(x - 5) < 1), 0.0 * x[0], -jnp.inf)

    # Half of the distance between the two ends, where a fall by 2 is two deviations.
    flat = maximum_at(box, jnp.array([4.5, 5.2]))
    np.testing.assert_allclose(np.linalg.norm(flat.axes, axis=0), 0.5, rtol=1e-4)
    target = pf.Target(triangle, dim=2)
    found = pf.explore(jax.random.key(0), target, max_evaluations=2_000_000)
    assert np.isfinite(jax.vmap(triangle)(found.particles)).all()
