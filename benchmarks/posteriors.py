"""The default `fit` on posteriordb's posteriors, beside their reference draws.

    PYTHONPATH=. python benchmarks/posteriors.py --only garch-garch11 --seeds 1

A row is a posterior and a seed; it is written as soon as it is done, and is left out
when the command is given again. Every distance is a mean over twenty random sets of
2,000 fresh draws against the rest of the reference; beside it stands what 2,000 draws
of the reference itself score against the rest, in the same run. Parameters are divided
by their reference sd.

`check` is blind: it is not given the reference. A row is *bad* where sliced W2 is above
1.5 times the reference's own, a mean is off by more than .2 sd, or an sd by more than
15 %.
"""

import argparse
import json
import os
import time
from pathlib import Path

import jax
import numpy as np
from hard_densities import find
from posterior_models import FOLDER, POSTERIORS

import pushforward as pf

RESULTS = Path("results/posteriors.json")
SETS, DRAWS = 20, 2000
BAD_RATIO, BAD_MEAN, BAD_SD = 1.5, 0.2, 0.15
_PROJECTIONS = 64


def row(name: str, seed: int) -> dict:
    """One fit, and what came of it."""
    posterior = POSTERIORS[name]
    target = posterior.target()
    names, chains = posterior.reference()
    reference = chains.reshape(-1, len(names)).astype(np.float64)
    fit_key, draw_key, weigh_key, check_key, slice_key = jax.random.split(
        jax.random.key(seed), 5
    )
    start = time.monotonic()
    fit = pf.fit(fit_key, target, progress=False, throw=False)
    fitted = time.monotonic()
    verdict = pf.check(check_key, target, fit.sampler)
    checked = time.monotonic()
    weighed = pf.weigh(weigh_key, target, fit.sampler, 10_000)
    draws = posterior.flat(fit.sampler.sample(draw_key, SETS * DRAWS))
    means = (draws.mean(0) - reference.mean(0)) / reference.std(0)
    sds = draws.std(0) / reference.std(0) - 1
    worst_mean, worst_sd = (int(np.argmax(np.abs(part))) for part in (means, sds))
    found = {
        "posterior": name,
        "family": posterior.family,
        "dim": target.dim,
        "seed": seed,
        "status": fit.status.name,
        "doubts": list(fit.doubts),
        "steps": fit.steps,
        "seconds": round(fitted - start, 1),
        "check_seconds": round(checked - fitted, 1),
        "evaluations": int(fit.evaluations),
        "check_evaluations": int(verdict.evaluations),
        "verdict": verdict.outcome.value,
        "rejected": [
            f.name
            for f in verdict.findings
            if f.outcome is pf.diagnostics.Outcome.FAILED
        ],
        "mean_error": float(np.abs(means).max()),
        "mean_error_of": names[worst_mean],
        "sd_error": float(np.abs(sds).max()),
        "sd_error_of": names[worst_sd],
        "pareto_k": weighed.pareto_k,
        "ess": weighed.ess / 10_000,
        "log_z": weighed.log_normaliser,
        "log_z_se": weighed.log_normaliser_se,
    }
    found |= distances(slice_key, seed, draws, reference)
    found["bad"] = bool(
        found["sliced_w2_ratio"] > BAD_RATIO
        or found["mean_error"] > BAD_MEAN
        or found["sd_error"] > BAD_SD
    )
    return found


def distances(
    key: jax.Array, seed: int, draws: np.ndarray, reference: np.ndarray
) -> dict[str, float]:
    """Sliced W2 and the marginals' mean W1, ours and the reference's own."""
    scaled = (draws - reference.mean(0)) / reference.std(0)
    exact = (reference - reference.mean(0)) / reference.std(0)
    ways = np.asarray(
        jax.random.normal(key, (_PROJECTIONS, exact.shape[1])), np.float64
    )
    ways = ways / np.linalg.norm(ways, axis=1, keepdims=True)
    rng = np.random.default_rng(seed)
    sums = np.zeros(4)
    for i in range(SETS):
        order = rng.permutation(len(exact))
        own, rest = exact[order[:DRAWS]], exact[order[DRAWS:]]
        for j, part in enumerate((scaled[i * DRAWS : (i + 1) * DRAWS], own)):
            sums[j] += np.sqrt(np.mean(_apart(part @ ways.T, rest @ ways.T, 2)))
            sums[2 + j] += np.mean(_apart(part, rest, 1))
    w2, w2_own, w1, w1_own = (float(s) / SETS for s in sums)
    return {
        "sliced_w2": w2,
        "sliced_w2_reference": w2_own,
        "sliced_w2_ratio": w2 / w2_own,
        "marginal_w1": w1,
        "marginal_w1_reference": w1_own,
        "marginal_w1_ratio": w1 / w1_own,
    }


def _apart(x: np.ndarray, y: np.ndarray, power: int) -> np.ndarray:
    """`W_p^p` of each column, by quantiles at the middles of `len(x)` equal parts."""
    levels = (np.arange(len(x)) + 0.5) / len(x)
    other = np.quantile(y, levels, axis=0)
    return np.mean(np.abs(np.sort(x, axis=0) - other) ** power, axis=0)


def main() -> None:
    """Makes the rows that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    if find(f"{FOLDER}/arK.data.json") is None:
        raise SystemExit(
            "The data of posteriordb are missing: put them where PUSHFORWARD_DATA says."
        )
    names = given.only.split(",") if given.only else list(POSTERIORS)
    result = json.loads(given.out.read_text()) if given.out.exists() else {"rows": []}
    device = jax.devices()[0]
    made_by = {
        "device": f"{device.platform}: {device.device_kind}",
        "cores": len(os.sched_getaffinity(0)),
        "versions": {"pushforward": pf.__version__, "jax": jax.__version__},
    }
    done = {(r["posterior"], r["seed"]) for r in result["rows"]}
    for seed in range(given.seeds):
        for name in names:
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
