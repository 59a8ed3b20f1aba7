"""Does a change of the code make anything worse?

Runs on any version of the package from 0.1 on: it uses only names that stay, and
measures with NumPy, so that the yardstick does not change with the code. The parts:

- `methods`: every method on six planar targets, three seeds by `fit_many`, few steps:
  sliced W2 and the KSD U-statistic beside those of exact draws.
- `default`: `fit` with no option on nine targets, seed 0, each in a fresh process.
- `check`: its outcome on 12 bad and on 12 exact sets of draws.
- `bits`: hashes of what 20 steps of each method give. They may be compared only
  between runs on one machine with the same versions of JAX and NumPy. Methods whose
  sampler waits 500 steps for a score or a critic are run for 520.
- `speed`: milliseconds a step, and seconds of a first fit. It runs last and alone.

    python benchmarks/regression.py --workers 15 --out results/regression.json
    python benchmarks/regression.py --quick --out quick.json
    python benchmarks/regression.py --parts bits --out before.json
    python benchmarks/regression.py --compare before.json after.json
    python benchmarks/regression.py --render

Every cell is a process of its own, on one core and one thread.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import platform
import queue
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
# The comparison that is on a page, and the marks between which it stands there.
RESULTS = (ROOT / "results/regression_0_1.json", ROOT / "results/regression.json")
PAGE = ROOT / "docs" / "regression.md"
BEGIN, END = "<!-- regression: begin -->", "<!-- regression: end -->"
PARTS = ("methods", "default", "check", "bits", "speed")
METHODS = (
    "default",
    "Transport",
    "DFT",
    "KL",
    "Fisher",
    "SteinCritic",
    "KSD",
    "SteinGAN",
    "Flow",
    "Gaussian",
)
PLANAR = ("gaussian", "mog2", "rosenbrock", "donut", "funnel", "squiggle")
TARGETS = (
    *PLANAR,
    "eight_schools_noncentred",
    "eight_schools_centred",
    "neal_funnel",
)
BITS_TARGETS = ("donut", "eight_schools_noncentred")
# Their first 500 steps move a score or a critic only, so that 520 move the sampler 20
# times.
WAITING = ("DFT", "KL", "Fisher", "SteinCritic")
SEEDS, STEPS = 3, 1200
# A statistic is the mean over this many sets of so many draws.
SETS, DRAWS = 20, 2000
EXACT_SETS = 40
PROJECTIONS = 128
# A cell that takes longer than this is given up.
CELL_SECONDS = 1800
STATISTICS = ("sliced_w2", "ksd_u")


# What differs between versions of the package.


def _method(name):
    """A method with its own settings, None for the default."""
    import pushforward as pf

    return None if name == "default" else getattr(pf.methods, name)()


def _exists(name):
    import pushforward as pf

    return name == "default" or hasattr(pf.methods, name)


def _flat(source, key, n):
    """Draws of a sampler or of a target in unconstrained coordinates."""
    if hasattr(source, "unconstrained"):
        source = source.unconstrained()
    draw = getattr(source, "sample_flat", None) or source.sample
    return np.asarray(draw(key, n))


def _outcome(verdict):
    """Passed, failed or inconclusive, in one of these words."""
    import pushforward as pf

    words = ("passed", "failed", "inconclusive")
    if not hasattr(verdict, "outcome"):
        return dict(zip((True, False, None), words, strict=True))[verdict.passed]
    outcome = verdict.outcome
    names = getattr(pf.diagnostics, "Outcome", None)
    for word in words:
        named = getattr(names, word.upper(), None)
        if named is not None and bool(outcome == named):
            return word
    said = str(getattr(outcome, "name", outcome)).lower()
    return next(word for word in words if word in said)


# The yardstick.


def _directions(dim):
    if dim == 2:
        angles = np.pi * (np.arange(PROJECTIONS) + 0.5) / PROJECTIONS
        return np.stack([np.cos(angles), np.sin(angles)])
    normal = np.random.default_rng(0).normal(size=(dim, PROJECTIONS))
    return normal / np.linalg.norm(normal, axis=0)


def sliced_w2(x, y):
    """The root of the mean squared W2 of equally many draws over fixed directions."""
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return float("nan")
    directions = _directions(x.shape[1])
    x, y = (np.sort(sample @ directions, axis=0) for sample in (x, y))
    return float(np.sqrt(np.mean((x - y) ** 2)))


def ksd_u(x, s):
    """The U-statistic of the Stein kernel with base (1 + |x - y|^2)^(-1/2)."""
    if not (np.isfinite(x).all() and np.isfinite(s).all()):
        return float("nan")
    n, dim = x.shape
    x = x - x.mean(axis=0)
    squares, own = np.sum(x**2, axis=1), np.sum(s * x, axis=1)
    # k0(x, x), which is no pair.
    total = -np.sum(s**2) - n * dim
    # Blocks that stay in the cache are twenty times as fast.
    for i in range(0, n, 50):
        rows = slice(i, i + 50)
        distance = squares[rows, None] + squares - 2 * x[rows] @ x.T
        cross = own[rows, None] + own - s[rows] @ x.T - x[rows] @ s.T
        inverse = 1 / (1 + np.maximum(distance, 0))
        total += np.sum(
            np.sqrt(inverse)
            * (s[rows] @ s.T + inverse * (cross + dim - 3 * distance * inverse))
        )
    return float(total / n / (n - 1))


class Yardstick:
    """Scores sets of draws of one target, and as many exact ones."""

    def __init__(self, target, sets, exact_sets):
        import jax

        self.target, self.sets, self.exact_sets = target, sets, exact_sets
        self.score = jax.jit(jax.vmap(lambda x: target.score(x)))
        keys = jax.random.split(jax.random.key(10**6), 4)
        self.key = keys[0]
        self.scale = _flat(target, keys[1], 100_000).astype(np.float64).std(axis=0)
        many = max(sets, exact_sets)
        self.reference = self._split(_flat(target, keys[2], many * DRAWS))
        exact = self._split(_flat(target, keys[3], exact_sets * DRAWS))
        self.exact = self._scores(exact)

    def _split(self, draws):
        return draws.reshape(-1, DRAWS, draws.shape[1])

    def _scores(self, sets):
        found = {name: [] for name in STATISTICS}
        for x, y in zip(sets, self.reference, strict=False):
            s = np.asarray(self.score(x), np.float64)
            x, y = x.astype(np.float64), y.astype(np.float64)
            found["sliced_w2"].append(sliced_w2(x / self.scale, y / self.scale))
            found["ksd_u"].append(ksd_u(x, s))
        return {name: np.array(values) for name, values in found.items()}

    def of(self, sampler):
        """The mean and its standard error of every statistic."""
        draws = _flat(sampler, self.key, self.sets * DRAWS)
        finite = float(np.isfinite(draws).all(axis=1).mean())
        record: dict[str, float | None] = {"finite_share": finite}
        for name, values in self._scores(self._split(draws)).items():
            record[name] = _number(values.mean())
            record[f"{name}_error"] = _number(values.std(ddof=1) / self.sets**0.5)
        return record

    def floor(self):
        """What exact draws score: the mean, a single set's deviation, every set."""
        record = {}
        for name, values in self.exact.items():
            record[f"{name}_exact"] = _number(values.mean())
            record[f"{name}_exact_sd"] = _number(values.std(ddof=1))
        record["ksd_u_expected"] = 0.0
        record["ksd_u_exact_sets"] = [_number(value) for value in self.exact["ksd_u"]]
        return record


def _number(value):
    value = float(value)
    return value if np.isfinite(value) else None


# The cells, each run in a process of its own.


def methods_cell(cell):
    import jax

    import pushforward as pf

    target = pf.targets.get(cell["target"])
    keys = jax.random.split(jax.random.key(0), cell["seeds"])
    start = time.perf_counter()
    fits = pf.fit_many(
        keys,
        target,
        _method(cell["method"]),
        steps=cell["steps"],
        batch_size=256,
        progress=False,
    )
    seconds = time.perf_counter() - start
    yardstick = Yardstick(target, cell["sets"], cell["exact_sets"])
    seeds = [
        {
            "seed": i,
            "status": str(fitted.status),
            "evaluations": int(fitted.evaluations),
            **yardstick.of(fitted.sampler),
        }
        for i, fitted in enumerate(fits)
    ]
    record = {"fit_many_seconds": round(seconds, 2), **yardstick.floor()}
    for name in STATISTICS:
        values = [seed[name] for seed in seeds]
        finite = [value for value in values if value is not None]
        record[f"{name}_worst"] = max(finite) if len(finite) == len(values) else None
        record[f"{name}_range"] = [min(finite), max(finite)] if finite else None
    return {**record, "seeds": seeds}


def default_cell(cell):
    import jax

    import pushforward as pf

    target = pf.targets.get(cell["target"])
    options = {"steps": cell["steps"]} if cell["steps"] else {}
    start = time.perf_counter()
    fitted = pf.fit(jax.random.key(0), target, progress=False, **options)
    seconds = time.perf_counter() - start
    yardstick = Yardstick(target, cell["sets"], cell["exact_sets"])
    own, floor = yardstick.of(fitted.sampler), yardstick.floor()
    ratio = (own["sliced_w2"] or float("nan")) / floor["sliced_w2_exact"]
    return {
        "dim": int(target.dim),
        "status": str(fitted.status),
        "fit_seconds": round(seconds, 2),
        "evaluations": int(fitted.evaluations),
        "sliced_w2_ratio": _number(ratio),
        **own,
        **floor,
    }


def _turn(angle):
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s], [s, c]])


def _shuffled(x):
    """The first coordinate independent of the others."""
    first = np.random.default_rng(0).permutation(x[:, 0])
    return np.concatenate([first[:, None], x[:, 1:]], axis=1)


def _cut(x, share):
    """Without the draws farthest from the mean, in standard deviations."""
    radius = np.linalg.norm((x - x.mean(axis=0)) / x.std(axis=0), axis=1)
    return x[radius <= np.quantile(radius, 1 - share)]


def _lighter(x, kept):
    """A part `kept` only of the draws whose first coordinate is positive."""
    lost = np.random.default_rng(0).random(len(x)) > kept
    return x[~((x[:, 0] > 0) & lost)]


def _normal(x):
    """Normal draws with the same mean and covariance."""
    root = np.linalg.cholesky(np.cov(x.T))
    return x.mean(axis=0) + np.random.default_rng(0).normal(size=x.shape) @ root.T


def _noisy(x, scale):
    return x + scale * np.random.default_rng(0).normal(size=x.shape)


def _scaled(x, factor):
    """The first coordinate scaled about its mean."""
    mean = x[:, :1].mean()
    return np.concatenate([mean + factor * (x[:, :1] - mean), x[:, 1:]], axis=1)


# For each group: the target, whether `check` may use its exact draws, the bad sets made
# from exact draws, and as many exact sets.
CHECKS = {
    "gaussian": {
        "shifted by 0.2 standard deviations": lambda x: x + 0.2 * x.std(axis=0),
        "one coordinate scaled by 1.15": lambda x: _scaled(x, 1.15),
    },
    "mog2": {
        "one mode lost": lambda x: _lighter(x, 0.0),
        "one mode with a third less weight": lambda x: _lighter(x, 2 / 3),
    },
    "donut": {"noise of 0.25 added": lambda x: _noisy(x, 0.25)},
    "squiggle": {
        "rotated by 10 degrees": lambda x: x @ _turn(np.pi / 18).T,
        "the outermost 5 % cut": lambda x: _cut(x, 0.05),
    },
    "student_t": {"a normal with the same moments": _normal},
    "correlated_gaussian": {
        "one coordinate shuffled": _shuffled,
        "one coordinate scaled by 1.15": lambda x: _scaled(x, 1.15),
    },
    "mog2, no exact draws": {"one mode lost": lambda x: _lighter(x, 0.0)},
    "rosenbrock, no exact draws": {
        "one coordinate scaled by 1.3": lambda x: _scaled(x, 1.3)
    },
}


def check_cell(cell):
    import jax

    import pushforward as pf

    named = pf.targets.get(cell["group"].split(",")[0])
    bare = "no exact draws" in cell["group"]
    target = pf.Target(named.log_density, dim=named.dim) if bare else named
    sets = []
    for i, (name, spoil) in enumerate(CHECKS[cell["group"]].items()):
        key, exact_key = jax.random.split(jax.random.key(100 + i))
        # Some ways to spoil draws leave fewer of them.
        bad = spoil(_flat(named, key, 3 * DRAWS))[:DRAWS]
        exact = _flat(named, exact_key, DRAWS)
        sets += [(name, False, bad), (f"exact draws, set {i + 1}", True, exact)]
    records = []
    for i, (name, is_exact, draws) in enumerate(sets):
        assert len(draws) == DRAWS
        start = time.perf_counter()
        draws = jax.numpy.asarray(draws, jax.numpy.float32)
        verdict = pf.check(jax.random.key(i), target, draws)
        records.append(
            {
                "draws": name,
                "exact": is_exact,
                "outcome": _outcome(verdict),
                "seconds": round(time.perf_counter() - start, 2),
                "said": str(verdict).split("\n")[0],
            }
        )
    return {"sets": records}


def bits_cell(cell):
    import jax

    import pushforward as pf

    target = pf.targets.get(cell["target"])
    fitted = pf.fit(
        jax.random.key(0),
        target,
        _method(cell["method"]),
        steps=cell["steps"],
        batch_size=64,
        progress=False,
    )
    leaves = jax.tree.leaves(fitted.sampler)
    weights = [np.asarray(leaf).tobytes() for leaf in leaves if hasattr(leaf, "dtype")]
    # Sorted, so that a field may get another name or place.
    parts = sorted(hashlib.sha256(bits).hexdigest() for bits in weights)
    draws = _flat(fitted.sampler, jax.random.key(1), 100)
    return {
        "draws_sha256": hashlib.sha256(draws.tobytes()).hexdigest(),
        "weights_sha256": hashlib.sha256("".join(parts).encode()).hexdigest(),
        "first_draw": [float(value) for value in draws[0][:2]],
        "evaluations": int(fitted.evaluations),
    }


def speed_cell(cell):
    """Milliseconds a step: what more steps cost, all of them compiled beforehand."""
    import jax

    import pushforward as pf

    target, few, many = pf.targets.get("donut"), *cell["steps"]

    def seconds(name, steps):
        start = time.perf_counter()
        fitted = pf.fit(
            jax.random.key(0),
            target,
            _method(name),
            steps=steps,
            batch_size=256,
            progress=False,
        )
        jax.block_until_ready(jax.tree.leaves(fitted.sampler))
        return time.perf_counter() - start, int(fitted.evaluations)

    records = []
    for name in filter(_exists, cell["methods"]):
        try:
            for steps in (few, many):
                seconds(name, steps)
            times, evaluations = [], 0
            for _ in range(cell["repeats"]):
                short, _ = seconds(name, few)
                whole, evaluations = seconds(name, many)
                times.append(1000 * (whole - short) / (many - few))
            record = {
                "ms_a_step": round(float(np.median(times)), 4),
                "ms_a_step_range": [round(min(times), 4), round(max(times), 4)],
                "steps": many,
                "evaluations": evaluations,
            }
        except Exception as error:
            record = {"error": f"{type(error).__name__}: {error}"}
        records.append({"method": name, **record})
    return {"records": records}


def first_cell(cell):
    start = time.perf_counter()
    import jax

    import pushforward as pf

    target = pf.targets.get("donut")
    imported = time.perf_counter()
    options = {"steps": cell["steps"]} if cell["steps"] else {}
    fitted = pf.fit(jax.random.key(0), target, progress=False, **options)
    done = time.perf_counter()
    jax.block_until_ready(fitted.sampler.sample(jax.random.key(1), 1000))
    return {
        "import_seconds": round(imported - start, 2),
        "first_fit_seconds": round(done - imported, 2),
        "first_draws_seconds": round(time.perf_counter() - done, 3),
        "evaluations": int(fitted.evaluations),
    }


KINDS = {
    "methods": methods_cell,
    "default": default_cell,
    "check": check_cell,
    "bits": bits_cell,
    "speed": speed_cell,
    "first": first_cell,
}


def run_cell(cell, out):
    """What a subprocess does; what it raises is part of the result."""
    core = cell.pop("core")
    if core is not None:
        os.sched_setaffinity(0, {core})
    start = time.perf_counter()
    try:
        absent = "method" in cell and not _exists(cell["method"])
        result: dict = {"absent": True} if absent else KINDS[cell["kind"]](cell)
    except Exception as error:
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}"}
    result["cell_seconds"] = round(time.perf_counter() - start, 1)
    result["cpu_seconds"] = round(time.process_time(), 1)
    import jax

    import pushforward as pf

    device = jax.devices()[0]
    head = {
        "device": f"{device.platform}: {device.device_kind}",
        "versions": {
            "pushforward": pf.__version__,
            "jax": jax.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }
    out.write_text(json.dumps({"head": head, "result": result}))


# The pool.


def cells(parts, quick):
    """Every cell of the parts asked for, the longest first; speed apart."""
    pool, last = [], []
    planar, named = (("donut",), ("donut",)) if quick else (PLANAR, TARGETS)
    sets = {"sets": 2, "exact_sets": 3} if quick else {}
    common = {"sets": SETS, "exact_sets": EXACT_SETS, **sets}
    if "default" in parts:
        steps = 30 if quick else None
        # Those of ten dimensions take longest.
        for target in reversed(named):
            pool.append({"kind": "default", "target": target, "steps": steps, **common})
    if "methods" in parts:
        steps = 20 if quick else STEPS
        # The slower methods first.
        for method in sorted(METHODS, key=lambda name: name not in WAITING):
            for target in planar:
                cell = {"kind": "methods", "method": method, "target": target}
                pool.append({**cell, "steps": steps, "seeds": SEEDS, **common})
    if "check" in parts:
        groups = list(CHECKS)[1:2] if quick else CHECKS
        pool += [{"kind": "check", "group": group} for group in groups]
    if "bits" in parts:
        for method in METHODS:
            waits = method in WAITING and not quick
            for target in planar if quick else BITS_TARGETS:
                cell = {"kind": "bits", "method": method, "target": target}
                pool.append({**cell, "steps": 520 if waits else 20})
    if "speed" in parts:
        speed = {"kind": "speed", "methods": METHODS, "repeats": 1 if quick else 3}
        last.append({**speed, "steps": [5, 10] if quick else [50, 350]})
        repeats = 1 if quick else 3
        first = {"kind": "first", "steps": 30 if quick else None}
        last += [{**first, "repeat": i} for i in range(repeats)]
    return pool, last


def _environment(*, one_thread):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    # A first fit compiles.
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    environment.pop("PUSHFORWARD_QUICK", None)
    if one_thread:
        flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {flags}".strip()
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            environment[name] = "1"
    return environment


def launch(cell, core, folder):
    """Runs one cell in a process of its own, on one core where one is given."""
    out = Path(folder) / f"{time.monotonic_ns()}-{core}.json"
    text = json.dumps({**cell, "core": core})
    command = [sys.executable, __file__, "--cell", text, "--out", str(out)]
    # A first fit is as a user has it.
    environment = _environment(one_thread=cell["kind"] != "first")
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=CELL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {}, {"error": f"given up after {CELL_SECONDS} s"}
    if not out.exists():
        return {}, {"error": f"exit status {done.returncode}: {done.stderr[-1000:]}"}
    whole = json.loads(out.read_text())
    if "error" in whole["result"]:
        print(done.stderr[-2000:], file=sys.stderr, flush=True)
    return whole["head"], whole["result"]


def run(arguments):
    """Runs every cell and writes the result file after each."""
    started = time.perf_counter()
    pool, last = cells(arguments.parts, arguments.quick)
    if arguments.only:
        wanted = [set(entry.split()) for entry in arguments.only.split(",")]
        pool, last = (
            [c for c in part if any(w <= set(_name(c).split()) for w in wanted)]
            for part in (pool, last)
        )
    cores = sorted(os.sched_getaffinity(0))
    whole = {
        "quick": arguments.quick,
        "machine": platform.machine(),
        "cores": len(cores),
        "workers": arguments.workers,
        "settings": {
            "steps": STEPS,
            "batch_size": 256,
            "seeds": SEEDS,
            "sets": SETS,
            "exact_sets": EXACT_SETS,
            "draws": DRAWS,
        },
    }
    records = []
    if arguments.only and arguments.out.exists():
        # A row stays until it is measured again, with what measured it.
        earlier = json.loads(arguments.out.read_text())
        for kind in KINDS:
            for record in earlier.get(kind, []):
                records.append({"kind": kind, "cores": earlier["cores"], **record})
    measured = {"commit": _commit(), "date": time.strftime("%Y-%m-%d")}
    free = queue.Queue()
    for i in range(arguments.workers):
        free.put(cores[i] if arguments.workers <= len(cores) else None)

    def one(cell):
        core = free.get()
        try:
            return cell, launch(cell, core, folder)
        finally:
            free.put(core)

    def keep(cell, head, result):
        whole.update(head)
        if "absent" in result:
            return
        records[:] = [old for old in records if _name(old) != _name(cell)]
        records.append({**_shown(cell), **result, "cores": len(cores), **measured})
        spent = time.perf_counter() - started
        whole["total_seconds"] = round(spent, 1)
        order = list(KINDS)
        kept = {}
        for kind in order:
            found = [record for record in records if record["kind"] == kind]
            if found:
                found.sort(key=lambda r: places.index(_name(r)))
                kept[kind] = [
                    {k: v for k, v in record.items() if k != "kind"} for record in found
                ]
        text = json.dumps({**whole, **kept}, indent=1) + "\n"
        arguments.out.parent.mkdir(exist_ok=True, parents=True)
        arguments.out.write_text(text)
        took = f"{result.get('cell_seconds')} s, {result.get('cpu_seconds')} s of CPU"
        state = result.get("error") or took
        print(f"{spent:6.1f} s  {_name(cell):45s} {state[:200]}", flush=True)

    places = _places()
    with tempfile.TemporaryDirectory() as folder:
        with concurrent.futures.ThreadPoolExecutor(arguments.workers) as threads:
            for future in concurrent.futures.as_completed(
                [threads.submit(one, cell) for cell in pool]
            ):
                cell, (head, result) = future.result()
                keep(cell, head, result)
        for cell in last:
            core = cores[0] if cell["kind"] == "speed" else None
            keep(cell, *launch(cell, core, folder))
    print(summary(json.loads(arguments.out.read_text())))
    failed = [record for record in records if "error" in record]
    return 1 if failed else 0


def _commit():
    """The commit of this checkout, None outside one."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    where = Path(__file__).parent
    done = subprocess.run(command, cwd=where, capture_output=True, text=True)
    return done.stdout.strip() or None


def _shown(cell):
    hidden = ("sets", "exact_sets", "methods", "repeats", "seeds")
    return {name: value for name, value in cell.items() if name not in hidden}


def _name(cell):
    parts = [cell.get(name) for name in ("kind", "method", "group", "target", "repeat")]
    return " ".join(str(part) for part in parts if part is not None)


def _places():
    """The names of all cells in the order of the tables."""
    names = [f"methods {method} {target}" for method in METHODS for target in PLANAR]
    names += [f"default {target}" for target in TARGETS]
    names += [f"check {group}" for group in CHECKS]
    names += [f"bits {m} {t}" for m in METHODS for t in BITS_TARGETS]
    return [*names, "speed", *(f"first {i}" for i in range(3))]


# Tables.


def _short(value):
    if isinstance(value, list):
        return " ".join(_short(each) for each in value)
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_short, line))} |" for line in lines)


def summary(result):
    """The result file as tables."""
    tables = []
    rows = [
        [r["method"], r["target"]]
        + [
            cell
            for name in STATISTICS
            for cell in (
                [seed[name] for seed in r["seeds"]],
                r[f"{name}_worst"],
                r[f"{name}_exact"],
            )
        ]
        + [r["ksd_u_exact_sd"], r["seeds"][0]["evaluations"]]
        for r in result.get("methods", [])
        if "error" not in r
    ]
    head = ["method", "target", "sliced W2", "worst", "exact"]
    head += ["KSD U", "worst", "exact", "sd of one exact set", "evaluations"]
    if rows:
        tables.append(_table(head, rows))
    columns = ("target", "sliced_w2_ratio", "ksd_u", "ksd_u_exact", "ksd_u_exact_sd")
    columns += ("evaluations", "fit_seconds", "status")
    rows = [[r.get(c) for c in columns] for r in result.get("default", [])]
    if rows:
        tables.append(_table(list(columns), rows))
    rows = [
        [r["group"], s["draws"], s["outcome"], s["seconds"]]
        for r in result.get("check", [])
        for s in r.get("sets", [])
    ]
    if rows:
        tables.append(_table(["target", "draws", "outcome", "seconds"], rows))
    rows = [
        [r["method"], r["target"], r["draws_sha256"][:16], r["weights_sha256"][:16]]
        for r in result.get("bits", [])
        if "error" not in r
    ]
    if rows:
        tables.append(_table(["method", "target", "draws", "weights"], rows))
    rows = [
        [r["method"], r.get("ms_a_step"), r.get("ms_a_step_range"), r.get("error")]
        for part in result.get("speed", [])
        for r in part.get("records", [])
    ]
    if rows:
        tables.append(_table(["method", "ms a step", "range", "error"], rows))
    columns = ("import_seconds", "first_fit_seconds", "first_draws_seconds")
    rows = [[r.get(c) for c in columns] for r in result.get("first", [])]
    if rows:
        tables.append(_table(list(columns), rows))
    return "\n\n".join(tables)


def _keyed(result, kind, *names):
    found = {}
    for record in result.get(kind, []):
        if "error" not in record:
            found[tuple(record[name] for name in names)] = record
    return found


def compare(before, after):
    """Rows of which the second file is worse than the first's range, as a table.

    Where exact draws scatter more than the seeds do, theirs is the range: the mean of
    `sets` sets of exact draws, and three standard errors.
    """
    rows, at = [], ""

    def row(what, old, new, worse):
        rows.append([what, old, new, "WORSE" if worse else "", at])

    def noise(record, name, sets):
        return record[f"{name}_exact"] + 3 * record[f"{name}_exact_sd"] / sets**0.5

    sets = before["settings"]["sets"]
    for kind, names in (("methods", ("method", "target")), ("default", ("target",))):
        old, new = _keyed(before, kind, *names), _keyed(after, kind, *names)
        for key in old:
            what = " ".join(key)
            at = new.get(key, {}).get("commit", "")
            if key not in new:
                row(f"{kind} {what}", "", "absent", True)
                continue
            for name in STATISTICS:
                if kind == "methods":
                    was, now = ([s[name] for s in r[key]["seeds"]] for r in (old, new))
                else:
                    was, now = ([r[key][name]] for r in (old, new))
                bound = max([*(v for v in was if v is not None), -np.inf])
                # One seed has no range but its own error.
                if kind == "default":
                    bound += 3 * (old[key][f"{name}_error"] or 0)
                bound = max(bound, noise(old[key], name, sets))
                lost = None in now and None not in was
                middle = np.median([np.inf if v is None else v for v in now])
                # Where a seed had run away before, another may now.
                worse = lost or (middle > bound and None not in was)
                row(f"{kind} {what} {name}", was, now, worse)
    old, new = (_keyed(r, "check", "group") for r in (before, after))
    for key in old:
        at = new.get(key, {}).get("commit", "")
        fresh = {s["draws"]: s for s in new.get(key, {}).get("sets", [])}
        for s in old[key]["sets"]:
            now = fresh.get(s["draws"], {}).get("outcome", "absent")
            right = "passed" if s["exact"] else "failed"
            worse = now != s["outcome"] and now != right
            row(f"check {key[0]}: {s['draws']}", s["outcome"], now, worse)
    old, new = (_keyed(r, "bits", "method", "target") for r in (before, after))
    for key in old:
        for name in ("draws_sha256", "weights_sha256"):
            was, now = old[key][name], new.get(key, {}).get(name, "absent")
            said = "same" if was == now else "other bits"
            rows.append([f"bits {' '.join(key)} {name}", was[:12], now[:12], said, at])
    for part in zip(before.get("speed", []), after.get("speed", []), strict=False):
        old, new = ({r["method"]: r for r in p.get("records", [])} for p in part)
        for name in old:
            was = old[name].get("ms_a_step_range")
            now = new.get(name, {}).get("ms_a_step")
            worse = was is not None and (now is None or now > was[1])
            row(f"ms a step {name}", was, now, worse)
    old, new = (
        [r["first_fit_seconds"] for r in result.get("first", []) if "error" not in r]
        for result in (before, after)
    )
    if old:
        row("first fit", old, new, not new or np.median(new) > max(old))
    return _table(["row", "before", "after", "", "measured at"], rows)


def with_table(page, before, after):
    """The page with the table of a comparison between its marks."""
    head, rest = page.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n{compare(before, after)}\n{END}{tail}"


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/regression.json"))
    parser.add_argument("--parts", default=",".join(PARTS), help="some of them")
    parser.add_argument(
        "--only",
        help="rows by words of their names, such as 'KSD,Flow donut'; others are kept",
    )
    parser.add_argument("--bits", action="store_true", help="the same as --parts bits")
    parser.add_argument("--quick", action="store_true", help="tiny, to try the script")
    parser.add_argument("--compare", type=Path, nargs=2, metavar="FILE")
    parser.add_argument(
        "--render", action="store_true", help="put the comparison with 0.1 on its page"
    )
    parser.add_argument("--show", type=Path, help="print a result file as tables")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        return run_cell(json.loads(arguments.cell), arguments.out)
    if arguments.render:
        both = (json.loads(path.read_text("utf-8")) for path in RESULTS)
        page = with_table(PAGE.read_text("utf-8"), *both)
        PAGE.write_text(page, "utf-8")
        return 0
    if arguments.compare:
        both = (json.loads(path.read_text()) for path in arguments.compare)
        return print(compare(*both))
    if arguments.show:
        return print(summary(json.loads(arguments.show.read_text())))
    arguments.parts = ["bits"] if arguments.bits else arguments.parts.split(",")
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"--parts are some of {','.join(PARTS)}, not {','.join(unknown)}")
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
