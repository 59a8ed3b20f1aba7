"""What a method gives by its name, with no argument, on the paper's six densities.

The last iterate of seeds fixed beforehand, judged on 20 fresh sets of 2,000 draws
beside exact draws of the same run; and the start, before training, by the same measure.
A row is a method, a target and a seed; rows that are in the file are not run again.

    python benchmarks/by_name.py                        # DFT and KL
    python benchmarks/by_name.py --methods fisher --targets donut --seeds 0
"""

import argparse
import json
import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp

import pushforward as pf
from pushforward import methods
from pushforward.diagnostics import ExactBaseline

TARGETS = ("gaussian", "mog2", "rosenbrock", "donut", "funnel", "squiggle")
SETS, DRAWS, EXACT_SETS = 20, 2000, 100


def measure(baseline, name, method, seed):
    target = pf.targets.get(name)
    key, fresh = jax.random.key(seed), jax.random.key(10**6)

    def scores(fitted):
        draw = fitted.sampler.unconstrained().sample
        return baseline.compare(fresh, draw, sets=SETS, comparisons=len(TARGETS))

    def train(**options):
        made = methods.REGISTRY[method]()
        return pf.fit(key, target, made, progress=False, throw=False, **options)

    begun = time.perf_counter()
    fitted = train()
    seconds = time.perf_counter() - begun
    found, start = scores(fitted), scores(train(steps=1))
    w, u = found["sliced_w2"], found["ksd_u"]
    record = {
        "method": method,
        "target": name,
        "seed": seed,
        "seconds": round(seconds, 1),
        "status": fitted.message,
        "steps": fitted.steps,
        "evaluations": fitted.evaluations,
        "sliced_w2_ratio": w.ratio,
        "sliced_w2_bound_ratio": w.bound / w.exact,
        "sliced_w2_at_floor": w.indistinguishable,
        "sliced_w2_ratio_start": start["sliced_w2"].ratio,
        "ksd_u": u.mean,
        "ksd_u_error": u.error,
        "ksd_u_bound": u.bound,
        "ksd_at_floor": u.indistinguishable,
        "ksd_u_start": start["ksd_u"].mean,
    }
    if name == "mog2":
        draws = fitted.sampler.sample(jax.random.fold_in(fresh, 1), 100_000)
        record["weight_of_first_mode"] = float(jnp.mean(draws[:, 0] < 0))
    return record


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--methods", nargs="*", default=["dft", "kl"])
    parser.add_argument("--targets", nargs="*", default=TARGETS)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("results/by_name.json"))
    arguments = parser.parse_args()
    device = jax.devices()[0]
    head = {
        "sets": SETS,
        "draws": DRAWS,
        "exact_sets": EXACT_SETS,
        "device": f"{device.platform}: {device.device_kind}",
        "cores": len(os.sched_getaffinity(0)),
        "versions": {"pushforward": pf.__version__, "jax": jax.__version__},
    }
    rows = []
    if arguments.out.exists():
        kept = json.loads(arguments.out.read_text())
        rows = kept.pop("rows")
        if kept != head:
            raise SystemExit(
                f"{arguments.out} was made on another machine or by other versions; "
                "give another file with --out"
            )
    done = {(r["method"], r["target"], r["seed"]) for r in rows}
    for method in arguments.methods:
        for name in arguments.targets:
            todo = [s for s in arguments.seeds if (method, name, s) not in done]
            if not todo:
                continue
            baseline = ExactBaseline(
                jax.random.key(10**6 + 1),
                pf.targets.get(name),
                DRAWS,
                sets=EXACT_SETS,
                statistics=("ksd_u", "sliced_w2"),
            )
            for seed in todo:
                rows.append(measure(baseline, name, method, seed))
                print(json.dumps(rows[-1]), flush=True)
                arguments.out.parent.mkdir(exist_ok=True, parents=True)
                whole = json.dumps({**head, "rows": rows}, indent=2) + "\n"
                unfinished = arguments.out.with_suffix(".part")
                unfinished.write_text(whole)
                unfinished.replace(arguments.out)


if __name__ == "__main__":
    main()
