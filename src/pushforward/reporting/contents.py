"""What the page of a fit says, as plain names and numbers: the page and its JSON."""

import math
import platform
import shlex
import sys
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float, PRNGKeyArray
from scipy import stats

from pushforward import _programs
from pushforward._version import __version__
from pushforward.diagnostics.evaluation import log_densities
from pushforward.diagnostics.reference import Reference
from pushforward.diagnostics.results import Outcome
from pushforward.diagnostics.stationarity import (
    mala_evaluations,
    tune_mala,
    tuning_evaluations,
)
from pushforward.diagnostics.tests.base import Evidence
from pushforward.diagnostics.verdict import FALSE_ALARMS, Verdict, judge
from pushforward.diagnostics.weights import weigh
from pushforward.draws import column_names
from pushforward.reporting import marginals
from pushforward.reporting.cost import MAX_TERMS, Purse, beside_nuts, speed
from pushforward.reporting.course import describe_training
from pushforward.sampler import Sampler
from pushforward.targets.base import AbstractTarget
from pushforward.training.history import History

# The version of what stands in the JSON file.
FORMAT = 1
# What a page has room for.
MAX_ROWS, MAX_CURVES, MAX_PAIRS, MAX_MODES = 2000, 6, 4, 24
_DOTS, _BINS, _TAIL = 500, 40, 80
_WEIGHED = 10_000
# The quantiles in the table of parameters.
_QUANTILES = (0.05, 0.5, 0.95)

Contents = dict[str, Any]


def gather(
    key: PRNGKeyArray,
    target: AbstractTarget,
    sampler: Sampler,
    reference: Any,
    *,
    run: Contents,
    history: History | None,
    n: int,
    max_evaluations: int | float | None,
    title: str,
) -> Contents:
    """All that the page says.

    Args:
        key: Random key.
        target: What the sampler should follow.
        sampler: The sampler.
        reference: Reference draws, or None.
        run: What is known of the training.
        history: What was measured during training, where there was one.
        n: How many draws are looked at.
        max_evaluations: How many evaluations may be spent, on all of it.
        title: The title of the page.
    """
    keys = jax.random.split(key, 6)
    verdict, evidence = judge(keys[0], target, sampler, reference, n, max_evaluations)
    purse = Purse(max_evaluations, verdict.evaluations)
    omitted: list[str] = []
    contents: Contents = {
        "format": FORMAT,
        "title": title,
        "made": time.strftime("%Y-%m-%d %H:%M"),
        "target": {"dim": target.dim, "parameters": str(target.structure)},
        "verdict": verdict.to_dict(),
        "doubts": list(run.get("doubts") or ()),
        "outside": run.get("outside"),
    }
    if evidence is None:
        omitted.append("pictures of draws: there are too few draws to look at")
    else:
        contents |= _draws(evidence, omitted)
        contents["log_density"] = _log_density(keys[1], evidence, purse, omitted)
    contents["weights"] = _weights(keys[2], target, sampler, purse, omitted)
    contents["training"] = describe_training(run, history)
    # Of a target with a symmetry, one copy.
    seen = target if evidence is None else evidence.target
    contents["cost"] = {
        "fit_evaluations": run.get("evaluations"),
        "fit_seconds": run.get("seconds"),
        **speed(keys[3], sampler),
        "nuts": beside_nuts(keys[4], seen, evidence, run, purse, omitted),
        "check_evaluations": verdict.evaluations,
        "page_evaluations": purse.spent,
    }
    contents["omitted"] = omitted
    contents["untold"] = _untold(verdict, evidence, contents)
    contents["made_with"] = _made_with(run, key)
    return plain(contents)


def _draws(evidence: Evidence, omitted: list[str]) -> Contents:
    """The table of parameters, and the pictures that need only draws."""
    structure, sample = evidence.target.structure, evidence.sample
    names, ours = column_names(structure), _columns(structure, sample.draws)
    summary = {
        "mean": ours.mean(axis=0),
        "sd": ours.std(axis=0),
        **{
            f"{100 * level:.0f} %": np.quantile(ours, level, axis=0)
            for level in _QUANTILES
        },
    }
    if evidence.reference is None or evidence.far is None or evidence.near is None:
        omitted.append("errors, and pictures beside a reference: there is no reference")
        order = np.arange(len(names))
        shown = order[:MAX_PAIRS]
        pairs = {
            "names": [names[i] for i in shown],
            "draws": ours[:_DOTS][:, shown].tolist(),
            "reference": None,
        }
        return {"parameters": _table(names, summary, order, omitted), "pairs": pairs}
    near = _columns(structure, evidence.near)
    beside = _columns(structure, evidence.far.draws)
    errors, floor = (marginals.Errors.of(x, near) for x in (ours, beside))
    whole = _columns(structure, evidence.reference.draws)
    summary = {
        "error": errors.errors,
        "reference's own": floor.errors,
        **summary,
        "reference mean": whole.mean(axis=0),
        "reference sd": whole.std(axis=0),
    }
    order = np.argsort(-errors.errors, kind="stable")
    worst = np.argsort(-errors.distances, kind="stable")[:MAX_CURVES]
    shown = order[:MAX_PAIRS]
    if len(names) > MAX_CURVES:
        omitted.append(
            f"the distributions of {len(names) - MAX_CURVES:,} parameters that are "
            "nearer to the reference than those shown"
        )
    return {
        "parameters": _table(names, summary, order, omitted),
        "ecdf": {
            "band": marginals.band(len(ours), len(near), len(names)),
            "curves": [
                {
                    "name": names[i],
                    "draws": marginals.curve(ours[:, i], near[:, i]).tolist(),
                    "reference": marginals.curve(beside[:, i], near[:, i]).tolist(),
                }
                for i in worst
            ],
        },
        "modes": _modes(evidence, evidence.reference, omitted),
        "pairs": {
            "names": [names[i] for i in shown],
            "draws": ours[:_DOTS][:, shown].tolist(),
            "reference": whole[:_DOTS][:, shown].tolist(),
        },
    }


def _table(names, summary, order, omitted) -> Contents:
    if len(names) > MAX_ROWS:
        omitted.append(
            f"{len(names) - MAX_ROWS:,} parameters of {len(names):,} in the table"
        )
    rows = [
        [names[i], *(float(column[i]) for column in summary.values())]
        for i in order[:MAX_ROWS]
    ]
    return {"columns": ["parameter", *summary], "rows": rows, "count": len(names)}


def _columns(structure, flat: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n c"]:
    """Draws in the user's own parameters, a column for each number."""
    if structure.is_vector and structure.is_linear:
        return np.asarray(flat, np.float64)
    tree = _unflatten(structure, jnp.asarray(flat, float))
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


@_programs.compiled
def _unflatten(structure, flat: Float[Array, "n d"]) -> Any:
    return jax.vmap(structure.unflatten)(flat)


def _modes(evidence: Evidence, reference: Reference, omitted) -> Contents | None:
    """The share of each mode, with 95 % intervals; None where there is one mode."""
    centres = np.asarray(reference.modes.centres)
    if len(centres) < 2:
        return None
    counts = reference.modes.counts(evidence.sample.draws)
    expected = reference.modes.counts(reference.draws)
    worth = max(round(reference.ess), 1)
    expected = np.round(expected * worth / len(reference.draws)).astype(int)
    table = _columns(evidence.target.structure, centres)
    gaps = np.abs(counts / counts.sum() - expected / expected.sum())
    order = np.argsort(-gaps, kind="stable")
    if len(order) > MAX_MODES:
        omitted.append(
            f"{len(order) - MAX_MODES:,} of {len(order):,} modes, whose weights differ "
            "less than those shown"
        )
    rows = [
        {
            "centre": table[k][:4].tolist(),
            "draws": _share(counts[k], counts.sum()),
            "reference": _share(expected[k], expected.sum()),
        }
        for k in order[:MAX_MODES]
    ]
    return {"count": len(order), "rows": rows, "reference_worth": worth}


def _share(count: Any, total: Any) -> list[float]:
    """A share between the ends of its 95 % interval (Wilson's)."""
    ends = stats.binomtest(int(count), int(total)).proportion_ci(method="wilson")
    return [float(ends.low), float(count / total), float(ends.high)]


def _log_density(key, evidence: Evidence, purse: Purse, omitted) -> Contents | None:
    """Histograms of the log density of draws, of moved draws and of the reference."""
    target, sample = evidence.target, evidence.sample
    if sample.log_densities is None:
        omitted.append(f"log densities: {target.why_no_density()}")
        return None
    series = {"draws": sample.log_densities}
    if evidence.far is not None and evidence.far.log_densities is not None:
        series["reference"] = evidence.far.log_densities
    moved = _moved(key, evidence, purse, omitted)
    if moved is not None:
        values = log_densities(target, moved)
        series["moved"] = values[np.isfinite(values)]
    whole = np.concatenate(list(series.values()))
    # The lowest would squeeze all others into one bin: they are put into the first.
    low, high = np.quantile(whole, 0.002), whole.max()
    edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
    shares = {
        name: (np.histogram(np.clip(v, low, None), edges)[0] / max(len(v), 1)).tolist()
        for name, v in series.items()
    }
    means = {name: float(np.mean(v)) for name, v in series.items()}
    return {"edges": edges.tolist(), "shares": shares, "means": means}


def _moved(
    key, evidence: Evidence, purse: Purse, omitted
) -> Float[np.ndarray, "n d"] | None:
    """Draws after 20 steps of MALA, tuned on other points than these.

    A kernel that knew the draws would move even exact ones, and far where they are not
    many more than their coordinates.
    """
    target, draws, points = evidence.target, evidence.sample.draws, evidence.near
    what = "draws after MCMC"
    if target.num_terms > MAX_TERMS:
        omitted.append(f"{what}: each step is a sum over {target.num_terms:,} data")
        return None
    if points is None:
        points, draws = draws[::2], draws[1::2]
    if len(points) <= target.dim:
        omitted.append(f"{what}: {len(points):,} points do not scale its steps")
        return None
    if not purse.pays(
        tuning_evaluations() + mala_evaluations(len(draws)), what, omitted
    ):
        return None
    tune_key, key = jax.random.split(key)
    kernel = tune_mala(tune_key, target, points)
    # The program of the test of stationarity.
    moved = kernel.move(key, target, draws)
    return np.asarray(moved.positions, np.float64)[: len(draws)]


def _weights(key, target, sampler, purse: Purse, omitted) -> Contents | None:
    """Importance weights, where the densities of both are known."""
    what = "importance weights"
    if (reason := target.why_no_values()) is not None:
        omitted.append(f"{what}: {reason}")
        return None
    if not sampler.has_density:
        omitted.append(f"{what}: the sampler does not know its own density")
        return None
    if not purse.pays(_WEIGHED, what, omitted):
        return None
    try:
        found = weigh(key, target, sampler, _WEIGHED)
    except ValueError as error:
        omitted.append(f"{what}: {error}")
        return None
    weights = np.sort(found.weights)[::-1] * _WEIGHED
    ranks = np.unique(np.geomspace(1, _WEIGHED, _TAIL).astype(int))
    tail = [
        [math.log10(rank / _WEIGHED), math.log10(weights[rank - 1])]
        for rank in ranks
        if weights[rank - 1] > 1e-12
    ]
    return {
        "n": _WEIGHED,
        "ess": found.ess,
        "ess_per_draw": found.ess / _WEIGHED,
        "pareto_k": found.pareto_k,
        "max_pareto_k": found.max_pareto_k,
        "reliable": found.reliable,
        "log_z": found.log_normaliser,
        "log_z_se": found.log_normaliser_se,
        "undefined": found.undefined,
        "tail": tail,
    }


def _untold(
    verdict: Verdict, evidence: Evidence | None, contents: Contents
) -> list[str]:
    """What the page cannot tell, in sentences."""
    said = [
        f"The test of {f.name} was inconclusive: {f.sentence}."
        for f in verdict.findings
        if f.outcome is Outcome.INCONCLUSIVE
    ]
    reference = None if evidence is None else evidence.reference
    if reference is None:
        said.append(
            "There is no reference: a mode that the sampler lacks would not be seen."
        )
    elif reference.made_here:
        said.append(
            "The reference is not exact: it was made by exploration. A mode that "
            "neither it nor the sampler has found shows nowhere on this page."
        )
    said += [f"A doubt: {doubt}" for doubt in contents["doubts"]]
    if contents["outside"]:
        said.append(
            f"At {contents['outside']:.2%} of the draws the density is zero, or "
            "lost to rounding."
        )
    said.append(
        f"{verdict.n:,} draws were tested: errors too small for as many are not seen, "
        f"and exact draws would fail in {FALSE_ALARMS:.0%} of cases."
    )
    return said


def _made_with(run: Contents, key: PRNGKeyArray) -> Contents:
    config = run.get("config") or {}
    return {
        "pushforward": __version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "python": platform.python_version(),
        "precision": str(jnp.result_type(float)),
        "device": jax.devices()[0].device_kind,
        "trained_with": config.get("versions"),
        "trained_on": config.get("device"),
        "fit_key": config.get("key"),
        "page_key": np.asarray(jax.random.key_data(key)).ravel().tolist(),
        "run": run.get("out"),
        "command": shlex.join(sys.argv),
    }


def plain(value: Any) -> Any:
    """The same as JSON holds it: no array, and None for what is not finite."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
