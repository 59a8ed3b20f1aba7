"""How far does `fit` get with no option at all?

Default `fit`, seed 0, on targets with exact draws; judged on R = 20 fresh sets of
n = 2000 draws of the last iterate, beside exact draws of the same run. "At the floor"
means that the mean over the sets lies inside the one-sided 99 % interval of the mean of
as many sets of exact draws (Bonferroni over the targets).

    python benchmarks/default_fit.py                    # every target
    python benchmarks/default_fit.py --targets donut    # some of them
    python benchmarks/default_fit.py --wide             # those of densities.py
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
from densities import DENSITIES, WAY

import pushforward as pf
from pushforward.diagnostics import ExactBaseline

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


def measure(name, count, seed):
    target = DENSITIES[name]() if name in DENSITIES else pf.targets.get(name)
    key = jax.random.key(seed)
    start = time.perf_counter()
    fitted = pf.fit(key, target)
    seconds = time.perf_counter() - start
    sampler = fitted.sampler
    fresh, exact_key, weight_key = jax.random.split(jax.random.key(10**6), 3)
    baseline = ExactBaseline(
        exact_key, target, DRAWS, sets=EXACT_SETS, statistics=("ksd_u", "sliced_w2")
    )
    flat = sampler.unconstrained()
    scores = baseline.compare(fresh, flat.sample, sets=SETS, comparisons=count)
    u, w = scores["ksd_u"], scores["sliced_w2"]
    record = {
        "target": name,
        "dim": target.dim,
        "seed": seed,
        "fit_seconds": round(seconds, 1),
        "status": fitted.message,
        "steps": fitted.history.steps,
        "ksd_u": u.mean,
        "ksd_u_error": u.error,
        "ksd_u_exact": u.exact,
        "ksd_u_bound": u.bound,
        "ksd_at_floor": u.indistinguishable,
        "sliced_w2": w.mean,
        "sliced_w2_exact": w.exact,
        "sliced_w2_ratio": w.ratio,
        "sliced_w2_bound_ratio": w.bound / w.exact,
        "sliced_w2_at_floor": w.indistinguishable,
        "dft_chosen": float(fitted.history.rows[-1].get("dft_chosen", 0.0)),
    }
    sides = {"mog2": (jnp.eye(2)[0], 0.5), "modes40": (jnp.asarray(WAY), 0.3)}
    if name in sides:
        way, exact = sides[name]
        draws = flat.sample(weight_key, 100_000)
        record["weight_of_first_mode"] = float(jnp.mean(draws @ way < 0))
        record["weight_exact"] = exact
    return record


def merge(parts, out):
    """One result file from several, of the same versions and device."""
    results = [json.loads(path.read_text()) for path in parts]
    heads = {json.dumps({**r, "records": []}, sort_keys=True) for r in results}
    if len(heads) > 1:
        raise SystemExit("the parts are not of one version and device")
    records = sorted(
        (record for r in results for record in r["records"]),
        key=lambda record: (*TARGETS, *DENSITIES).index(record["target"]),
    )
    out.write_text(json.dumps({**results[0], "records": records}, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--targets", nargs="*")
    parser.add_argument("--wide", action="store_true", help="in many dimensions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a result file")
    parser.add_argument("--merge", type=Path, nargs="*", help="join result files")
    arguments = parser.parse_args()
    name = "default_fit_wide.json" if arguments.wide else "default_fit.json"
    out = arguments.out or Path("results") / name
    if arguments.merge:
        return merge(arguments.merge, out)
    every = tuple(DENSITIES) if arguments.wide else TARGETS
    records = []
    for name in arguments.targets or every:
        record = measure(name, len(every), arguments.seed)
        records.append(record)
        print(json.dumps(record), flush=True)
    device = jax.devices()[0]
    result = {
        "sets": SETS,
        "draws": DRAWS,
        "exact_sets": EXACT_SETS,
        "comparisons": len(every),
        "device": f"{device.platform}: {device.device_kind}",
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "versions": {"pushforward": pf.__version__, "jax": jax.__version__},
        "records": records,
    }
    out.parent.mkdir(exist_ok=True, parents=True)
    out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
