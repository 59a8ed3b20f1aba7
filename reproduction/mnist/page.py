"""The page of the third experiment, rendered from its result file."""

import math
from typing import Any

from reproduction.common.results import Results
from reproduction.common.tables import (
    broken_down,
    not_run,
    number,
    remarks,
    table,
    where,
)
from reproduction.mnist import settings
from reproduction.mnist.settings import LABELS

FIGURE_3, FIGURE_5 = "mnist_digits.png", "mnist_training.png"
FIGURE_NEAREST, FIGURE_ENERGIES = "mnist_nearest.png", "mnist_energies.png"
# What is asked of the one-step sampler: the share of a digit within this factor of
# MNIST's, and this much faster than 200 steps of Langevin.
FACTOR, SPEEDUP, RIVAL = 1.5, 200, "langevin|200 steps"
Record = dict[str, Any]


def page(results: Results) -> str:
    """`docs/results/mnist.md`."""
    parts = [
        _head(results),
        _summary(results),
        difference(results),
        earlier(results),
        _table_3(results),
        _hidden(results),
        broken_down(results, label),
        _figures(results),
        schedule(results),
        _costs(results),
        remarks(results, lambda name: labels(results)[name]),
        missing(results),
        outdated(results),
        setup(results),
        where(results),
    ]
    return "\n".join(part for part in parts if part)


def samplers(results: Results) -> list[tuple[str, dict[str, Record]]]:
    """The cells of samplers in the page's order, with their records by metric."""
    order = list(LABELS)

    def place(name: str) -> tuple[int, int, bool, str]:
        method, setting = name.split("|")
        steps = int(setting.split()[0]) if method == "langevin" else 0
        return order.index(method), steps, setting != "ours", setting

    found = []
    for name in sorted(results.cells, key=place):
        if name.split("|")[0] in ("classifier", "energy", "schedule"):
            continue
        found.append((name, {r["metric"]: r for r in results.cells[name]["records"]}))
    return found


def label(name: str) -> str:
    """What people call a sampler."""
    method, setting = name.split("|")
    text = f"{LABELS[method]}, {setting}"
    return text.removesuffix(", ours")


def one_step(results: Results) -> list[tuple[str, dict[str, Record]]]:
    """The samplers that need one pass."""
    return [(n, r) for n, r in samplers(results) if not n.startswith("langevin")]


def _real(results: Results, which: str) -> dict[str, Record]:
    return {r["metric"]: r for r in results.records(method=which)}


def _head(results: Results) -> str:
    head = f"""# A one-step sampler for an energy model of MNIST

Rendered by `python -m reproduction report` from `results/mnist.json` (scale
`{results.scale}`), which `python -m reproduction mnist --scale {results.scale}`
wrote; no figure is typed.
"""
    floor = _real(results, "train").get("fid")
    accuracy = results.find(method="classifier", metric="accuracy")
    if floor is None or accuracy is None:
        return head
    what = "MNIST"
    if results.cells["classifier|ours"].get("source") != "real":
        what = "**generated digits that stand for MNIST**"
    return f"""{head}
## What the tables mean

An energy model of {what} is sampled by annealed Langevin dynamics, hundreds of passes
an image, and by generators that were distilled from it and need one. FID is the Fréchet
distance to the test images in the features of a classifier trained here, which is right
about {100 * accuracy["value"]:.2f} % of them.

**The floor: {floor["n"]:,} training images score {fid_text(floor)}.** A sampler of the
data themselves would score about that; one of an energy model cannot be expected to
score less. The ± is the sd over draws of the same images with replacement. FIDs of
other classifiers, such as the paper's, are on a scale of their own: only comparisons
within one column mean something.
"""


def _summary(results: Results) -> str:
    """Whether what the paper claims, and what is asked for, holds."""
    made = dict(samplers(results))
    rival = made.get(RIVAL, {}).get("fid")
    lines = []
    if rival is None:
        lines.append(
            "- 200-step Langevin was not run here: whether one step is as good cannot "
            "be told from this file."
        )
    for name, records in one_step(results):
        lines.append(f"- {label(name)}: {_verdict(results, name, records, rival)}")
    if not one_step(results):
        return ""
    listed = "\n".join(lines)
    return f"""## Does it hold?

The paper's claim: one step scores at or below 200 steps of annealed Langevin dynamics
on the same energy model. Asked for besides: every digit within a factor of {FACTOR} of
its share in MNIST, and a batch at least {SPEEDUP} times as fast. How fast a sampler
is: the lower of two ratios, that of the times in Table 3, and that of two times taken
one after the other in one run.

{listed}
"""


def below(fid: Record, rival: Record) -> bool | None:
    """Whether an FID is at or below another; None: too near to tell.

    Too near is within two standard deviations of the difference.
    """
    if None in (fid["value"], rival["value"]):
        return False
    near = 2 * math.hypot(fid["sd"] or 0.0, rival["sd"] or 0.0)
    gap = rival["value"] - fid["value"]
    return None if abs(gap) < near else gap >= 0


def _both(fid: Record, curve: list, rival: Record) -> bool | None:
    """The same of two sets of draws, that of the last evaluation being the other."""
    values = [fid["value"], *(row[1] for row in curve[-1:])]
    answers = {below({**fid, "value": value}, rival) for value in values}
    return answers.pop() if len(answers) == 1 else None


def _verdict(
    results: Results, name: str, records: dict[str, Record], rival: Record | None
) -> str:
    fid, fast = records["fid"], speed(results, records)
    curve = results.cells[name].get("curve") or []
    parts = [f"FID {fid_text(fid)}"]
    if rival is not None:
        answer = {
            True: "the claim holds",
            False: "the claim does not hold",
            None: "too near to tell",
        }[_both(fid, curve, rival)]
        parts[0] += f" against {fid_text(rival)} of 200 steps: **{answer}**"
        further = dict(samplers(results)).get("langevin|250 steps", {}).get("fid")
        if further is not None:
            also = {True: "also", False: "not", None: "too near to tell"}
            told = also[_both(fid, curve, further)]
            parts[0] += f" ({told} against 250 steps, {fid_text(further)})"
    if curve:
        parts.append(f"on other draws, at the last evaluation, {curve[-1][1]:.2f}")
    low, high = records["digit_low"]["value"], records["digit_high"]["value"]
    even = low >= 1 / FACTOR and high <= FACTOR
    parts.append(
        f"digits from {number(low, 2)} to {number(high, 2)} of their share, "
        + ("as asked" if even else f"**outside the factor of {FACTOR}**")
    )
    if fast is None:
        parts.append("**its speed was not measured**")
    else:
        ratio, steps = fast
        enough = "" if ratio >= SPEEDUP else f", **less than {SPEEDUP}**"
        parts.append(f"{ratio:,.0f} times as fast as {steps} steps{enough}")
    return "; ".join(parts) + "."


def speed(results: Results, records: dict[str, Record]) -> tuple[float, int] | None:
    """How many times as fast a sampler is as Langevin, and as how many steps of it."""
    fast = records.get("speedup")
    if fast is None:
        return None
    steps, metric = fast["beside"], "seconds_batch"
    theirs = results.find(method="langevin", setting=f"{steps} steps", metric=metric)
    ratios = [fast["value"]]
    if theirs is not None and metric in records:
        ratios.append(theirs["value"] / records[metric]["value"])
    return min(ratios), steps


def _table_3(results: Results) -> str:
    rows = []
    for name, records in samplers(results):
        fid, seconds = records["fid"], records.get("seconds_batch")
        steps = records["gflop"]["steps"] if name.startswith("langevin") else 1
        rows.append(
            [
                label(name),
                f"{steps:,}",
                "" if seconds is None else f"{seconds['value']:.3g}",
                f"{records['gflop']['value']:,.4g}",
                fid_text(fid),
                f"{fid['paper']:.2f}" if "paper" in fid else "",
            ]
        )
    if not rows:
        return ""
    floor = _real(results, "train").get("fid")
    if floor is not None:
        rows.append(["training images: the floor", "", "", "", fid_text(floor), ""])
    sizes = {r["n"] for r in results.records(metric="seconds_batch")}
    energy = results.find(method="energy", metric="gflop")
    cost = f" (of {energy['value']:.3g} each)" if energy else ""
    header = [
        "sampler",
        "steps",
        f"seconds for {', '.join(map(str, sorted(sizes)))} images",
        "GFLOP an image",
        "FID",
        "paper's FID",
    ]
    return f"""## Table 3

GFLOP are two for each multiplication in the network passes that an image takes. A step
of Langevin is a gradient{cost}: a pass forward and one back. There is one more of
them, which denoises. The paper counts the multiplications of the pass forward alone,
.58 G. Seconds are medians over calls compiled beforehand, a generator's together with
its weights, as for someone who draws many batches; images stay on the device. Of times
below a millisecond much is the call itself.

{table(header, rows)}
{_longest(results)}"""


def _longest(results: Results) -> str:
    """What to think of the longest chains, where shorter ones score less."""
    chains = [(n, r) for n, r in samplers(results) if n.startswith("langevin")]
    if len(chains) < 2:
        return ""
    best, shorter = min(chains, key=lambda chain: chain[1]["fid"]["value"] or math.inf)
    last, longest = chains[-1]
    if last == best or below(shorter["fid"], longest["fid"]) is not True:
        return ""
    low, high = (number(longest[f"digit_{end}"]["value"], 2) for end in ("low", "high"))
    tuned = settings.scale(results.scale).tuning.steps
    return f"""
The longest chains were to show what the energy model itself would score. They score
**more** than shorter ones: {label(last)}, {fid_text(longest["fid"])}, with digits
from {low} to {high} of their share; {label(best)}, {fid_text(shorter["fid"])}.
Whether that is the schedule, which was tuned at {tuned} steps, or the shares that the
energy model itself gives to digits, was not told apart.
"""


def _hidden(results: Results) -> str:
    made = [(label(name), records) for name, records in samplers(results)]
    test = _real(results, "test")
    if test:
        made.append(("test images", test))
    if not made:
        return ""

    def cell(records: dict[str, Record], metric: str, digits: int) -> str:
        record = records.get(metric)
        return "" if record is None else number(record["value"], digits)

    rows = [
        [
            name,
            f"{cell(records, 'digit_low', 2)} to {cell(records, 'digit_high', 2)}",
            cell(records, "sure", 3),
            cell(records, "nearest", 2),
            cell(records, "energy", 2),
        ]
        for name, records in made
    ]
    header = [
        "sampler",
        "digits, ratio to MNIST's share",
        "share the classifier is sure of",
        "to the nearest training image",
        "f, median",
    ]
    return f"""## What FID can hide

A lost digit: the smallest and the largest ratio of a digit's share, as the classifier
sees it, to its share in MNIST. Images of nothing: the share of those that the
classifier gives more than .9 to one digit. Copies of the data: the median Euclidean
distance to the nearest training image, which for a copy is 0. Draws from where the
model is not: the median of f, where log q = f / sigma, of the images with noise of the
lowest level, {settings.SIGMA_MIN}. Test images say what to compare with.

{table(header, rows)}
"""


def _figures(results: Results) -> str:
    if not samplers(results):
        return ""
    text = f"""## Figure 3

![Images of every sampler beside real digits]({FIGURE_3})

The first draws of each sampler, none chosen, beside real digits.
"""
    if not one_step(results):
        return text
    return f"""{text}
## Figure 5

![FID over training]({FIGURE_5})

FID over training on fresh draws at every evaluation, on a logarithmic scale, with the
lines of 200-step and 250-step Langevin and of the floor.

## Nearest training images

![Draws and the training images nearest to them]({FIGURE_NEAREST})

Above: the first draws. Below each: the training image nearest to it.

## Energies

![Histograms of the energies]({FIGURE_ENERGIES})

f of the draws, of the longest Langevin chains, and of test images, all with noise of
the lowest level.
"""


def _costs(results: Results) -> str:
    rows = []
    stages = [n for n in ("classifier|ours", "energy|ours") if n in results.cells]
    for name in [*stages, *(name for name, _ in one_step(results))]:
        record = results.cells[name]["records"][0]
        how = results.cells[name].get("config", {})
        rates = [how.get("learning_rate"), how.get("score_learning_rate")]
        rows.append(
            [
                label(name),
                f"{record['steps']:,}",
                ", ".join(f"{rate:g}" for rate in rates if rate),
                f"{record['seconds']:,.0f}",
                record["device"],
            ]
        )
    if not rows:
        return ""
    header = ["stage", "steps", "learning rates", "seconds", "device"]
    shared = ""
    if any("remark" in cell for cell in results.cells.values()):
        shared = " Before comparing them, see the remarks."
    return f"""## What training costs

Learning rates are those of the sampler and of its score network. Seconds include
compilation.{shared}

{table(header, rows)}
"""


def missing(results: Results) -> str:
    """The stages of this scale that have not been run."""
    groups = settings.groups(settings.scale(results.scale))
    return not_run([g.label for g in groups if g.name not in results.cells])


def outdated(results: Results) -> str:
    """Generators that were trained otherwise than the command would train them now."""
    lines = []
    for group in settings.groups(settings.scale(results.scale)):
        then = results.cells.get(group.name, {}).get("config", {})
        if not then:
            continue
        # Version 0.1 named the class of a method where its parts stand now.
        then = {k: v for k, v in then.items() if k != "kind" or "name" in then}
        # Only a method leaves a config.
        method: Any = group.what
        parts = method.describe()
        now = {n: parts.get(n, getattr(method, n, None)) for n in then}
        # What is left to the method (None) is not the command's to change.
        changed = [
            f"{name} {then[name]} (now {now[name]})"
            for name in then
            if now[name] is not None and now[name] != then[name]
        ]
        if changed:
            lines.append(f"- {group.label}: {', '.join(changed)}")
    if not lines:
        return ""
    listed = "\n".join(lines)
    return f"""## Older than the command

These were trained with other settings than the command has now, and may have been
trained by older code; they are to be run again.

{listed}
"""


def labels(results: Results) -> dict[str, str]:
    """What people call the stages of this scale."""
    groups = settings.groups(settings.scale(results.scale))
    return {group.name: group.label for group in groups}


def difference(results: Results) -> str:
    """What the recipe adds to the paper's loss, one thing after the other."""
    told = {
        "paper": "The paper's settings, as many steps",
        "no codes": "Our rates, averaged weights, the score trained first",
        "equal codes": "And codes, equally likely",
        "ours": "And the weights of codes learnt",
    }
    rows = []
    for setting, what in told.items():
        cell = results.cells.get(f"dft_l2|{setting}")
        if cell is None:
            return ""
        found = {r["metric"]: r for r in cell["records"]}
        low, high, sure = (
            found[metric]["value"] for metric in ("digit_low", "digit_high", "sure")
        )
        rows.append(
            [
                what,
                fid_text(found["fid"]),
                f"{number(low, 2)} to {number(high, 2)}",
                number(sure, 3),
            ]
        )
    header = [
        "DFT, L2 alone",
        "FID",
        "digits, ratio to MNIST's share",
        "share the classifier is sure of",
    ]
    return f"""**One thing after the other**, by one training each, which does not tell
how much trainings differ:

{table(header, rows)}
"""


def fid_text(record: dict[str, Any] | None) -> str:
    """An FID and its sd."""
    if record is None:
        return ""
    if record["value"] is None:
        return "not finite"
    return f"{record['value']:.2f} ± {record['sd'] or 0:.2f}"


def earlier(results: Results) -> str:
    """What was scored before, each beside its rival of that time."""
    lines = []
    for name, cell in results.cells.items():
        for past in cell.get("earlier", []):
            low, high = (number(past[f"digit_{end}"], 2) for end in ("low", "high"))
            fid = fid_text({"value": past["fid"], "sd": past["sd"]})
            rival = fid_text({"value": past["rival"], "sd": past["rival_sd"]})
            what = f"{settings.LABELS[name.split('|')[0]]}, {past['what']}"
            lines.append(
                f"- {what}: FID {fid} against {rival} of 200 steps then; digits from "
                f"{low} to {high} of their share."
            )
    listed = "\n".join(sorted(lines))
    return f"{_EARLIER}\n\n{listed}\n" if lines else ""


_EARLIER = """\
**Trainings differ, and settings were chosen** by FID to the same test images, as
Langevin's schedule was: by shorter runs, and after these at full length. These lines
were copied from earlier files of the same command and seed. Classifier and energy model
were others, which is why 200 steps of Langevin stand beside each."""


def schedule(results: Results) -> str:
    """How Langevin's schedule was found."""
    cell = results.cells.get("schedule|ours")
    if cell is None:
        return ""
    record, chosen = cell["records"][0], cell["chosen"]
    powers = sorted({row["power"] for row in cell["tried"]})
    found = {(row["ratio"], row["power"]): row["fid"] for row in cell["tried"]}
    rows = [
        [f"{ratio:g}", *(number(found[ratio, power], 1) for power in powers)]
        for ratio in sorted({row["ratio"] for row in cell["tried"]})
    ]
    header = ["step / sigma²", *(f"sigma^{p:g}" if p else "log sigma" for p in powers)]
    spaced = f"sigma^{chosen['power']:g}" if chosen["power"] else "log sigma"
    edge = ""
    if _at_the_edge(chosen, cell["tried"]):
        edge = " **It lies at the edge of what was tried**: better may lie beyond."
    return f"""## Langevin's schedule

The paper does not say its own. Ours was chosen without the generators, by the lowest
FID (to the test images that judge all samplers) of {record["n"]:,} images at
{record["steps"]} steps, over the step size and the quantity in which the levels are
evenly spaced. Taken, for every number of steps: steps
of {chosen["ratio"]:g} sigma², levels even in {spaced}.{edge}

{table(header, rows)}
"""


def _at_the_edge(chosen: dict[str, float], tried: list[dict[str, float]]) -> bool:
    """Whether something was chosen beyond which nothing was tried."""
    for name, value in chosen.items():
        values = {row[name] for row in tried}
        if len(values) > 1 and value in (min(values), max(values)):
            return True
    return False


def setup(results: Results) -> str:
    """The settings of the scale that was run."""
    low, high = settings.SIGMA_MIN, settings.SIGMA_MAX
    made = {g.name: g.what for g in settings.scale(results.scale).generators}
    paper: Any = made.pop("dft_l2|paper", None)
    small: Any = made.pop(f"{settings.SMALL}|ours", None)
    ours: Any = next(iter(made.values()), small)
    width, adam = ours.network.width, ours.training.optimiser
    sizes, batch = f"{width} channels at the widest", f"Batch {ours.batch_size}"
    if small is not None and small is not ours:
        sizes += f" ({small.network.width} in the small generator)"
    n = ours.network.codes
    falling = ", falling along a cosine" if adam.schedule == "cosine" else ""
    noise = ours.objective.noise
    weights = f"sigma^{noise.power:g} in DFT"
    kl: Any = made.get("kl|ours")
    if kl is not None:
        weights += f", sigma^{kl.objective.noise.power:g} in KL"
    low_level = f"{noise.sampler_levels[0]:.2f}"
    warmup = ours.second_training.warmup
    if isinstance(warmup, float):
        warmup = min(int(warmup * ours.steps), 500)
    theirs = ""
    if paper is not None:
        rate = paper.training.optimiser.learning_rate
        theirs = f"""
- "paper": no codes, batch {paper.batch_size}, constant learning rates of
  {rate}, the last weights, no steps of the score alone; as many steps as
  the others, of which the paper does not give the number."""
    others = ""
    if "dft_l2|equal codes" in made and "dft_l2|no codes" in made:
        others = f"""
- "Equal codes": the largest of the first {n} latent numbers chooses the code, so that
  all are equally likely, and has its part in the image too. "No codes": without."""
    return f"""## Settings

- Images of 28 by 28 in the middle of 32 by 32, pixels in [0, 1].
- Energy model: `log q_sigma = f / sigma`, denoising loss over sigma from {low} to
  {high}, log-uniform. It is handed to the samplers as a score that knows the noise
  level. The networks are made for images; the methods know nothing of them.
- Annealed Langevin: as many levels as steps, from {high} to {low}, one step at each,
  from N(1/2, {high}^2), and one closing step that denoises.
- Generators: four transposed convolutions with batch normalisation, 128 latent numbers,
  {sizes};
  a score network, a U-Net that knows sigma, trained once a step; momentum 0, one seed.
  The score network sees every noise level, the sampler those from
  {low_level} on: the paper's levels 7 to 50, read as fifty in geometric order.
- "ours": the last latent number picks one of {n} codes, which the generator gets beside
  the others, so that it may jump from one digit to another. The weights by which it is
  picked are learnt, by the KL divergence whatever the objective, from the scores at the
  highest noise level, where the noise joins what the codes make: no gradient through an
  image can change how often it is made.
  {batch}, learning rates of {adam.learning_rate:g}{falling}, averaged weights, at first
  {warmup} steps of the score alone.{others}{theirs}
- DFT's loss is w1 L1 + L2. "L2 alone" (w1 = 0) is the paper's pseudo-code, "full
  gradient" (w1 = 1) its theorem, and w1 = {settings.MINUS} the usual choice of
  score-identity distillation.
- The gradient of a noise level is weighed by {weights}.
  The paper's pseudo-code has sigma^2 g^2, which is sigma^4 if levels are geometric and
  g is the coefficient of their diffusion. DFT's own gradient goes as 1/sigma^3, KL's as
  1/sigma.
- The small generator's weights are stored in bfloat16, and its figures are those of the
  stored weights; its time is that of the precision in which it was trained.
"""
