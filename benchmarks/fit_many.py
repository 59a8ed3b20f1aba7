"""What do 16 seeds cost beside one?

The default recipe on one 2-D target: `fit_many` with 16 keys against one key, both
 compiled beforehand, in one run.
"""

import argparse
import json
import time
from pathlib import Path

import jax

import pushforward as pf


def measure(keys, target):
    start = time.perf_counter()
    fits = pf.fit_many(keys, target, progress=False)
    jax.block_until_ready(fits[-1].sampler)
    return time.perf_counter() - start, fits[0].history.steps


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--target", default="donut")
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("results/fit_many.json"))
    arguments = parser.parse_args()
    target = pf.targets.get(arguments.target)
    result = {"target": arguments.target, "seeds": arguments.seeds}
    for count in (1, arguments.seeds):
        keys = jax.random.split(jax.random.key(0), count)
        first, _ = measure(keys, target)
        again, steps = measure(keys, target)
        result[f"first_seconds_{count}"] = round(first, 2)
        result[f"seconds_{count}"] = round(again, 2)
        # One seed of many for which DFT is tried takes all with it.
        result[f"steps_{count}"] = steps
        print(json.dumps(result), flush=True)
    result["ratio"] = round(
        result[f"seconds_{arguments.seeds}"] / result["seconds_1"], 3
    )
    device = jax.devices()[0]
    result["device"] = f"{device.platform}: {device.device_kind}"
    result["versions"] = {"pushforward": pf.__version__, "jax": jax.__version__}
    print(json.dumps(result))
    arguments.out.parent.mkdir(exist_ok=True, parents=True)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
