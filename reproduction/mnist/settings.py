"""What the third experiment runs, and the paper's own figures."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float

from pushforward.methods import AbstractMethod
from pushforward.objectives import DFT, KL
from reproduction.common.settings import choose_scale
from reproduction.mnist.methods import KL_POWER, for_images
from reproduction.mnist.tasks import Classify, Energy

SIGMA_MIN, SIGMA_MAX = 0.3, 3.0
# The paper draws its score steps' level from 1 to T and its sampler steps' from 7 to
# 50, without saying what they are: read as fifty levels, geometric in the range.
SAMPLER_SIGMA_MIN = SIGMA_MIN * (SIGMA_MAX / SIGMA_MIN) ** (6 / 49)

# Table 3 of Luo & Deng (2025): seconds for a batch, and FID. Its sampler is that of its
# pseudo-code, which computes L2 alone.
_PAPER = {
    "langevin|250 steps": (0.8455, 9.54),
    "langevin|200 steps": (0.6658, 12.76),
    "langevin|150 steps": (0.5115, 165.07),
    "langevin|100 steps": (0.3455, 423.95),
    "langevin|50 steps": (0.1692, 519.04),
    "dft_l2|ours": (0.0012, 12.07),
    "dft_l2|no codes": (0.0012, 12.07),
    "dft_l2|equal codes": (0.0012, 12.07),
    "dft_l2|paper": (0.0012, 12.07),
}

# Score-identity distillation's alpha = 1.2, its usual choice: w1 / w2 = 2 (1 - alpha).
MINUS = -0.4

LABELS = {
    "classifier": "classifier",
    "energy": "energy model",
    "schedule": "Langevin's schedule",
    "langevin": "annealed Langevin",
    "dft_l2": "DFT, L2 alone",
    "dft_minus": f"DFT, w1 = {MINUS}",
    "dft": "DFT, full gradient",
    "kl": "KL",
    "small": "DFT, L2 alone, small generator",
}
# The generator that is kept in the package, and the file of its stage that holds it.
SMALL, DIGITS = "small", "mnist_digits.safetensors"


def paper(name: str) -> tuple[float, float] | None:
    """The paper's seconds for a batch and its FID for a cell, where it has them."""
    return _PAPER.get(name)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How Langevin goes from SIGMA_MAX to SIGMA_MIN, whatever the number of steps.

    One step at each of a row of levels that are evenly spaced in `sigma^power` (0: in
    log sigma), of `ratio sigma^2`, and one closing step that denoises.
    """

    ratio: float
    power: float

    def levels(self, steps: int) -> Float[np.ndarray, " steps"]:
        """The noise levels."""
        if self.power == 0:
            return np.geomspace(SIGMA_MAX, SIGMA_MIN, steps)
        ends = SIGMA_MAX**self.power, SIGMA_MIN**self.power
        return np.linspace(*ends, steps) ** (1 / self.power)


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Schedules that are tried on the energy model; that of the lowest FID is taken."""

    steps: int = 250
    images: int = 2_500
    ratios: tuple[float, ...] = (0.07, 0.1, 0.14, 0.2)
    powers: tuple[float, ...] = (-1.5, -1.0, -0.5)

    @property
    def tried(self) -> list[Schedule]:
        """Every ratio with every power."""
        return [Schedule(r, p) for r in self.ratios for p in self.powers]


@dataclasses.dataclass(frozen=True)
class Langevin:
    """Annealed Langevin chains of so many steps."""

    steps: int


@dataclasses.dataclass(frozen=True)
class Group:
    """A stage, which is a cell of the result file: something to train or to run."""

    method: str
    setting: str
    what: Classify | Energy | Tuning | Langevin | AbstractMethod

    @property
    def name(self) -> str:
        """The name of the cell."""
        return f"{self.method}|{self.setting}"

    @property
    def label(self) -> str:
        """What people call it."""
        return f"{LABELS[self.method]} ({self.setting})"


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much of the experiment is run, and how large."""

    name: str
    classifier: Classify
    energy: Energy
    generators: tuple[Group, ...]
    tuning: Tuning = Tuning()
    langevin: tuple[int, ...] = (50, 100, 150, 200, 250, 2000)
    # Training images that are used, and images that an FID is computed on.
    images: int = 60_000
    judged: int = 10_000
    # Images in a batch that is timed, and Langevin chains that run together.
    batch: int = 128
    chains: int = 2_500
    # Steps of the Langevin chains that a generator is timed beside.
    raced: int = 200
    evaluations: int = 8
    # Draws of the features with replacement, by which an FID gets its sd.
    resamples: int = 10
    # Images whose nearest training image is looked for.
    neighbours: int = 500
    # Where the data are not on this machine: so many generated images; None means that
    # the data are needed.
    miniature_images: int | None = None


def groups(scale: Scale) -> list[Group]:
    """The stages in their order: what comes later needs what comes first."""
    return [
        Group("classifier", "ours", scale.classifier),
        Group("energy", "ours", scale.energy),
        Group("schedule", "ours", scale.tuning),
        *(Group("langevin", f"{n} steps", Langevin(n)) for n in scale.langevin),
        *scale.generators,
    ]


def generators(width: int, small: int, **sizes: Any) -> dict[str, Group]:
    """The one-step samplers: four objectives, a small one, the paper's settings.

    And the first one without codes, or with codes that are equally likely, which tells
    what they and their weights are worth. `sizes` are arguments of `for_images`.
    """
    common: dict[str, Any] = {
        "width": width,
        # The noise levels of the score steps, and of the sampler's.
        "levels": (SIGMA_MIN, SIGMA_MAX),
        "sampler_levels": (SAMPLER_SIGMA_MIN, SIGMA_MAX),
        **sizes,
    }

    def l2(**changes: Any) -> AbstractMethod:
        return for_images(DFT(w1=0.0), **(common | changes))

    as_the_paper = l2(codes=0, learning_rate=1e-4, score_warmup=0, averaging=0.0)
    kl = for_images(KL(), power=KL_POWER, **common)
    made = [
        Group("dft_l2", "ours", l2()),
        Group("dft_l2", "equal codes", l2(weigh_codes=False)),
        Group("dft_l2", "no codes", l2(codes=0)),
        Group("dft_minus", "ours", for_images(DFT(w1=MINUS), **common)),
        Group("dft", "ours", for_images(DFT(), **common)),
        Group("kl", "ours", kl),
        Group("dft_l2", "paper", as_the_paper),
        Group(SMALL, "ours", l2(width=small)),
    ]
    return {group.name: group for group in made}


def _some(made: dict[str, Group], *names: str) -> tuple[Group, ...]:
    return tuple(made[name] for name in names)


SCALES = {
    "smoke": Scale(
        "smoke",
        classifier=Classify(steps=2, batch_size=2, width=1, depth=10, rest=2),
        energy=Energy(steps=2, batch_size=2, width=2, depth=1),
        generators=_some(
            generators(
                8,
                8,
                steps=2,
                batch_size=2,
                score_width=8,
                score_depth=1,
                score_warmup=0,
            ),
            f"{SMALL}|ours",
        ),
        tuning=Tuning(steps=2, images=8, ratios=(0.1,), powers=(0.0,)),
        langevin=(2,),
        images=256,
        judged=24,
        # One size: one program.
        batch=8,
        chains=8,
        raced=2,
        evaluations=1,
        resamples=2,
        neighbours=16,
        miniature_images=256,
    ),
    "cpu": Scale(
        "cpu",
        classifier=Classify(steps=600, batch_size=64, width=1),
        energy=Energy(steps=5000, batch_size=16, width=16, learning_rate=2e-3),
        generators=_some(
            generators(
                128,
                128,
                steps=1200,
                batch_size=32,
                score_width=32,
                score_warmup=100,
                learning_rate=1e-3,
            ),
            "dft_l2|ours",
        ),
        tuning=Tuning(steps=200, images=250, ratios=(0.1, 0.2), powers=(0.0,)),
        langevin=(50, 200),
        judged=500,
        batch=32,
        chains=250,
        evaluations=5,
    ),
    "full": Scale(
        "full",
        classifier=Classify(),
        energy=Energy(steps=60_000),
        generators=tuple(generators(1024, 256, score_width=96).values()),
    ),
}


def scale(name: str) -> Scale:
    """The scale of this name."""
    return choose_scale(SCALES, name)
