"""Streams ten million 2-D draws to `.npy`, and tells how long and how much memory.

    python benchmarks/stream.py [--draws N] [--out results/benchmark_stream.json]

The draws come from the network of the default fit, after one step.
"""

import argparse
import json
import platform
import resource
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

import pushforward


def hardly_trained_sampler() -> pushforward.Sampler:
    target = pushforward.targets.get("donut")
    return pushforward.fit(jax.random.key(0), target, steps=1, progress=False).sampler


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--draws", type=int, default=10_000_000)
    parser.add_argument("--out", type=Path, default="results/benchmark_stream.json")
    arguments = parser.parse_args()
    sampler, key = hardly_trained_sampler(), jax.random.key(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "draws.npy"
        sampler.stream(key, 1, path)
        begun = time.perf_counter()
        sampler.stream(key, arguments.draws, path, progress=True)
        seconds = time.perf_counter() - begun
        # Before the file is looked at: its pages would count as this program's.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        table = np.load(path, mmap_mode="r")
        assert table.shape == (arguments.draws, 2)
        assert np.isfinite(table[-1]).all()
    result = {
        "draws": arguments.draws,
        "seconds": round(seconds, 2),
        "peak_rss_bytes": peak,
        "device": jax.devices()[0].device_kind,
        "versions": {
            "pushforward": pushforward.__version__,
            "jax": jax.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
