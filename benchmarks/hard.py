"""The default `fit` on the field's hard densities, beside what is known of them.

    PYTHONPATH=. python benchmarks/hard.py --only funnel10,rings --seeds 1

A row is a density and a seed. It is written as soon as it is done, and is left out when
the command is given again: so the suite can be made in pieces. Every figure is of fresh
draws of the sampler that `fit` returned.
"""

import argparse
import json
import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from hard_densities import HARD, Hard, find

import pushforward as pf

RESULTS = Path("results/hard.json")
DRAWS = 10_000
# How many energies are compared.
ENERGIES = 2000


def row(name: str, seed: int) -> dict:
    """One fit, and what came of it."""
    hard = HARD[name]()
    target = hard.make()
    fit_key, draw_key, exact_key, weigh_key = jax.random.split(jax.random.key(seed), 4)
    start = time.monotonic()
    fit = pf.fit(fit_key, target, progress=False, throw=False)
    seconds = time.monotonic() - start
    sampler = fit.sampler.unconstrained()
    x = sampler.sample(draw_key, DRAWS)
    log_q = _log_density(target, x)
    found = {
        "target": name,
        "dim": target.dim,
        "seed": seed,
        "status": fit.status.name,
        "steps": fit.steps,
        "planned": fit.planned,
        "seconds": round(seconds, 1),
        "evaluations": int(fit.evaluations),
        "log_z_known": hard.log_z,
    } | _energies(hard, log_q)
    if not sampler.has_density:
        # A symmetric sampler of too many copies.
        return found | _weights(hard, x)
    log_p = sampler.log_prob(x)
    weighed = pf.weigh(weigh_key, target, fit.sampler, DRAWS)
    found |= {
        "log_z": weighed.log_normaliser,
        "log_z_se": weighed.log_normaliser_se,
        "pareto_k": weighed.pareto_k,
        "ess": weighed.ess / DRAWS,
        "elbo": float(np.mean(np.asarray(log_q - log_p, np.float64))),
    }
    if target.can_sample:
        exact = target.sample_flat(exact_key, DRAWS)
        at_exact = _log_density(target, exact) - sampler.log_prob(exact)
        found["eubo"] = float(np.mean(np.asarray(at_exact, np.float64)))
    return found | _weights(hard, x)


def _energies(hard: Hard, log_q: jax.Array) -> dict:
    """The W2 distance of energies to those of reference draws, 2,000 of each."""
    path = None if hard.energies is None else find(hard.energies)
    if path is None:
        return {}
    target = hard.make()
    files = np.load(path)
    val, test = (
        np.sort(_energy_of(target, files[name])[:ENERGIES]) for name in ("val", "test")
    )
    ours = np.sort(-np.asarray(log_q, np.float64)[:ENERGIES])
    return {
        "energy_w2": float(np.sqrt(np.mean((ours - test) ** 2))),
        "energy_w2_exact": float(np.sqrt(np.mean((val - test) ** 2))),
    }


def _energy_of(target: pf.Target, flat: np.ndarray) -> np.ndarray:
    (leaf,) = target.structure.leaves
    tree = jnp.asarray(flat).reshape(-1, *leaf.shape)
    return -np.asarray(_log_density(target, target.structure.flatten_draws(tree)))


def _log_density(target: pf.Target, x: jax.Array) -> jax.Array:
    return jax.jit(lambda x: jax.lax.map(target.log_density, x, batch_size=1000))(x)


def _weights(hard: Hard, x: jax.Array) -> dict:
    """The weights of modes beside those of exact draws, where these are known."""
    if hard.weights is None or hard.exact is None:
        return {}
    got, exact = np.asarray(hard.weights(x), float), np.asarray(hard.exact, float)
    # What as many exact draws would show, in the worst of the weights.
    noise = np.sqrt(exact * (1 - exact) / DRAWS)
    found = {
        "weights_worst": float(np.abs(got - exact).max()),
        "weights_worst_in_sds": float(np.max(np.abs(got - exact) / noise)),
    }
    if np.isclose(exact.sum(), 1):
        present = got[got > 0]
        entropy = -np.sum(present * np.log(present)) / np.log(len(exact))
        found |= {
            "modes": int(np.sum(got > 0.1 * exact)),
            "modes_known": len(exact),
            "entropy": float(entropy),
        }
    return found


def main() -> None:
    """Makes the rows that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    names = given.only.split(",") if given.only else list(HARD)
    result = json.loads(given.out.read_text()) if given.out.exists() else {"rows": []}
    device = jax.devices()[0]
    made_by = {
        "device": f"{device.platform}: {device.device_kind}",
        "cores": len(os.sched_getaffinity(0)),
        "versions": {"pushforward": pf.__version__, "jax": jax.__version__},
    }
    done = {(r["target"], r["seed"]) for r in result["rows"]}
    for name in names:
        for seed in range(given.seeds):
            if (name, seed) in done:
                continue
            found = row(name, seed) | made_by
            print(json.dumps(found), flush=True)
            result["rows"].append(found)
            part = given.out.with_suffix(".part")
            part.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
            part.replace(given.out)
            jax.clear_caches()


if __name__ == "__main__":
    main()
