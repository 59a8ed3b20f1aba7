"""Speed, memory and accuracy of the kernel Stein discrepancy, against two peers.

    python benchmarks/ksd.py [--out results/benchmark_ksd.json]

The aims: at least 3 times the speed of sgmcmcjax at n = 5000, less than 1 GB for
n = 20,000, and the figure of stein-thinning to 1e-5.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from pushforward.diagnostics import ksd

REPEATS = 9


def sample(n, d, seed=0):
    """Gaussian draws and their scores."""
    draws = jax.random.normal(jax.random.key(seed), (n, d))
    return draws, -draws


def speed(n=5000, d=2):
    # Imported here so that the subprocess that measures memory does not load it.
    from sgmcmcjax.ksd import imq_KSD

    draws, scores = sample(n, d)
    functions = {
        "pushforward": lambda: ksd(draws, scores).v,
        "sgmcmcjax": lambda: imq_KSD(draws, scores),
        "pushforward, 1000 bootstraps": lambda: (
            ksd(draws, scores, key=jax.random.key(1)).p_value
        ),
    }
    values = {name: float(function()) for name, function in functions.items()}
    seconds = {name: [] for name in functions}
    # Taking turns, so that a busy moment of the machine hits all of them.
    for _ in range(REPEATS):
        for name, function in functions.items():
            start = time.perf_counter()
            function().block_until_ready()
            seconds[name].append(time.perf_counter() - start)
    median = {name: statistics.median(times) for name, times in seconds.items()}
    return {
        "n": n,
        "d": d,
        "repeats": REPEATS,
        "value": {name: values[name] for name in ("pushforward", "sgmcmcjax")},
        "median_seconds": median,
        "ratio": median["sgmcmcjax"] / median["pushforward"],
    }


def resident(field):
    """`VmRSS` (now) or `VmHWM` (at its peak) of this process, in bytes (Linux)."""
    status = Path("/proc/self/status").read_text("utf-8")
    return 1024 * int(status.split(f"{field}:")[1].split()[0])


def memory_of(n, d, bootstraps):
    draws, scores = sample(n, d)
    key = jax.random.key(1) if bootstraps else None
    settings = {"key": key, "bootstraps": bootstraps or 1}
    ksd(draws[:1024], scores[:1024], **settings).v.block_until_ready()
    # Not getrusage: its peak outlives exec, so that a child of a large process begins
    # with its parent's and shows no growth. This peak is the process's own, and it is
    # set back to the memory held now, so that the warm-up's cannot hide what follows.
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    found = ksd(draws, scores, **settings)
    jax.block_until_ready((found.v, found.p_value))
    return {
        "n": n,
        "d": d,
        "bootstraps": bootstraps,
        "v": float(found.v),
        "before_bytes": before,
        "growth_bytes": resident("VmHWM") - before,
    }


def memory(n=20_000):
    found = []
    for d, bootstraps in ((2, 0), (2, 1000), (50, 0)):
        # A process of its own, because a peak never falls.
        call = f"ksd.memory_of({n}, {d}, {bootstraps})"
        code = f"import json, ksd; print(json.dumps({call}))"
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=Path(__file__).parent,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path[1:])},
            check=True,
            capture_output=True,
            text=True,
        )
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return found


def accuracy(n=500):
    from stein_thinning.kernel import make_imq
    from stein_thinning.stein import ksd as peer

    found = []
    for d, scale in ((2, 1.0), (2, 100.0), (10, 1.0), (50, 1.0)):
        # In 32 bits, as the draws of a sampler are; the peer computes in 64.
        draws = scale * np.random.default_rng(0).standard_t(4, size=(n, d))
        draws = draws.astype(np.float32)
        scores = (-draws / scale**2).astype(np.float32)
        x, s = draws.astype(np.float64), scores.astype(np.float64)
        k0 = make_imq(x, "id")
        theirs = peer(lambda i, j, k0=k0, x=x, s=s: k0(x[i], x[j], s[i], s[j]), n)[-1]
        ours = float(ksd(jnp.asarray(draws), jnp.asarray(scores)).v)
        relative = abs(ours - theirs) / theirs
        found.append({"n": n, "d": d, "scale": scale, "relative": float(relative)})
    return found


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/benchmark_ksd.json"))
    out = parser.parse_args().out
    start = time.perf_counter()
    results = {
        "speed": speed(),
        "memory": memory(),
        "accuracy": accuracy(),
        "device": str(jax.devices()[0]),
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
        "versions": {"python": platform.python_version(), "jax": jax.__version__},
        "seed": 0,
        "wall_seconds": time.perf_counter() - start,
    }
    results["aims"] = {
        "ratio of time at least 3": results["speed"]["ratio"] >= 3,
        "memory below 1 GB": all(m["growth_bytes"] < 1e9 for m in results["memory"]),
        "within 1e-5 of stein-thinning": all(
            a["relative"] <= 1e-5 for a in results["accuracy"]
        ),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=2) + "\n", "utf-8")
    print(out.read_text("utf-8"))


if __name__ == "__main__":
    main()
