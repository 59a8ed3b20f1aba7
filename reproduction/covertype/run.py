"""The paper's second experiment: Bayesian logistic regression on Covertype.

A *cell* is one sampler in one setting, with all its repeats. The first is the
reference, NUTS on all data, whose draws lie beside the result file; every other cell is
judged by it, and by how well 100 of its draws predict.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import pushforward as pf
from pushforward import mcmc
from pushforward.errors import FileError
from pushforward.methods import AbstractMethod
from pushforward.networks import AffineMap
from reproduction.common.cost import compiling
from reproduction.common.results import (
    Results,
    about,
    ending,
    key_for,
    prepare,
    rounded,
)
from reproduction.common.settings import choose_groups
from reproduction.covertype import data, settings
from reproduction.covertype.data import Classification
from reproduction.covertype.posterior import (
    Affine,
    posterior,
    predict,
    prior_draws,
)
from reproduction.covertype.reference import (
    FILE,
    MAX_RHAT,
    MIN_ESS,
    Reference,
    run_nuts,
)
from reproduction.covertype.settings import (
    IN_PASSING,
    PREDICTING,
    Classic,
    Group,
    Scale,
)

NAME = "covertype"
Say = Callable[[str], None]


def reproduce(
    out: Path,
    scale: str = "cpu",
    *,
    only: Iterable[str] = (),
    merge: Iterable[Path] = (),
    seed: int = 0,
    remark: str = "",
    say: Say = print,
) -> Results:
    """Runs what is missing of the experiment; finished cells are not run again.

    Args:
        out: the directory of `covertype.json` and of the reference's draws.
        scale: `smoke`, `cpu` or `full`.
        only: names of methods to run (`dft`), or of one setting (`dft|paper`); none
            means all. The reference is always run.
        merge: result files whose cells to adopt before running.
        seed: random seed, also of the split of the data.
        remark: kept with every cell that is made, and shown on the page.
        say: told what happens.
    """
    chosen = settings.scale(scale)
    groups = settings.groups(chosen)
    asked = {group.name for group in choose_groups(only, groups)}
    asked.add(settings.REFERENCE.name)
    rows = data.covertype(
        rows=chosen.rows, seed=seed, miniature_rows=chosen.miniature_rows
    )
    same = functools.partial(_require_same, rows=rows)
    results = prepare(out, NAME, scale, seed, merge, say, same, remark)
    todo = [g for g in groups if g.name in asked and g.name not in results.cells]
    if not todo:
        return results
    bench = Bench(chosen, jax.random.key(seed), seed, rows, results)
    for i, group in enumerate(todo, start=1):
        start = time.perf_counter()
        results.add(group.name, bench.run(group))
        spent = time.perf_counter() - start
        say(f"[{i}/{len(todo)}] {group.label}: {spent:.0f} s")
    return results


@dataclasses.dataclass(frozen=True)
class Judge:
    """Test rows and the reference: what draws are held against."""

    data: Classification
    reference: Reference
    scale: Scale

    def predictions(self, draws: Float[Any, "n d"]) -> dict[str, float]:
        """Accuracy and mean log likelihood on the test rows."""
        dtype = jnp.result_type(float)
        rows = jnp.asarray(self.data.test_x, dtype)
        labels = jnp.asarray(self.data.test_y, dtype)
        found = predict(jnp.asarray(draws, dtype), rows, labels)
        return {
            "accuracy": float(found.accuracy),
            "log_likelihood": float(found.log_likelihood),
        }

    def points(self, key: PRNGKeyArray, x: Float[Array, "n d"]) -> dict[str, float]:
        """All that is asked of a fixed set of points."""
        return {
            **self.predictions(x[:PREDICTING]),
            **self.reference.errors(x),
            "sliced_w2": self.reference.distance(key, x),
        }

    def sampler(self, key: PRNGKeyArray, sampler: pf.Sampler) -> dict[str, float]:
        """All that is asked of a sampler, each on fresh draws."""
        few, many, some, directions = jax.random.split(key, 4)
        draw = sampler.unconstrained().sample
        return {
            **self.predictions(draw(few, PREDICTING)),
            **self.reference.errors(draw(many, self.scale.moment_draws)),
            "sliced_w2": self.reference.distance(
                directions, draw(some, self.scale.w2_draws)
            ),
        }

    def in_passing(self, key: PRNGKeyArray, sampler: pf.Sampler) -> dict[str, float]:
        """What is looked at during training: accuracy, and the error of the means."""
        few, many = jax.random.split(key)
        errors = self.reference.errors(_draw(sampler, many, IN_PASSING))
        found = self.predictions(_draw(sampler, few, PREDICTING))
        return {"accuracy": found["accuracy"], "mean_error": errors["mean_error"]}


class Bench:
    """Runs groups and judges them."""

    def __init__(
        self,
        scale: Scale,
        key: PRNGKeyArray,
        seed: int,
        rows: data.Classification,
        results: Results,
    ):
        self.scale, self.key, self.seed, self.rows = scale, key, seed, rows
        self.results = results
        self.target = posterior(rows)

    def _key(self, *parts: str) -> PRNGKeyArray:
        return key_for(self.key, *parts)

    def run(self, group: Group) -> dict[str, Any]:
        """Runs a group; returns its cell."""
        if group.method == "nuts":
            return self._reference(group)
        if group.method == "laplace":
            return self._laplace(group)
        if isinstance(group.what, Classic):
            return self._classic(group, group.what)
        assert group.what is not None
        return self._neural(group, group.what)

    def _look(self) -> tuple[mcmc.Initialisation, float]:
        """The Laplace fit, and the seconds it took without compilation."""
        begun = time.perf_counter()
        with compiling() as compiled:
            look = _laplace(self._key("laplace"), self.target)
            jax.block_until_ready(look.preconditioner)
        return look, time.perf_counter() - begun - compiled.seconds

    def _reference(self, group: Group) -> dict[str, Any]:
        look, fitted = self._look()
        whitening = Affine(look.preconditioner.centre, look.preconditioner.factor)
        sizes = (self.scale.w2_draws, settings.PREDICTING)
        run = run_nuts(self._key("nuts"), self.rows, whitening, self.scale, sizes)
        digest = run.reference.save(self.results.path.parent / FILE)
        judge = Judge(self.rows, run.reference, self.scale)
        n, sets = settings.PREDICTING, self.scale.repeats
        found = [
            judge.predictions(run.others[i * n : (i + 1) * n])
            for i in range(min(sets, len(run.others) // n))
        ]
        measured = {k: [f[k] for f in found] for k in found[0]}
        measured |= {k: [v] for k, v in run.errors.items()}
        measured["sliced_w2"] = run.floor[self.scale.w2_draws]
        record = self._records(
            group,
            chains=self.scale.chains,
            warmup=self.scale.warmup,
            draws=self.scale.draws,
            seconds=rounded(run.seconds["seconds"]),
            warmup_seconds=rounded(fitted + run.seconds["warmup_seconds"]),
        )
        records = [record(metric, values) for metric, values in measured.items()]
        few = run.floor[settings.PREDICTING]
        records += [
            record("sliced_w2_few", few, n=settings.PREDICTING),
            record("rhat", [run.rhat]),
            record("ess", [run.ess]),
            record("divergences", [run.divergences]),
            record("row_evaluations", [run.leapfrogs * self.target.num_terms]),
        ]
        passed = run.rhat < MAX_RHAT and run.ess >= MIN_ESS
        return {
            "records": records,
            "sha256": digest,
            **_about(self.rows),
            "good": passed,
        }

    @property
    def _nuts(self) -> dict[str, Any]:
        return self.results.cells[settings.REFERENCE.name]

    def _judge(self) -> Judge:
        path = self.results.path.parent / FILE
        reference = Reference.load(path, self._nuts["sha256"])
        return Judge(self.rows, reference, self.scale)

    def _laplace(self, group: Group) -> dict[str, Any]:
        look, seconds = self._look()
        sampler = _gaussian(look, self.target)
        made = [sampler] * group.repeats
        rows = int(look.evaluations) * self.target.num_terms
        return {"records": self._judged(group, made, [rows], seconds, 1)}

    def _classic(self, group: Group, what: Classic) -> dict[str, Any]:
        judge = self._judge()
        key = self._key("run", group.method)
        begun = time.perf_counter()
        with compiling() as compiled:
            sets, rows = run_classic(key, self.rows, what, group.repeats)
            jax.block_until_ready(sets)
        seconds = time.perf_counter() - begun - compiled.seconds
        found = [
            judge.points(jax.random.fold_in(self._key("judge"), i), x)
            for i, x in enumerate(sets)
        ]
        record = self._records(
            group, seconds=rounded(seconds), together=group.repeats, few=True
        )
        records = [record(k, [f[k] for f in found]) for k in found[0]]
        records.append(record("row_evaluations", [rows]))
        # Its points cannot be added to without running it anew.
        per_point = 1e6 * seconds / group.repeats / what.points
        records.append(record("draw_microseconds", [per_point]))
        return {"records": records}

    def _neural(self, group: Group, method: AbstractMethod) -> dict[str, Any]:
        judge, target = self._judge(), self.target
        method = method.resolve(target)
        steps = method.steps
        watch_key = self._key("watch", group.method, group.setting)

        looking = 0.0

        def evaluate(event: pf.Event) -> dict[str, Any]:
            nonlocal looking
            begun, before = time.perf_counter(), compiled.seconds
            # Fresh draws at every evaluation.
            found = judge.in_passing(
                jax.random.fold_in(watch_key, event.step), event.sampler
            )
            # All compilation is subtracted below: it must not be counted twice.
            looking += time.perf_counter() - begun - (compiled.seconds - before)
            return {"made": event.step, **found}

        watched = group.method in settings.WATCHED
        keys = jax.random.split(
            self._key("train", group.method, group.setting), group.repeats
        )
        begun = time.perf_counter()
        with compiling() as compiled:
            fits = pf.fit_many(
                keys,
                target,
                method,
                progress=False,
                callback=evaluate if watched else None,
                callback_every=max(steps // self.scale.evaluations, 1),
            )
        spent = time.perf_counter() - begun
        if any(fit.status is pf.Status.INTERRUPTED for fit in fits):
            # What is half trained is no result.
            raise KeyboardInterrupt
        rows = [row_evaluations(f.evaluations, method, target) for f in fits]
        seconds = spent - compiled.seconds - looking
        samplers = [fit.sampler for fit in fits]
        cell: dict[str, Any] = {
            "records": self._judged(
                group,
                samplers,
                rows,
                seconds,
                len(fits),
                steps=fits[0].history.steps,
                compile_seconds=rounded(compiled.seconds),
            ),
            "training": [ending(fit) for fit in fits],
        }
        decisions = ("dft_tried", "dft_chosen")
        chosen = [r[k] for r in fits[0].history.rows for k in decisions if k in r]
        # NaN where the choice was skipped, its numbers not being finite.
        if chosen and np.isfinite(chosen[-1]):
            cell["dft_chosen"] = bool(chosen[-1])
        if watched:
            cell["curve"] = _curve(fits)
        return cell

    def _judged(
        self,
        group: Group,
        samplers: list[pf.Sampler],
        rows: list[int],
        seconds: float,
        together: int,
        **more: Any,
    ) -> list[dict[str, Any]]:
        """The records of samplers that can be drawn from at will."""
        judge = self._judge()
        found = [
            judge.sampler(jax.random.fold_in(self._key("judge", group.name), i), s)
            for i, s in enumerate(samplers)
        ]
        seconds = max(seconds, 0.0)
        record = self._records(
            group, seconds=rounded(seconds), together=together, **more
        )
        records = [record(k, [f[k] for f in found]) for k in found[0]]
        micro = draw_microseconds(samplers[0])
        nuts = {r["metric"]: r for r in self._nuts["records"]}
        ess = nuts["ess"]
        paid = break_even(
            seconds / together,
            micro,
            ess["warmup_seconds"],
            ess["seconds"] / max(ess["value"], 1.0),
        )
        records += [
            record("row_evaluations", rows),
            record("draw_microseconds", [micro]),
        ]
        if paid is not None:
            records.append(record("break_even", [paid]))
        return records

    def _records(self, group: Group, **common: Any):
        """A function that makes this cell's records."""
        few = common.pop("few", False)

        def record(
            metric: str, values: Sequence[float | int], *, n: int | None = None
        ) -> dict[str, Any]:
            spread = np.std(values, ddof=1) if len(values) > 1 else 0.0
            made = {
                "experiment": NAME,
                "target": NAME,
                "method": group.method,
                "setting": group.setting,
                "metric": metric,
                "value": rounded(float(np.mean(values))),
                "sd": rounded(float(spread)),
                "repeats": len(values),
                "n": n if n is not None else self._size(metric, few),
                "seed": self.seed,
                **common,
                **about(),
            }
            if metric == "sliced_w2" and group.method != "nuts":
                name = "sliced_w2_few" if few else "sliced_w2"
                nuts = {r["metric"]: r for r in self._nuts["records"]}
                made["exact"] = nuts[name]["value"]
                made["exact_sd"] = nuts[name]["sd"]
            theirs = settings.paper(group.method)
            if metric == "accuracy" and theirs is not None:
                made |= {"paper": theirs[0], "paper_sd": theirs[1]}
            return made

        return record

    def _size(self, metric: str, few: bool) -> int | None:
        if metric in ("accuracy", "log_likelihood"):
            return settings.PREDICTING
        if few:
            return settings.PREDICTING
        sizes = {"sliced_w2": self.scale.w2_draws}
        sizes |= dict.fromkeys(
            ("mean_error", "sd_low", "sd_high"), self.scale.moment_draws
        )
        return sizes.get(metric)


def _about(rows: data.Classification) -> dict[str, Any]:
    """What a reference cell says of its data."""
    return {"source": rows.source, "rows": [len(rows.train_y), len(rows.test_y)]}


def _require_same(found: Results, rows: data.Classification) -> None:
    """Refuses results whose reference was run on other data than these."""
    cell = found.cells.get(settings.REFERENCE.name)
    if cell is None:
        return
    for name, now in _about(rows).items():
        if cell.get(name) != now:
            raise FileError(
                f"{found.path} holds results on other data ({name}: {cell.get(name)}, "
                f"and here {now}); put that data back, or choose another file."
            )


@eqx.filter_jit
def _laplace(key: PRNGKeyArray, target: pf.AbstractTarget) -> mcmc.Initialisation:
    return mcmc.initialise_by_laplace(key, target, particles=1)


def _gaussian(look: mcmc.Initialisation, target: pf.AbstractTarget) -> pf.Sampler:
    """The whitening alone: one Gaussian, as a sampler."""
    return pf.Sampler(AffineMap(target.dim), look.preconditioner, target.structure)


def _curve(fits: list[pf.Fit]) -> list[list[float | int | None]]:
    """Step, accuracy and its sd, error of the means and its sd, over the repeats."""
    rows = [[r for r in fit.history.rows if "mean_error" in r] for fit in fits]
    curve = []
    for moment in zip(*rows, strict=False):
        line: list[float | int | None] = [int(moment[0]["made"])]
        for name in ("accuracy", "mean_error"):
            values = np.array([row[name] for row in moment], float)
            spread = values.std(ddof=1) if len(values) > 1 else 0.0
            line += [rounded(values.mean(), 5), rounded(float(spread), 3)]
        curve.append(line)
    return curve


@eqx.filter_jit
def _draw(sampler: pf.Sampler, key: PRNGKeyArray, n: int):
    return sampler.unconstrained().sample(key, n)


def draw_microseconds(sampler: pf.Sampler, n: int = 10_000, repeats: int = 20) -> float:
    """The median time of one of `n` draws in one pass, compiled beforehand."""
    spent = []
    for i in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(_draw(sampler, jax.random.key(i), n))
        spent.append(time.perf_counter() - start)
    return 1e6 * float(np.median(spent[1:])) / n


def run_classic(
    key: PRNGKeyArray, data: Classification, what: Classic, repeats: int
) -> tuple[Float[Array, "r n d"], int]:
    """The last points of every repeat, and the rows that one repeat looked at."""
    target = posterior(data, batch_size=what.batch_size)
    steps = max(round(what.epochs * target.num_terms / target.batch_size), what.points)
    start_key, run_key = jax.random.split(key)
    if what.kind == "sgld":
        starts = prior_draws(start_key, repeats, target.dim)

        def size(t: Float[Array, ""]) -> Float[Array, ""]:
            # The paper's rate is taken to belong to the sum over a minibatch: on the
            # sum over all rows the steps would be of the order of 10^4, on the mean
            # three epochs would lead nowhere.
            return 0.1 * (t + 1) ** -0.55 * target.batch_size / target.num_terms

        run = mcmc.sgld(
            run_key, target, starts, steps, step_size=size, keep=what.points
        )
        return run.kept, steps * target.batch_size
    keys = jax.random.split(run_key, repeats)
    starts = prior_draws(start_key, repeats * what.points, target.dim)

    def one(key, x):
        return mcmc.svgd(key, target, x, steps, step_size=0.05).positions

    ends = jax.vmap(one)(keys, starts.reshape(repeats, what.points, target.dim))
    return ends, what.points * steps * target.batch_size


def row_evaluations(
    evaluations: int,
    method: AbstractMethod,
    target: pf.MinibatchTarget,
) -> int:
    """How often a fit with so many evaluations of the target looked at a row of data.

    The initialisation sees all rows; a step sees a minibatch for every
    point, twice with the control variate.
    """
    method = method.resolve(target)
    looks = method.steps * method.evaluations * method.minibatches
    seen = looks * target.batch_size * (1 + method.training.whiten)
    return seen + max(evaluations - looks, 0) * target.num_terms


def break_even(
    training: float, microseconds: float, warmup: float, per_effective_draw: float
) -> float | None:
    """After how many draws training has paid for itself against NUTS.

    With `T` seconds of training, `t` a draw, `W` of NUTS' warm-up and `s` an effective
    draw of its: the n at which `T + t n = W + s n`; None if there is no such n.
    """
    gain = per_effective_draw - 1e-6 * microseconds
    if gain <= 0:
        return None
    return max(training - warmup, 0.0) / gain
