"""What does the engine cost beside a bare `lax.scan` of the same step?

The same method, steps, keys and target: `fit` (progress off, no files; and with a run
directory) against `init` and one compiled `lax.scan` of `step`. All are compiled
beforehand and run in turns; the figures are medians, the claim is their ratio.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp

import pushforward as pf
from pushforward import methods


@eqx.filter_jit
def begin(method, target, key, steps):
    return method.init(key, target, steps)


@eqx.filter_jit
def scan(method, target, key, state, steps):
    def step(state, i):
        return method.step(jax.random.fold_in(key, i), target, state)

    return jax.lax.scan(step, state, jnp.arange(steps))


def bare(method, target, key, steps):
    state = begin(method, target, key, jnp.asarray(steps, jnp.int32))
    jax.block_until_ready(scan(method, target, key, state, steps))


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/engine.json"))
    arguments = parser.parse_args()
    target, key = pf.targets.get("donut"), jax.random.key(0)
    results = {}
    for name, method in (
        ("transport", methods.Transport()),
        ("dft", methods.DFT()),
    ):
        method = method.resolve(target)
        steps = arguments.steps

        def fit(method=method, steps=steps):
            pf.fit(key, target, method, steps=steps, progress=False)

        def fit_to_disk(method=method, steps=steps):
            with tempfile.TemporaryDirectory() as out:
                pf.fit(key, target, method, steps=steps, out=out, progress=False)

        def plain(method=method, steps=steps):
            bare(method, target, key, steps)

        runs = {"fit": fit, "fit_to_disk": fit_to_disk, "scan": plain}
        seconds = {which: [] for which in runs}
        for repeat in range(arguments.repeats + 1):
            for which, call in runs.items():
                start = time.perf_counter()
                call()
                if repeat:
                    seconds[which].append(time.perf_counter() - start)
        medians = {which: statistics.median(s) for which, s in seconds.items()}
        results[name] = {
            "seconds": {k: round(v, 3) for k, v in medians.items()},
            "fit_over_scan": round(medians["fit"] / medians["scan"], 3),
            "fit_to_disk_over_scan": round(medians["fit_to_disk"] / medians["scan"], 3),
        }
        print(name, json.dumps(results[name]), flush=True)
    device = jax.devices()[0]
    results["steps"] = arguments.steps
    results["repeats"] = arguments.repeats
    results["device"] = f"{device.platform}: {device.device_kind}"
    results["versions"] = {"pushforward": pf.__version__, "jax": jax.__version__}
    arguments.out.parent.mkdir(exist_ok=True, parents=True)
    arguments.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
