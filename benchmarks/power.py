"""What the verdict catches, and how often exact draws fail or pass.

    PYTHONPATH=. python benchmarks/power.py --sizes 2000 --limit 100

A row is a set of draws before `check`: those of a bad sampler (`bad_samplers.py`) of
one size, or exact ones. The reference of a target is made once and shared. A row is
written as soon as it is done, and is left out when the command is given again: so the
table can be made in pieces.
"""

import argparse
import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from bad_samplers import KINDS, SIZES, TARGETS, Known, counted, kinds

import pushforward as pf
from pushforward.diagnostics import Reference, make_reference

RESULTS = Path("results/power.json")
EXACT = "exact draws"
# Sets of exact draws, over all targets, and their size.
EXACT_SETS, EXACT_SIZE = 200, 2000
# Exact draws in the reference of a target, which is shared.
REFERENCE = 20_000


def cells(sizes: list[int]) -> Iterator[tuple[str, str, int, int]]:
    """Target, kind, size and seed of every row, the most telling first.

    The forty that are counted come twice, the second time with other draws.
    """
    main = 2000
    if main in sizes:
        yield from ((target, kind, main, 0) for target, kind in counted())
    for i in range(EXACT_SETS):
        yield TARGETS[i % len(TARGETS)], EXACT, EXACT_SIZE, i // len(TARGETS)
    if main in sizes:
        yield from ((target, kind, main, 1) for target, kind in counted())
    for size, target in itertools.product(sorted(sizes, key=main.__ne__), TARGETS):
        for kind in kinds(target):
            if size != main or (target, kind) not in counted():
                yield target, kind, size, 0


def shared(known: Known) -> Reference:
    """The reference of all draws of a target."""
    draws = known.as_given(known.exact(1, REFERENCE))
    made = make_reference(jax.random.key(1), known.target, draws, REFERENCE // 10)
    assert isinstance(made, Reference) and not made.doubts
    return made


def row(known: Known, reference: Reference, kind: str, n: int, seed: int) -> dict:
    """The verdict on one set of draws."""
    number = 10_000 * (1 + [EXACT, *kinds(known.name)].index(kind)) + n + seed
    if kind == EXACT:
        flat = known.exact(number, n)
    else:
        rng = np.random.default_rng(number)
        flat = kinds(known.name)[kind](rng, known, number, n)
    start = time.monotonic()
    verdict = pf.check(
        jax.random.key(number), known.target, known.as_given(flat), reference, n=n
    )
    return {
        "target": known.name,
        "kind": kind,
        "n": n,
        "seed": seed,
        "outcome": verdict.outcome.value,
        "failed": [f.name for f in verdict.findings if f.outcome == "failed"],
        "p_values": {f.name: f.p_value for f in verdict.findings},
        "summary": verdict.summary,
        "evaluations": verdict.evaluations,
        "seconds": round(time.monotonic() - start, 2),
    }


def main() -> None:
    """Makes the rows that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--limit", type=int, default=10**9, help="at most so many rows")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    rows = []
    if given.out.exists():
        rows = json.loads(given.out.read_text("utf-8"))["rows"]
    result = {
        "reference": REFERENCE,
        "counted": counted(),
        "alike": list(KINDS),
        "rows": rows,
    }
    device = jax.devices()[0]
    made_by = {
        "device": f"{device.platform}: {device.device_kind}",
        "cores": len(os.sched_getaffinity(0)),
        "versions": {"pushforward": pf.__version__, "jax": jax.__version__},
    }
    done = {(r["target"], r["kind"], r["n"], r["seed"]) for r in result["rows"]}
    wanted = [c for c in cells([*map(int, given.sizes.split(","))]) if c not in done]
    wanted = sorted(wanted[: given.limit], key=lambda c: TARGETS.index(c[0]))
    for name, group in itertools.groupby(wanted, lambda c: c[0]):
        known = Known.of(name)
        reference = shared(known)
        for _, kind, n, seed in group:
            found = row(known, reference, kind, n, seed) | made_by
            print(name, kind, n, seed, found["outcome"], found["failed"], flush=True)
            result["rows"].append(found)
            part = given.out.with_suffix(".part")
            part.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
            part.replace(given.out)
        jax.clear_caches()


if __name__ == "__main__":
    main()
