"""Parts of the third experiment's page: what was before, is missing, and was set."""

from typing import Any

from pushforward.experiments import mnist_settings as settings
from pushforward.experiments.results import Results
from pushforward.report.tables import not_run, number, table


def missing(results: Results) -> str:
    """The stages of this scale that have not been run."""
    groups = settings.groups(settings.scale(results.scale))
    return not_run([g.label for g in groups if g.name not in results.cells])


def outdated(results: Results) -> str:
    """Generators that were trained otherwise than the command would train them now."""
    lines = []
    for group in settings.groups(settings.scale(results.scale)):
        then = results.cells.get(group.name, {}).get("config", {})
        now = {name: getattr(group.what, name, None) for name in then}
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
    sizes, batch = f"{ours.width} channels at the widest", f"Batch {ours.batch_size}"
    if small is not None and small is not ours:
        sizes += f" ({small.width} in the small generator)"
    n = ours.codes
    falling = ", falling along a cosine" if ours.schedule == "cosine" else ""
    weights = f"sigma^{ours.sigma_power:g} in DFT"
    kl: Any = made.get("kl|ours")
    if kl is not None:
        weights += f", sigma^{kl.sigma_power:g} in KL"
    low_level = f"{ours.sampler_sigma_min:.2f}"
    theirs = ""
    if paper is not None:
        theirs = f"""
- "paper": no codes, batch {paper.batch_size}, constant learning rates of
  {paper.learning_rate}, the last weights, no steps of the score alone; as many steps as
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
  {batch}, learning rates of {ours.learning_rate:g}{falling}, averaged weights, at first
  {ours.score_warmup} steps of the score alone.{others}{theirs}
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
