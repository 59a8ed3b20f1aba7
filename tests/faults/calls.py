"""Calls of the public functions with whatever a user may pass by mistake.

A call may work, raise an error of pushforward's, or a plain `TypeError`.
"""

import contextlib
import io
import random
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pushforward as pf
from pushforward import methods, networks
from pushforward._text import shown
from pushforward.errors import PushforwardError

from .tally import Tally

# A call that works may compile for a while; one that hangs does so longer.
SECONDS = 60.0


def _log_density(x):
    return -0.5 * jnp.sum(jnp.asarray(x) ** 2)


def things(folder: Path) -> dict[str, list[Any]]:
    """What there is to pass, by what it is meant for."""
    key = jax.random.key(0)
    sampler = pf.Sampler.from_network(networks.AffineMap(2))
    tree = pf.Target(
        lambda p: -(p["a"] ** 2), example={"a": 1.0}, constraints={"a": "positive"}
    )
    return {
        "key": [
            key, jax.random.PRNGKey(1), jax.random.split(key, 3), 0, np.int64(3), None,
            "key", jnp.zeros(2), np.zeros(2, np.uint32),
            jax.random.split(jax.random.PRNGKey(0), 2),
        ],
        "target": [
            pf.Target(_log_density, dim=2), _log_density, tree, sampler, None, 5,
            "gaussian", [pf.Target(_log_density, dim=2)] * 3,
            pf.ScoreTarget(lambda x: -x, dim=2), pf.targets.get("gaussian"),
        ],
        "sampler": [
            sampler, networks.AffineMap(2), pf.Target(_log_density, dim=2), None,
            "a.pf", sampler.unconstrained(),
            pf.Sampler.from_network(networks.AffineMap(3)),
        ],
        "draws": [
            sampler.sample(key, 40), np.asarray(sampler.sample(key, 40)),
            sampler.sample(key, 2), jnp.full((40, 2), jnp.nan), [[1.0, 2.0]] * 40,
            np.zeros((40, 3)), {"a": jnp.ones(40)}, None, "draws", 3.0, np.zeros(2),
            np.zeros((40, 2), int), np.zeros((40, 2), complex), sampler, [],
            jnp.zeros((0, 2)), np.full((40, 2), np.inf),
        ],
        "number": [
            0, 1, 3, 5, -1, 2.5, 5.0, np.int64(4), jnp.int32(4), True, None, "5",
            float("nan"), float("inf"), 10**30, np.float32(3), [5], (2, 3), 1e3,
            10**400, 10**5000, complex(3), np.array(5), np.array([5]), b"5",
        ],
        "path": [
            folder / "a.npy", folder / "a.npz", folder / "a.csv", str(folder / "a.pf"),
            folder, folder / "no" / "a.npy", "", None, 5, b"a.npy", folder / "a.txt",
            folder / "a.html", "a\0b.npy", folder / ("x" * 300 + ".npy"), "/dev/null",
            "/dev/full", folder / "a.npy" / "b.npy",
        ],
        "page": [
            folder / "a.html", folder / "a.txt", folder, "", None, 5, "a\0b.html",
            folder / "no" / "a.html", folder / ("x" * 300 + ".html"), "/dev/a.html",
        ],
        "constraint": [
            "positive", "interval(0, 1)", "interval(1, 0)", "nope", "", None, 5,
            {"a": "positive"}, {"b": "positive"}, ["positive"], "positive(3)",
            pf.constraints.positive, pf.constraints.simplex, {"a": 5},
        ],
        "method": [
            methods.Gaussian(steps=3, batch_size=8, particles=16), methods.Gaussian,
            "gaussian", None, 5,
        ],
        "function": [
            _log_density, None, 5, "f", len, print, lambda: 0.0, jnp.sum, dict,
        ],
        "network": [
            networks.AffineMap(2), networks.affine(), None, 5, "mlp",
            networks.AffineMap,
        ],
        "text": ["donut", "gaussian", "nope", "", None, 5, "a.py:b"],
        "any": [None, 5, "x", -1.5, [], {}, object(), float("nan"), b"", lambda: 0],
    }  # fmt: skip


# The functions, and what their arguments are meant to be. In `fit` the method is always
# a short one: the default takes minutes.
def calls(folder: Path) -> list[tuple[str, Callable, tuple[str, ...], dict[str, str]]]:
    """The public functions by name: positional arguments, and those by keyword."""
    short = methods.Gaussian(steps=3, batch_size=8, particles=16)

    def fit(key, target, **options):
        return pf.fit(key, target, short, progress=False, **options)

    def fit_many(key, target, **options):
        return pf.fit_many(key, target, short, progress=False, **options)

    def report(*given, **options):
        return pf.report(*given, **options, max_evaluations=2000)

    def wrong_method(key, target, method):
        if method is None:
            return None
        return pf.fit(key, target, method, progress=False)

    own = pf.Sampler.from_network(networks.AffineMap(2))
    return [
        ("fit", fit, ("key", "target"), {"steps": "number", "batch_size": "number",
            "callback": "function", "callback_every": "number", "throw": "any"}),
        ("fit method", wrong_method, ("key", "target", "method"), {}),
        ("fit_many", fit_many, ("key", "target"), {"steps": "number"}),
        ("refine", pf.refine, ("key", "target", "draws", "number"), {}),
        ("weigh", pf.weigh, ("key", "target", "sampler", "number"), {}),
        ("check", pf.check, ("key", "target", "draws"),
            {"n": "number", "max_evaluations": "number", "reference": "draws"}),
        ("explore", pf.explore, ("key", "target"), {"max_evaluations": "number"}),
        ("Target", pf.Target, ("function", "number"), {"example": "draws",
            "constraints": "constraint", "names": "any", "sample": "function"}),
        ("ScoreTarget", pf.ScoreTarget, ("function", "number"), {"names": "any"}),
        ("MinibatchTarget", pf.MinibatchTarget, ("function", "function", "draws"),
            {"dim": "number"}),
        ("constrained", pf.constrained, ("function", "constraint", "number"), {}),
        ("interval", pf.constraints.interval, ("number", "number"), {}),
        ("greater_than", pf.constraints.greater_than, ("any",), {}),
        ("targets.get", pf.targets.get, ("text",), {}),
        ("sample", own.sample, ("key", "number"), {}),
        ("sample_and_log_prob", own.sample_and_log_prob, ("key", "number"), {}),
        ("log_prob", own.log_prob, ("draws",), {}),
        ("iter_batches", lambda *given: list(own.iter_batches(*given)),
            ("key", "number", "number"), {}),
        ("report", report, ("key", "target", "sampler", "page"),
            {"n": "number", "reference": "draws", "title": "text", "run": "path"}),
        ("stream", own.stream, ("key", "number", "path"), {}),
        ("save", own.save, ("path",), {"dtype": "any"}),
        ("load", pf.load, ("path",), {"like": "sampler"}),
        ("load_network", pf.load_network, ("path",), {"like": "network"}),
        ("save_network", pf.save_network, ("path", "network"), {}),
        ("from_network", pf.Sampler.from_network, ("network",),
            {"dim": "number", "target": "target", "noise_scale": "number"}),
        ("train", pf.train, ("key", "draws", "method"), {"steps": "number"}),
        ("register", networks.register, ("network",), {}),
        ("DFT", methods.DFT, (), {"steps": "number", "batch_size": "number",
            "network": "network", "optimiser": "any"}),
    ]  # fmt: skip


# Those that are expensive when they work are called less often.
RARE = {"fit", "fit_many", "fit method", "check", "explore", "train", "refine"}
RARE |= {"report"}


def campaign(seed: int, count: int) -> Tally:
    """Mostly good arguments, so that what is wrong is met deep inside."""
    tally, dice = Tally(), random.Random(seed)
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        folder = Path(name)
        pool, functions = things(folder), calls(folder)
        weights = [0.3 if f[0] in RARE else 1.0 for f in functions]

        def argument(kind):
            if dice.random() < 0.4:
                return pool[kind][0]
            return dice.choice(pool["any" if dice.random() < 0.1 else kind])

        for _ in range(count):
            title, function, positional, keywords = dice.choices(functions, weights)[0]
            given = [argument(kind) for kind in positional]
            options = {
                k: argument(kind) for k, kind in keywords.items() if dice.random() < 0.3
            }
            if title == "check" and not isinstance(options.get("n"), int):
                options["max_evaluations"] = 20_000
            if title == "explore" and "max_evaluations" not in options:
                options["max_evaluations"] = 1000
            with (
                tally.guarded(title, PushforwardError, TypeError, seconds=SECONDS),
                warnings.catch_warnings(),
                contextlib.redirect_stdout(io.StringIO()),
            ):
                warnings.simplefilter("ignore")
                try:
                    function(*given, **options)
                except (PushforwardError, TypeError):
                    pass
                except Exception as error:
                    told = ", ".join(map(_short, [*given, *options.items()]))
                    raise RuntimeError(
                        f"{title}({told}): {type(error).__name__}: {error}"
                    ) from error
    return tally


def _short(thing: Any) -> str:
    return shown(thing)[:40]
