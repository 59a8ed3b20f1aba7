"""What the third experiment runs, and the paper's own figures."""

import dataclasses

from pushforward import methods
from pushforward.errors import UsageError
from pushforward.experiments.mnist_tasks import Classify, Energy
from pushforward.methods.base import AbstractMethod

SIGMA_MIN, SIGMA_MAX = 0.3, 3.0
# Langevin: one step at each of a geometric row of levels, from SIGMA_MAX to SIGMA_MIN,
# of this multiple of sigma^2, and one closing denoising step. Tuned for 250 steps on
# the energy model alone.
STEP_RATIO = 0.1

LABELS = {
    "langevin": "annealed Langevin",
    "dft_l2": "DFT, L2 alone",
    "dft": "DFT, full gradient",
    "kl": "KL",
    "small": "DFT, L2 alone, small generator",
}


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much of the experiment is run, and how large."""

    name: str
    classifier: Classify
    energy: Energy
    generators: dict[str, AbstractMethod]
    langevin: tuple[int, ...] = (50, 100, 150, 200, 250, 2000)
    # Training images that are used, and images that an FID is computed on.
    images: int = 60_000
    judged: int = 10_000
    # Images in a batch of Langevin chains and of timings.
    batch: int = 128
    chains: int = 2_500
    evaluations: int = 40


def generators(
    steps: int, width: int, small: int, score_width: int, batch: int = 128
) -> dict[str, AbstractMethod]:
    """The one-step samplers: three objectives, and a small generator."""
    common = {
        "shape": "image",
        "steps": steps,
        "batch_size": batch,
        "score_width": score_width,
        "score_steps": 1,
        "score_warmup": min(500, steps // 4),
        "learning_rate": 2e-4,
        "score_learning_rate": 2e-4,
        "momentum": 0.0,
        "antithetic": False,
        # As a network hands on sigma grad_x of its loss.
        "sigma_power": 3.0,
        "particles": 8,
    }
    return {
        "dft_l2": methods.DFT(w1=0.0, width=width, **common),
        "dft": methods.DFT(w1=1.0, width=width, **common),
        "kl": methods.KL(width=width, **common),
        "small": methods.DFT(w1=0.0, width=small, **common),
    }


SCALES = {
    "smoke": Scale(
        "smoke",
        classifier=Classify(steps=4, batch_size=8, width=1),
        energy=Energy(steps=4, batch_size=4, width=4),
        generators={
            k: m
            for k, m in generators(3, 16, 8, 8, batch=4).items()
            if k in ("dft_l2", "small")
        },
        langevin=(3, 5),
        images=256,
        judged=64,
        batch=8,
        chains=64,
        evaluations=2,
    ),
    "cpu": Scale(
        "cpu",
        classifier=Classify(steps=1500, batch_size=64, width=1),
        energy=Energy(steps=4000, batch_size=32, width=16),
        generators={
            k: m
            for k, m in generators(3000, 128, 128, 16, batch=32).items()
            if k == "dft_l2"
        },
        langevin=(50, 250),
        judged=2_000,
        chains=500,
        evaluations=10,
    ),
    "full": Scale(
        "full",
        classifier=Classify(),
        energy=Energy(),
        generators=generators(40_000, 1024, 256, 64),
    ),
}


def scale(name: str) -> Scale:
    """The scale of this name."""
    if name not in SCALES:
        raise UsageError(f"There is no scale {name!r}; there are {', '.join(SCALES)}.")
    return SCALES[name]
