"""How a sampler of the first experiment is run and measured."""

import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import pushforward as pf
from pushforward import mcmc
from pushforward.diagnostics import ksd
from pushforward.experiments import toy2d_settings as settings
from pushforward.experiments.toy2d_settings import Classic


def run_classic(
    key: PRNGKeyArray,
    target: pf.AbstractTarget,
    starts: Float[Array, "r n d"],
    what: Classic,
) -> tuple[Float[Array, "r n d"], int]:
    """Every repeat of a classic sampler, and how many scores all of them took."""
    r, n, d = starts.shape
    size = settings.STEP_SIZE
    if what.kind == "svgd":
        runs = [
            mcmc.svgd(jax.random.fold_in(key, i), target, x, what.steps, step_size=size)
            for i, x in enumerate(starts)
        ]
        return jnp.stack([run.positions for run in runs]), r * runs[0].evaluations
    # Chains that do not see each other: all repeats at once.
    flat = starts.reshape(r * n, d)
    if what.kind == "ld":
        run = mcmc.langevin(key, target, flat, what.steps, step_size=size)
    else:
        run = mcmc.hmc(
            key,
            target,
            flat,
            what.steps,
            step_size=size,
            leapfrogs=settings.LEAPFROGS,
        )
    return run.positions.reshape(starts.shape), run.evaluations


def protocol(
    key: PRNGKeyArray,
    sampler: pf.Sampler,
    target: pf.AbstractTarget,
    n: int,
    repeats: int,
) -> Float[np.ndarray, " repeats"]:
    """The paper's evaluation: the KSD of `n` draws, `repeats` times."""
    sets = _draw_sets(sampler, jax.random.split(key, repeats), n)
    return np.asarray(_ksds(sets, _score_sets(target, sets)))


# Three programs, not one: they are shared between targets, networks or both.
@eqx.filter_jit
def _draw_sets(sampler: pf.Sampler, keys: Any, n: int):
    return jax.lax.map(lambda key: sampler.block(key, n), keys)


@eqx.filter_jit
def _score_sets(target: pf.AbstractTarget, sets: Float[Array, "r n d"]):
    return jax.vmap(jax.vmap(target.score))(sets)


@eqx.filter_jit
def _ksds(sets: Float[Array, "r n d"], scores: Float[Array, "r n d"]):
    return jax.lax.map(lambda pair: ksd(*pair).v, (sets, scores))


def draw_seconds(sampler: pf.Sampler, n: int, repeats: int = 20) -> float:
    """The median time of `n` draws in one pass, compiled beforehand."""
    spent = []
    for i in range(repeats + 1):
        key = jax.random.split(jax.random.key(i), 1)
        start = time.perf_counter()
        jax.block_until_ready(_draw_sets(sampler, key, n))
        spent.append(time.perf_counter() - start)
    return float(np.median(spent[1:]))


def still_falling(curve: list[tuple[int, float, float]]) -> bool:
    """Whether the last tenth of the evaluations lies clearly below the tenth before."""
    tenth = max(len(curve) // 10, 2)
    values = np.array([row[1] for row in curve])
    if len(values) < 2 * tenth or not np.isfinite(values[-2 * tenth :]).all():
        return False
    before, after = values[-2 * tenth : -tenth], values[-tenth:]
    error = np.sqrt((before.var(ddof=1) + after.var(ddof=1)) / tenth)
    return bool(before.mean() - after.mean() > 3 * error)


def curve_of(fit: pf.Fit) -> list[tuple[int, float, float]]:
    """Step, mean KSD and its spread at every evaluation during training."""
    rows = [row for row in fit.history.rows if "ksd" in row]
    return [(int(row["made"]), row["ksd"], row["ksd_sd"]) for row in rows]
