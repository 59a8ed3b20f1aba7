"""The paper's first experiment: every sampler on six densities in the plane.

A *cell* is one sampler in one setting on one target. Neural samplers train on all six
targets in one program (`fit_many`), classic ones run 20 times 500 chains. Every cell is
scored by the paper's protocol and by the last iterate beside exact draws.
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import pushforward as pf
from pushforward import mcmc
from pushforward.diagnostics import (
    BaselineComparison,
    ExactBaseline,
    ksd,
    mode_weights,
)
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
from reproduction.toy2d import settings
from reproduction.toy2d.settings import Classic, Group, Scale

NAME = "toy2d"
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
        out: the directory of `toy2d.json`.
        scale: `smoke`, `cpu` or `full`.
        only: names of methods to run (`dft`), or of one setting (`dft|paper`); none
            means all.
        merge: result files whose cells to adopt before running.
        seed: random seed.
        remark: kept with every cell that is made, and shown on the page.
        say: told what happens.
    """
    chosen = settings.scale(scale)
    todo = choose_groups(only, settings.groups(chosen))
    results = prepare(out, NAME, scale, seed, merge, say, remark=remark)
    bench = Bench(chosen, jax.random.key(seed), seed, results)
    for i, group in enumerate(todo, start=1):
        missing = [t for t in group.targets if group.cell(t) not in results.cells]
        if not missing:
            continue
        start = time.perf_counter()
        bench.run(dataclasses.replace(group, targets=tuple(missing)))
        say(
            f"[{i}/{len(todo)}] {group.label} on {', '.join(missing)}: "
            f"{time.perf_counter() - start:.0f} s"
        )
    return results


class Bench:
    """Runs groups of cells and scores them."""

    def __init__(self, scale: Scale, key: PRNGKeyArray, seed: int, results: Results):
        self.scale, self.key, self.seed, self.results = scale, key, seed, results
        self.floors: dict[tuple, ExactBaseline] = {}

    def _key(self, *parts: str) -> PRNGKeyArray:
        return key_for(self.key, *parts)

    def run(self, group: Group) -> None:
        """Runs a group and keeps its cells."""
        if isinstance(group.what, Classic):
            cells = self._classic(group, group.what)
        else:
            cells = self._neural(group, group.what)
        for target, cell in cells:
            self.results.add(group.cell(target), cell)

    def floor(self, target: str, n: int, *statistics: Any) -> ExactBaseline:
        """What exact draws score, measured once for a target and a size."""
        name = (target, n, statistics)
        if name not in self.floors:
            self.floors[name] = ExactBaseline(
                self._key("exact", target, str(n)),
                pf.targets.get(settings.truth(target)),
                n,
                sets=self.scale.exact_sets,
                statistics=statistics,
            )
        return self.floors[name]

    def _classic(self, group: Group, what: Classic) -> Iterator[tuple[str, dict]]:
        n, repeats = self.scale.draws, self.scale.repeats
        for name in group.targets:
            target = pf.targets.get(name)
            start_key, run_key = jax.random.split(self._key(group.method, name))
            starts = jax.random.normal(start_key, (repeats, n, target.dim))
            begun = time.perf_counter()
            sets, evaluations = run_classic(run_key, target, starts, what)
            jax.block_until_ready(sets)
            seconds = time.perf_counter() - begun
            for _ in range(2):  # the first time it is compiled
                begun = time.perf_counter()
                alone, _ = run_classic(run_key, target, starts[:1], what)
                jax.block_until_ready(alone)
                one = time.perf_counter() - begun
            floor = self.floor(name, n, "ksd_v", "sliced_w2")
            if name == settings.truth(name):
                drawn = iter(sets)
                scores = floor.compare(
                    self._key("judge", name),
                    lambda key, n, drawn=drawn: next(drawn),
                    sets=repeats,
                    comparisons=len(settings.TARGETS),
                )
            else:
                # A score that belongs to no density: KSD is all that can be said.
                found = jax.vmap(lambda x, t=target: ksd(x, jax.vmap(t.score)(x)).v)(
                    sets
                )
                exact = floor.exact["ksd_v"]
                scores = {"ksd_v": _plain_score(np.asarray(found), exact)}
            record = self._records(group, name, steps=what.steps, seconds=seconds)
            protocol = scores["ksd_v"]
            records = [
                record("ksd_protocol", protocol.mean, n=n, score=protocol),
                record("evaluations", evaluations / repeats, n=n),
                record("draw_seconds", one, n=n),
                *self._scored(record, scores, {"ksd_v": n, "sliced_w2": n}),
            ]
            yield name, {"records": records, **_cloud(name, sets[0])}

    def _neural(self, group: Group, method: Any) -> Iterator[tuple[str, dict]]:
        targets = [pf.targets.get(name) for name in group.targets]
        n, repeats = self.scale.draws, self.scale.repeats
        key = self._key("train", group.method, group.setting)
        keys = jax.random.split(key, len(targets) * group.seeds)
        watch_key = self._key("watch", group.method, group.setting)

        def evaluate(event: pf.Event) -> dict[str, Any]:
            # Fresh draws at every evaluation.
            fresh = jax.random.fold_in(watch_key, event.step)
            found = protocol(fresh, event.sampler, event.target, n, repeats)
            # A sampler that has run away has no spread.
            with np.errstate(invalid="ignore"):
                spread = found.std(ddof=1)
            return {"made": event.step, "ksd": found.mean(), "ksd_sd": spread}

        repeated = [t for t in targets for _ in range(group.seeds)]
        steps = method.steps
        with compiling() as compiled:
            fits = pf.fit_many(
                keys,
                repeated if len(targets) > 1 else targets[0],
                method,
                callback=evaluate,
                callback_every=max(steps // self.scale.evaluations, 1),
                progress=False,
            )
        if any(fit.status is pf.Status.INTERRUPTED for fit in fits):
            # What is half trained is no result.
            raise KeyboardInterrupt
        for i, name in enumerate(group.targets):
            own = fits[i * group.seeds : (i + 1) * group.seeds]
            seconds = {"seconds": own[0].seconds, "compile_seconds": compiled.seconds}
            made = own[0].history.steps
            record = self._records(
                group, name, steps=made, together=len(fits), **seconds
            )
            yield name, self._trained(group, name, own, record)

    def _trained(self, group: Group, name: str, fits: list[pf.Fit], record) -> dict:
        curves = [[(s, k, d) for s, k, d in curve_of(fit)] for fit in fits]
        cell: dict[str, Any] = {
            "curve": [
                [[s, rounded(k, 4), rounded(d, 3)] for s, k, d in curve]
                for curve in curves
            ],
            "training": [ending(fit) for fit in fits],
        }
        if group.seeds > 1:
            # A figure's cell: only its curves are shown.
            last = np.array([curve[-1][1] for curve in curves])
            floor = self.floor(name, self.scale.draws, "ksd_v", "sliced_w2")
            score = _plain_score(last, floor.exact["ksd_v"])
            cell["records"] = [
                record("ksd_last", score.mean, n=self.scale.draws, score=score)
            ]
            return cell
        fit, curve = fits[0], curves[0]
        lowest = min(curve, key=lambda row: row[1] if np.isfinite(row[1]) else np.inf)
        small = self.scale.draws
        draw = fit.sampler.unconstrained().sample
        comparisons = len(settings.TARGETS)
        scores: dict[str, BaselineComparison] = {}
        sizes = {
            "ksd_v": small,
            "sliced_w2": self.scale.w2_draws,
            "ksd_u": self.scale.u_draws,
        }
        for statistic, size in sizes.items():
            floor = self.floor(name, size, statistic)
            scores[statistic] = floor.compare(
                self._key("judge", name, statistic),
                draw,
                sets=self.scale.sets,
                comparisons=comparisons,
            )[statistic]
        protocol_score = dataclasses.replace(
            scores["ksd_v"], mean=lowest[1], sd=lowest[2], sets=self.scale.repeats
        )
        cell["records"] = [
            record(
                "ksd_protocol",
                lowest[1],
                n=small,
                score=protocol_score,
                at_step=lowest[0],
                still_falling=still_falling(curve),
            ),
            *self._scored(record, scores, sizes),
            record("evaluations", fit.evaluations),
            record("draw_seconds", draw_seconds(fit.sampler, small), n=small),
        ]
        if name == "mog2":
            many = draw(self._key("weights"), self.scale.weight_draws)
            modes: Any = getattr(pf.targets.get(name), "modes", None)
            first = float(np.asarray(mode_weights(many, modes))[0])
            cell["records"].append(
                record("mode_weight", first, n=self.scale.weight_draws, exact=0.5)
            )
        return {**cell, **_cloud(name, draw(self._key("cloud"), 500))}

    def _scored(
        self, record, scores: dict[str, BaselineComparison], sizes: dict[str, int]
    ):
        for statistic, score in scores.items():
            yield record(statistic, score.mean, n=sizes[statistic], score=score)

    def _records(self, group: Group, target: str, **common: Any):
        """A function that makes this cell's records."""
        seconds = {k: rounded(common.pop(k)) for k in list(common) if "seconds" in k}

        def record(
            metric: str,
            value: float,
            *,
            n: int | None = None,
            score: BaselineComparison | None = None,
            **more: Any,
        ) -> dict[str, Any]:
            made = {
                "experiment": NAME,
                "target": target,
                "method": group.method,
                "setting": group.setting,
                "metric": metric,
                "value": rounded(value),
                "n": n,
                "seed": self.seed,
                **common,
                **seconds,
                **more,
                **about(),
            }
            if score is not None:
                made |= {
                    "sd": rounded(score.sd),
                    "repeats": score.sets,
                    "exact": rounded(score.exact),
                    "exact_sd": rounded(score.exact_sd),
                    "bound": rounded(score.bound),
                    "at_floor": score.indistinguishable,
                }
            if metric == "ksd_protocol":
                paper = settings.paper(group.method, group.setting, target)
                if paper is not None:
                    made |= {"paper": paper[0], "paper_sd": paper[1]}
            return made

        return record


def _cloud(target: str, draws: Any) -> dict[str, Any]:
    """The draws that Figure 1 shows."""
    if target not in settings.PICTURED:
        return {}
    rows = np.asarray(draws)[:500]
    return {"cloud": [[rounded(v, 4) for v in row] for row in rows]}


def _plain_score(found: np.ndarray, exact: np.ndarray) -> BaselineComparison:
    """A score that is not judged: its bound is a number no mean is below."""
    with np.errstate(invalid="ignore"):
        spread = float(found.std(ddof=1)) if len(found) > 1 else 0.0
    return BaselineComparison(
        mean=float(found.mean()),
        sd=spread,
        sets=len(found),
        exact=float(exact.mean()),
        exact_sd=float(exact.std(ddof=1)),
        bound=float("nan"),
    )


def run_classic(
    key: PRNGKeyArray,
    target: pf.AbstractTarget,
    starts: Float[Array, "r n d"],
    what: Classic,
) -> tuple[Float[Array, "r n d"], int]:
    """Every repeat of a classic sampler, and how many scores all of them took."""
    r, n, d = starts.shape
    size = settings.STEP_SIZE
    if what.kind == "svgd":
        runs = [
            mcmc.svgd(jax.random.fold_in(key, i), target, x, what.steps, step_size=size)
            for i, x in enumerate(starts)
        ]
        return jnp.stack([run.positions for run in runs]), r * runs[0].evaluations
    # Chains that do not see each other: all repeats at once.
    flat = starts.reshape(r * n, d)
    if what.kind == "ld":
        run = mcmc.langevin(key, target, flat, what.steps, step_size=size)
    else:
        run = mcmc.hmc(
            key,
            target,
            flat,
            what.steps,
            step_size=size,
            leapfrogs=settings.LEAPFROGS,
        )
    return run.positions.reshape(starts.shape), run.evaluations


def protocol(
    key: PRNGKeyArray,
    sampler: pf.Sampler,
    target: pf.AbstractTarget,
    n: int,
    repeats: int,
) -> Float[np.ndarray, " repeats"]:
    """The paper's evaluation: the KSD of `n` draws, `repeats` times."""
    sets = _draw_sets(sampler, jax.random.split(key, repeats), n)
    return np.asarray(_ksds(sets, _score_sets(target, sets)))


# Three programs, not one: they are shared between targets, networks or both.
@eqx.filter_jit
def _draw_sets(sampler: pf.Sampler, keys: Any, n: int):
    draw = sampler.unconstrained().sample
    return jax.lax.map(lambda key: draw(key, n), keys)


@eqx.filter_jit
def _score_sets(target: pf.AbstractTarget, sets: Float[Array, "r n d"]):
    return jax.vmap(jax.vmap(target.score))(sets)


@eqx.filter_jit
def _ksds(sets: Float[Array, "r n d"], scores: Float[Array, "r n d"]):
    return jax.lax.map(lambda pair: ksd(*pair).v, (sets, scores))


def draw_seconds(sampler: pf.Sampler, n: int, repeats: int = 20) -> float:
    """The median time of `n` draws in one pass, compiled beforehand."""
    spent = []
    for i in range(repeats + 1):
        key = jax.random.split(jax.random.key(i), 1)
        start = time.perf_counter()
        jax.block_until_ready(_draw_sets(sampler, key, n))
        spent.append(time.perf_counter() - start)
    return float(np.median(spent[1:]))


def still_falling(curve: list[tuple[int, float, float]]) -> bool:
    """Whether the last tenth of the evaluations lies clearly below the tenth before."""
    tenth = max(len(curve) // 10, 2)
    values = np.array([row[1] for row in curve])
    if len(values) < 2 * tenth or not np.isfinite(values[-2 * tenth :]).all():
        return False
    before, after = values[-2 * tenth : -tenth], values[-tenth:]
    error = np.sqrt((before.var(ddof=1) + after.var(ddof=1)) / tenth)
    return bool(before.mean() - after.mean() > 3 * error)


def curve_of(fit: pf.Fit) -> list[tuple[int, float, float]]:
    """Step, mean KSD and its spread at every evaluation during training."""
    rows = [row for row in fit.history.rows if "ksd" in row]
    return [(int(row["made"]), row["ksd"], row["ksd_sd"]) for row in rows]
