"""How far does `fit` get with no option at all?

Default `fit`, seed 0, on targets with exact draws; judged on R = 20 fresh sets of
n = 2000 draws of the last iterate, beside exact draws of the same run. "At the floor"
means that the mean over the sets lies inside the one-sided 99 % interval of the mean of
as many sets of exact draws (Bonferroni over the targets).

    python benchmarks/default_fit.py                    # every target
    python benchmarks/default_fit.py --targets donut    # some of them
    python benchmarks/default_fit.py --merge a.json b.json
"""

import argparse
import json
import os
import platform
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

import pushforward as pf
from pushforward.diagnostics import ksd, sliced_w2

TARGETS = (
    "gaussian",
    "mog2",
    "rosenbrock",
    "donut",
    "funnel",
    "squiggle",
    "eight_schools_noncentred",
    "eight_schools_centred",
    "neal_funnel",
)
SETS, DRAWS = 20, 2000
# Exact draws are cheap: their mean and spread are known better than the sampler's.
EXACT_SETS = 100


def scored(target, draw, key, sets, scale):
    """U-statistics, and sliced W2 (in sd units) to fresh exact draws, for every set."""
    score = jax.jit(jax.vmap(target.score))
    u, w = [], []
    for i in range(sets):
        ours_key, exact_key, slice_key = jax.random.split(jax.random.fold_in(key, i), 3)
        x, y = draw(ours_key, DRAWS), target.sample_flat(exact_key, DRAWS)
        u.append(float(ksd(x, score(x)).u))
        w.append(float(sliced_w2(slice_key, x / scale, y / scale)))
    return np.array(u), np.array(w)


def judge(ours, exact, level):
    """Whether the mean of `ours` lies below the bound for a mean of exact sets."""
    spread = exact.std(ddof=1) * np.sqrt(1 / len(ours) + 1 / len(exact))
    bound = exact.mean() + scipy.stats.t.ppf(1 - level, len(exact) - 1) * spread
    return float(bound), bool(ours.mean() <= bound)


def measure(name, count, seed):
    target = pf.targets.get(name)
    key = jax.random.key(seed)
    start = time.perf_counter()
    fitted = pf.fit(key, target)
    seconds = time.perf_counter() - start
    sampler = fitted.sampler
    fresh, exact_key, scale_key, weight_key = jax.random.split(jax.random.key(10**6), 4)
    scale = jnp.std(target.sample_flat(scale_key, 100_000), axis=0)
    u, w = scored(target, sampler.sample_flat, fresh, SETS, scale)
    u0, w0 = scored(target, target.sample_flat, exact_key, EXACT_SETS, scale)
    level = 0.01 / count
    u_bound, u_floor = judge(u, u0, level)
    w_bound, w_floor = judge(w, w0, level)
    record = {
        "target": name,
        "dim": target.dim,
        "seed": seed,
        "fit_seconds": round(seconds, 1),
        "status": fitted.status,
        "steps": fitted.config["method"]["steps"],
        "ksd_u": float(u.mean()),
        "ksd_u_error": float(u.std(ddof=1) / np.sqrt(SETS)),
        "ksd_u_exact": float(u0.mean()),
        "ksd_u_bound": u_bound,
        "ksd_at_floor": u_floor,
        "sliced_w2": float(w.mean()),
        "sliced_w2_exact": float(w0.mean()),
        "sliced_w2_ratio": float(w.mean() / w0.mean()),
        "sliced_w2_bound_ratio": w_bound / float(w0.mean()),
        "sliced_w2_at_floor": w_floor,
        "dft_chosen": float(fitted.history["dft_chosen"][-1]),
    }
    if name == "mog2":
        draws = sampler.sample_flat(weight_key, 100_000)
        record["weight_of_first_mode"] = float(jnp.mean(draws[:, 0] < 0))
    return record


def merge(parts, out):
    """One result file from several, of the same versions and device."""
    results = [json.loads(path.read_text()) for path in parts]
    heads = {json.dumps({**r, "records": []}, sort_keys=True) for r in results}
    if len(heads) > 1:
        raise SystemExit("the parts are not of one version and device")
    records = sorted(
        (record for r in results for record in r["records"]),
        key=lambda record: TARGETS.index(record["target"]),
    )
    out.write_text(json.dumps({**results[0], "records": records}, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--targets", nargs="*", default=list(TARGETS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/default_fit.json"))
    parser.add_argument("--merge", type=Path, nargs="*", help="join result files")
    arguments = parser.parse_args()
    if arguments.merge:
        return merge(arguments.merge, arguments.out)
    records = []
    for name in arguments.targets:
        record = measure(name, len(TARGETS), arguments.seed)
        records.append(record)
        print(json.dumps(record), flush=True)
    device = jax.devices()[0]
    result = {
        "sets": SETS,
        "draws": DRAWS,
        "exact_sets": EXACT_SETS,
        "device": f"{device.platform}: {device.device_kind}",
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "versions": {"pushforward": pf.__version__, "jax": jax.__version__},
        "records": records,
    }
    arguments.out.parent.mkdir(exist_ok=True, parents=True)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
