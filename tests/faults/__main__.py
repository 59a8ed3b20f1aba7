"""Runs campaigns and keeps what they found: `python -m tests.faults --scale cpu`.

Each campaign has a process of its own, so that none can hide what another left behind.
"""

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# How much of each campaign there is: a few seconds' worth for the fast tests, what was
# run on two shared cores, and about an hour's worth.
SCALES = {
    "files": {"quick": 60, "cpu": 10_000, "hour": 10_000},
    "pages": {"quick": 3, "cpu": 300, "hour": 1_000},
    "calls": {"quick": 120, "cpu": 5_000, "hour": 5_000},
    "words": {"quick": 60, "cpu": 500, "hour": 2_000},
    "densities": {"quick": 3, "cpu": 120, "hour": 1_000},
    "kills": {"quick": 1, "cpu": 100, "hour": 100},
    "signals": {"quick": 1, "cpu": 30, "hour": 60},
    "writes": {"quick": 1, "cpu": 20, "hour": 20},
    "experiments": {"quick": 1, "cpu": 10, "hour": 10},
    "disks": {"quick": 5, "cpu": 60, "hour": 200},
    "races": {"quick": 1, "cpu": 20, "hour": 60},
    "environments": {"quick": 1, "cpu": 12, "hour": 12},
    "memory": {"quick": 6, "cpu": 50, "hour": 50},
}
# These are in one module, by their names.
KILLING = ("kills", "signals", "writes", "experiments")


def run_one(name: str, seed: int, count: int) -> dict:
    """Runs a campaign in this process."""
    module = importlib.import_module(
        f".{'kills' if name in KILLING else name}", __package__
    )
    function = getattr(module, name if name in KILLING else "campaign")
    begun = time.monotonic()
    tally = function(seed, count)
    return {
        "seed": seed,
        "count": count,
        "seconds": round(time.monotonic() - begun, 1),
        "tries": dict(sorted(tally.tries.items())),
        "failures": dict(sorted(tally.failures.items())),
        "examples": tally.examples,
        "numbers": {k: round(v, 3) for k, v in sorted(tally.numbers.items())},
    }


def _environment() -> dict[str, str]:
    """Of a campaign: this checkout's package, compiled without optimising it."""
    path = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    names = ("jax", "equinox", "numpy", "safetensors")
    return {"python": platform.python_version(), **{n: version(n) for n in names}}


def main() -> int:
    """Runs what was asked for; the status is 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("campaigns", nargs="*", help=f"of {', '.join(SCALES)}")
    parser.add_argument("--scale", choices=("quick", "cpu", "hour"), default="quick")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, help="instead of that of the scale")
    parser.add_argument("--out", type=Path, help="the result file to write into")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = arguments.campaigns or list(SCALES)
    if unknown := set(names) - set(SCALES):
        parser.error(f"there is no campaign {sorted(unknown)[0]!r}")
    failed = False
    for name in names:
        count = arguments.count or SCALES[name][arguments.scale]
        if arguments.one:
            print(json.dumps(run_one(name, arguments.seed, count)))
            return 0
        words = [name, "--one", "--seed", str(arguments.seed), "--count", str(count)]
        done = subprocess.run(
            [sys.executable, "-m", "tests.faults", *words],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            env=_environment(),
        )
        lines = done.stdout.splitlines()
        if done.returncode or not lines:
            print(f"{name}: the campaign itself ended with status {done.returncode}")
            failed = True
            continue
        found = json.loads(lines[-1])
        tries, lost = (sum(found[k].values()) for k in ("tries", "failures"))
        print(f"{name}: {lost} of {tries:,} failed ({found['seconds']} s)", flush=True)
        for example in found["examples"]:
            print(f"  {example}")
        failed |= lost > 0
        if arguments.out is not None:
            keep(arguments.out, name, found)
    return int(failed)


def keep(path: Path, name: str, found: dict) -> None:
    """Puts the result of a campaign in the place of an earlier one."""
    whole = json.loads(path.read_text()) if path.exists() else {"campaigns": {}}
    found |= {
        "versions": _versions(),
        "device": f"{os.cpu_count()} cores ({platform.machine()}, {platform.system()})",
    }
    whole["campaigns"][name] = found
    path.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
