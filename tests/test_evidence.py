"""Two-sided evidence: what is known in closed form of two normals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pushforward.methods.evidence import Evidence

N = 20_000


def deltas(mean, log_z, *, n=N):
    """`log q - log p` at draws of p = N(0, 1), and at those of q = Z N(mean, 1)."""
    z = jax.random.normal(jax.random.key(0), (2, n))

    def delta(x):
        return log_z + mean * x - 0.5 * mean**2

    return delta(z[0]), delta(z[1] + mean)


@pytest.mark.parametrize("mean", [0.0, 0.3, 1.0])
def test_two_normals(mean):
    found = Evidence.of(*deltas(mean, 3.0))
    error = 5 * max(mean, 1e-3) / np.sqrt(N)
    assert abs(found.elbo - (3.0 - 0.5 * mean**2)) < error
    assert abs(found.eubo - (3.0 + 0.5 * mean**2)) < error
    assert abs(found.log_normaliser - 3.0) < error
    # The relative variance of the weights is exp(mean^2) - 1, and its own error small.
    for share in (found.ess, found.ess_particles):
        assert abs(share - np.exp(-(mean**2))) < 0.15 * mean + 1e-5
    x = np.linspace(-10, 10, 4001)
    p, q = (np.exp(-0.5 * (x - m) ** 2) / np.sqrt(2 * np.pi) for m in (0.0, mean))
    half = 0.5 * (p + q)
    exact = 0.5 * np.sum(p * np.log(p / half) + q * np.log(q / half)) * (x[1] - x[0])
    assert abs(found.divergence - exact) < error + 1e-5


def test_draws_that_the_particles_do_not_account_for():
    """One draw in a hundred where there is far more density than the particles say."""
    draws, particles = deltas(0.1, 0.0)
    found = Evidence.of(draws.at[: N // 100].add(500.0), particles)
    assert float(found.divergence) == pytest.approx(np.log(2))
    # The other way round it is a part that the sampler lacks: it takes its share away.
    found = Evidence.of(draws, particles.at[: N // 100].add(500.0))
    assert 0 < found.divergence < 0.1 and 0.97 < found.ess_particles < 0.985
    assert jnp.isfinite(jnp.stack(found)).all()
