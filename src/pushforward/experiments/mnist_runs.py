"""How the chains of the third experiment are run, and what is measured of them."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import pushforward as pf
from pushforward.experiments import mnist_settings as settings
from pushforward.experiments.counting import multiplications
from pushforward.experiments.mnist_settings import Schedule
from pushforward.experiments.results import rounded
from pushforward.networks import AbstractNetwork

# Where chains start: the middle of the range of a pixel.
_CENTRE = 0.5
# A call is timed three times, and again while that takes less than a second in all; but
# not again once so many seconds are spent.
_ENOUGH_SECONDS = 20.0


def langevin(
    key: PRNGKeyArray,
    target: pf.NoiseConditionalTarget,
    n: int,
    steps: int,
    schedule: Schedule,
) -> Float[Array, "n d"]:
    """The ends of `n` annealed Langevin chains: images."""
    start_key, run_key = jax.random.split(key)
    noise = jax.random.normal(start_key, (n, target.dim))
    sigmas = jax.device_put(schedule.levels(steps).astype(np.float32))
    return pf.mcmc.annealed_langevin(
        run_key,
        target,
        _CENTRE + settings.SIGMA_MAX * noise,
        sigmas,
        step_ratio=schedule.ratio,
    ).positions


def timed(call: Callable[[PRNGKeyArray], Any]) -> tuple[float, float]:
    """The median time of a call that has been compiled beforehand, and its sd."""
    jax.block_until_ready(call(jax.random.key(0)))
    spent: list[float] = []
    while sum(spent) < (_ENOUGH_SECONDS if len(spent) < 3 else 1.0):
        key = jax.random.key(1 + len(spent))
        begun = time.perf_counter()
        jax.block_until_ready(call(key))
        spent.append(time.perf_counter() - begun)
    spread = float(np.std(spent, ddof=1)) if len(spent) > 1 else 0.0
    return float(np.median(spent)), spread


def gflop(network: AbstractNetwork) -> float:
    """Thousand million operations of a pass: two for each multiplication."""
    return 2e-9 * multiplications(network, jnp.zeros(network.in_size, jnp.float32))


def score_gflop(network: AbstractNetwork) -> float:
    """The same for the gradient of a network's one output by its input."""
    point = jnp.zeros(network.in_size, jnp.float32)
    return 2e-9 * multiplications(jax.grad(lambda x: network(x)[0]), point)


def histogram(values: Float[np.ndarray, " n"]) -> list[list[float | None]]:
    """The edges of forty bins and the density in each, without the far tails."""
    known = values[np.isfinite(values)].astype(np.float64)
    if not len(known):
        return [[0.0, 1.0], [0.0]]
    low, high = np.quantile(known, [0.005, 0.995])
    edges = np.linspace(low, max(high, low + 1e-6), 41)
    counts, _ = np.histogram(known, edges)
    heights = counts / len(values) / np.diff(edges)
    return [[rounded(v, 5) for v in edges], [rounded(v, 4) for v in heights]]
