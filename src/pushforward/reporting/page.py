"""One self-contained HTML file from the contents of a page."""

import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pushforward.reporting import figures

_HERE = Path(__file__).parent
_MARKS = {"passed": "✓", "failed": "✗", "inconclusive": "?"}
# Nothing is fetched from anywhere, and the page says so to the browser.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
"""


def page(contents: dict[str, Any]) -> str:
    """The page; every number on it is one of its contents."""
    head = _HEAD.format(
        policy=f"{_POLICY}; img-src data:",
        title=_text(contents["title"]),
        style=(_HERE / "page.css").read_text("utf-8"),
    )
    sections = [(name, body) for name, body in _sections(contents) if body]
    links = "".join(
        f'<a href="#{_anchor(name)}">{_text(name)}</a>' for name, _ in sections
    )
    parts = [head, _top(contents), f"<nav>{links}</nav>\n"]
    for name, body in sections:
        parts.append(
            f'<section id="{_anchor(name)}">\n<h2>{_text(name)}</h2>\n{body}\n'
            "</section>\n"
        )
    script = (_HERE / "page.js").read_text("utf-8")
    parts.append(f"<script>\n{script}</script>\n</body>\n</html>\n")
    return "".join(parts)


def _top(contents: dict[str, Any]) -> str:
    verdict = contents["verdict"]
    outcome = verdict["outcome"]
    return (
        f"<header>\n<h1>{_text(contents['title'])}</h1>\n"
        f'<p class="verdict {outcome}"><b>{outcome}</b>: '
        f"{_text(verdict['summary'])}</p>\n</header>\n"
    )


def _sections(contents: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("What it rests on", _tests(contents["verdict"])),
        ("What could not be determined", _untold(contents)),
        ("Parameters", _parameters(contents.get("parameters"))),
        ("Distributions", _ecdfs(contents.get("ecdf"))),
        ("Modes", _modes(contents.get("modes"))),
        ("Pairs", _pairs(contents.get("pairs"))),
        ("Log density", _log_density(contents.get("log_density"))),
        ("Importance weights", _weights(contents.get("weights"))),
        ("Training", _training(contents.get("training"))),
        ("Cost", _cost(contents["cost"])),
        ("Made with", _made_with(contents)),
    ]


def _tests(verdict: dict[str, Any]) -> str:
    rows = [
        [
            f'<td class="{f["outcome"]}">{_MARKS[f["outcome"]]}&nbsp;{f["outcome"]}',
            f"<td>{_text(f['name'])}",
            f"<td>{number(f['statistic'], 3)}",
            f"<td>{number(f['reference'], 3)}",
            f"<td>{number(f['p_value'], 3)}",
            f"<td>{_text(f['sentence'])}",
        ]
        for f in verdict["findings"]
    ]
    columns = ["outcome", "test", "draws", "reference", "p", "what it found"]
    table = _table(columns, rows, "words") if rows else ""
    return (
        f"<p>{verdict['n']:,} draws against {_text(verdict['reference'])}. All tests "
        f"together reject exact draws in {verdict['false_alarms']:.0%} of cases.</p>"
        f"{table}"
    )


def _untold(contents: dict[str, Any]) -> str:
    omitted = [f"Not on this page: {each}." for each in contents["omitted"]]
    return _list([*contents["untold"], *omitted])


def _parameters(found: dict[str, Any] | None) -> str:
    if not found:
        return ""
    compared = "error" in found["columns"]
    note = "No reference: there are no errors."
    if compared:
        note = (
            "The error is the mean distance between the quantiles of the draws and of "
            "the reference, in standard deviations of the reference (of its central "
            "90 %, where its tails are heavy); beside it that of as many reference "
            "draws. The worst come first."
        )
    heads = "".join(
        f'<th scope="col"{_sorted(name)}><button type="button">{_text(name)}'
        "</button></th>"
        for name in found["columns"]
    )
    rows = "\n".join(
        "<tr>"
        + "".join(
            f"<td>{_text(cell) if i == 0 else number(cell)}"
            for i, cell in enumerate(row)
        )
        for row in found["rows"]
    )
    paper = ""
    if len(found["rows"]) > 60:
        paper = " Printed, the table ends with the first 60 rows."
    return (
        f'<p class="small">{note} A click on the head of a column sorts.{paper}</p>'
        '<p><input type="search" id="search" placeholder="search parameters" '
        'aria-label="search parameters"> <span id="shown" class="small"></span></p>'
        '<div class="scroll" tabindex="0"><table id="parameter-table">'
        f"<thead><tr>{heads}</tr></thead><tbody>\n{rows}\n</tbody></table></div>"
    )


def _sorted(name: str) -> str:
    return ' aria-sort="descending"' if name == "error" else ""


def _ecdfs(found: dict[str, Any] | None) -> str:
    if not found:
        return ""
    panels = "".join(f"<figure>{svg}</figure>" for svg in figures.ecdfs(found))
    return (
        f"<p>{_keys(ours='draws', reference='reference draws', band='99 % band')}</p>"
        f'<div class="panels">{panels}</div>'
        '<p class="small">The empirical distribution of the probability integral '
        "transform of the draws against the reference, less the uniform one, for the "
        "parameters that leave it furthest. The lines of exact draws stay inside the "
        f"band (±{found['band']:.3g}) everywhere, in all parameters at once, in 99 % "
        "of cases. Above 0 the draws lie too low, below 0 too high.</p>"
    )


def _modes(found: dict[str, Any] | None) -> str:
    if not found:
        return ""
    return (
        f"<p>{_keys(ours='draws', reference='reference')}</p>"
        f'<figure class="wide">{figures.modes(found)}</figure>'
        f'<p class="small">{len(found["rows"])} of {found["count"]} modes, those whose '
        "weights differ most first. The reference counts as "
        f"{found['reference_worth']:,} independent draws.</p>"
    )


def _pairs(found: dict[str, Any] | None) -> str:
    if not found:
        return ""
    rows, size = figures.pairs(found)
    cells = []
    for i, row in enumerate(rows):
        for j, svg in enumerate(row):
            cells.append(f'<div style="grid-area:{i + 1}/{j + 1}">{svg}</div>')
    keys = {"ours": "draws"}
    if found["reference"] is not None:
        keys["reference"] = "reference"
    which = "worst parameters" if found["reference"] is not None else "first ones"
    return (
        f"<p>{_keys(**keys)}</p>"
        f'<div class="pairs" style="max-width:{11 * size}rem;'
        f'grid-template-columns:repeat({size},1fr)">'
        f"{''.join(cells)}</div>"
        f'<p class="small">{len(found["draws"]):,} draws each, of the {which}.</p>'
    )


def _log_density(found: dict[str, Any] | None) -> str:
    if not found:
        return ""
    keys = {"ours": "draws"}
    if "reference" in found["shares"]:
        keys["reference"] = "reference"
    if "moved" in found["shares"]:
        keys["moved"] = "draws after 20 steps of MALA"
    means = {"draws": "draws", "moved": "after MALA", "reference": "reference"}
    said = ", ".join(
        f"{means[name]} {number(value)}" for name, value in found["means"].items()
    )
    return (
        f"<p>{_keys(**keys)}</p>"
        f'<figure class="wide">{figures.log_densities(found)}</figure>'
        f'<p class="small">Means: {said}. What is lower than the axis is in the first '
        "bin. Draws of the target stay where they are.</p>"
    )


def _weights(found: dict[str, Any] | None) -> str:
    if not found:
        return ""
    trust = "the weights can be relied on"
    if not found["reliable"]:
        trust = "a few draws carry too much weight: do not rely on these figures"
    rows = [
        ("effective draws a draw", number(found["ess_per_draw"])),
        ("log Z", f"{number(found['log_z'], 6)} ± {number(found['log_z_se'], 2)}"),
        (
            "Pareto k",
            f"{number(found['pareto_k'])}, at most "
            f"{number(found['max_pareto_k'])} is wanted: {trust}",
        ),
    ]
    if found["undefined"]:
        rows.append(("without a log density", f"{found['undefined']:,} draws"))
    return (
        f"{_definitions(rows)}"
        f'<figure class="wide">{figures.weights(found)}</figure>'
        f'<p class="small">{found["n"]:,} draws. For an exact sampler all weights are '
        "1 (the dashed line). A mode that the sampler lacks does not show here.</p>"
    )


def _training(found: dict[str, Any] | None) -> str:
    if not found:
        return ""
    panels = "".join(f"<figure>{svg}</figure>" for svg in figures.training(found))
    said = [found["message"], *found["decisions"]]
    keys = ""
    if any({"elbo", "eubo"} <= s["curves"].keys() for s in found["stages"]):
        keys = _keys(ours="ELBO, from draws", reference="EUBO, from particles")
        keys = f"<p>Bounds of log Z: {keys}</p>"
    return (
        f"{_list([each for each in said if each])}{keys}"
        f'<div class="panels">{panels}</div>{_reviews(found["reviews"])}'
    )


_REVIEWED = ("elbo", "eubo", "ess", "ess_particles", "divergence")


def _reviews(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return ""
    cells = [
        [
            f"<td>{row['step']}",
            *(f"<td>{number(row.get(name))}" for name in _REVIEWED),
            f"<td>{'kept' if row['kept'] else 'not kept'}",
        ]
        for row in rows
    ]
    names = [name.replace("_", " of ") for name in _REVIEWED]
    return (
        "<details><summary>All reviews</summary>"
        + _table(["step", *names, "decision"], cells)
        + "</details>"
    )


def _cost(found: dict[str, Any]) -> str:
    rows = []
    if found["fit_seconds"] is not None:
        rows.append(("training", f"{found['fit_seconds']:,.0f} s"))
    if found["fit_evaluations"] is not None:
        rows.append(("evaluations", f"{found['fit_evaluations']:,} of the target"))
    rate = float(number(found["draws_per_second"], 3))
    rows.append(("draws a second", f"{rate:,.0f}, from {found['timed_draws']:,} draws"))
    if nuts := found["nuts"]:
        rows.append(("beside NUTS", _beside_nuts(nuts)))
    rows.append(("the check", f"{found['check_evaluations']:,} evaluations"))
    rows.append(("this page", f"{found['page_evaluations']:,} evaluations in all"))
    return _definitions(rows)


def _beside_nuts(nuts: dict[str, Any]) -> str:
    each = (
        f"NUTS took {number(nuts['evaluations_per_effective_draw'])} evaluations for "
        f"an effective draw of its slowest coordinate ({nuts['chains']} chains of "
        f"{nuts['draws']} draws after {nuts['warmup']} of warm-up, started from draws "
        "of this sampler)"
    )
    if not nuts["agree"]:
        return (
            f"{each}, but its chains disagree (R-hat {number(nuts['rhat'])}): there is "
            "no price to compare with"
        )
    return (
        f"{each}: from {nuts['break_even_draws']:,} draws on, training took fewer "
        "evaluations"
    )


def _made_with(contents: dict[str, Any]) -> str:
    made = contents["made_with"]
    names = ("pushforward", "jax", "numpy", "scipy", "python")
    rows = [
        ("versions", ", ".join(f"{name} {made[name]}" for name in names)),
        ("device", f"{made['device']}, {made['precision']}"),
    ]
    if made["trained_on"]:
        rows.append(("trained on", str(made["trained_on"])))
    if made["trained_with"]:
        with_ = ", ".join(f"{k} {v}" for k, v in made["trained_with"].items())
        rows.append(("trained with", with_))
    if made["fit_key"] is not None:
        rows.append(("key of the fit", str(made["fit_key"])))
    rows.append(("key of this page", str(made["page_key"])))
    if made["run"]:
        rows.append(("run", made["run"]))
    rows += [("command", made["command"]), ("made", contents["made"])]
    rows.append(("target", contents["target"]["parameters"]))
    return _definitions([(name, _text(words)) for name, words in rows])


def number(value: Any, digits: int = 4) -> str:
    """A number as a reader wants it; a dash where there is none."""
    if value is None:
        return "–"
    return f"{value + 0.0:.{digits}g}".replace("-", "−")


def _text(words: Any) -> str:
    return html.escape(str(words), quote=True)


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def _list(sentences: Iterable[str]) -> str:
    items = "".join(f"<li>{_text(each)}</li>" for each in sentences)
    return f"<ul>{items}</ul>" if items else ""


def _definitions(rows: Iterable[tuple[str, str]]) -> str:
    return "<dl>" + "".join(f"<dt>{a}</dt><dd>{b}</dd>" for a, b in rows) + "</dl>"


def _table(
    columns: Iterable[str], rows: Iterable[Sequence[str]], kind: str = ""
) -> str:
    heads = "".join(f'<th scope="col">{_text(name)}</th>' for name in columns)
    body = "\n".join(f"<tr>{''.join(row)}" for row in rows)
    which = f' class="{kind}"' if kind else ""
    return (
        f'<div class="scroll" tabindex="0"><table{which}><thead><tr>{heads}</tr>'
        f"</thead><tbody>\n{body}\n</tbody></table></div>"
    )


def _keys(**kinds: str) -> str:
    return "".join(
        f'<span class="key {kind}"></span>{_text(words)}'
        for kind, words in kinds.items()
    )
