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

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

import pushforward as pf
from pushforward.diagnostics import Floor, Score, ksd, mode_weights
from pushforward.experiments import toy2d_settings as settings
from pushforward.experiments.choices import choose_groups
from pushforward.experiments.compiling import compiling
from pushforward.experiments.results import Results, about, key_for, prepare, rounded
from pushforward.experiments.toy2d_runs import (
    curve_of,
    draw_seconds,
    protocol,
    run_classic,
    still_falling,
)
from pushforward.experiments.toy2d_settings import Classic, Group, Scale

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
        self.floors: dict[tuple, Floor] = {}

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

    def floor(self, target: str, n: int, *statistics: Any) -> Floor:
        """What exact draws score, measured once for a target and a size."""
        name = (target, n, statistics)
        if name not in self.floors:
            self.floors[name] = Floor(
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
                scores = floor.judge(
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

        def watch(step: int, sampler: pf.Sampler, target: pf.AbstractTarget):
            # Fresh draws at every evaluation.
            fresh = jax.random.fold_in(watch_key, step)
            found = protocol(fresh, sampler, target, n, repeats)
            # A sampler that has run away has no spread.
            with np.errstate(invalid="ignore"):
                spread = found.std(ddof=1)
            return {"made": step, "ksd": found.mean(), "ksd_sd": spread}

        repeated = [t for t in targets for _ in range(group.seeds)]
        steps = method.resolve(targets[0], jax.default_backend()).steps
        with compiling() as compiled:
            fits = pf.fit_many(
                keys,
                repeated if len(targets) > 1 else targets[0],
                method,
                watch=watch,
                watch_every=max(steps // self.scale.evaluations, 1),
                progress=False,
            )
        if any(fit.interrupted for fit in fits):
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
            "status": fits[0].status,
        }
        if group.seeds > 1:
            # A figure's cell: only its curves are shown.
            cell["statuses"] = [fit.status for fit in fits]
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
        draw = fit.sampler.sample_flat
        comparisons = len(settings.TARGETS)
        scores: dict[str, Score] = {}
        sizes = {
            "ksd_v": small,
            "sliced_w2": self.scale.w2_draws,
            "ksd_u": self.scale.u_draws,
        }
        for statistic, size in sizes.items():
            floor = self.floor(name, size, statistic)
            scores[statistic] = floor.judge(
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

    def _scored(self, record, scores: dict[str, Score], sizes: dict[str, int]):
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
            score: Score | None = None,
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
                    "at_floor": score.at_floor,
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


def _plain_score(found: np.ndarray, exact: np.ndarray) -> Score:
    """A score that is not judged: its bound is a number no mean is below."""
    with np.errstate(invalid="ignore"):
        spread = float(found.std(ddof=1)) if len(found) > 1 else 0.0
    return Score(
        mean=float(found.mean()),
        sd=spread,
        sets=len(found),
        exact=float(exact.mean()),
        exact_sd=float(exact.std(ddof=1)),
        bound=float("nan"),
    )
