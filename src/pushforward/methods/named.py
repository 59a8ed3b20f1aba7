"""The methods by name: short constructors of compositions, and their defaults.

Each takes its objective's few numbers, and by name what `BatchOptions`, `ScoreOptions`
or `CriticOptions` list.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict, TypeVar, Unpack

from pushforward.errors import UsageError
from pushforward.methods.adaptive import ExploreAndTrain
from pushforward.methods.alternating import Alternating
from pushforward.methods.base import AbstractMethod
from pushforward.methods.optimisers import Adam, Optimiser
from pushforward.methods.single import SingleNetwork
from pushforward.methods.training import SecondTraining, TrainConfig
from pushforward.networks.specs import (
    AffineSpec,
    CouplingSpec,
    MixtureSpec,
    MLPSpec,
    Network,
    ResidualSpec,
    as_spec,
)
from pushforward.objectives import dft, fisher, kl, ksd, reverse_kl, steingan
from pushforward.objectives.base import AbstractBatchObjective, AbstractScoreObjective
from pushforward.objectives.noise import Noise
from pushforward.objectives.score_based import AbstractNetworkLoss, ScoreBased
from pushforward.objectives.score_matching import Estimator
from pushforward.objectives.stein_critic import SteinCritic as SteinCriticObjective

# The sampler of an implicit method starts as a mixture that covers the particles of the
# initialisation, and a residual map bends it. The weights of its components do not
# follow from the paths of draws: particles are many, so that they start right.
_BENT = MixtureSpec(layers=0, width=64, depth=3)
_PARTICLES = 8192


class TrainOptions(TypedDict, total=False):
    """What every method takes by name."""

    network: Network
    optimiser: Optimiser | float
    steps: int
    batch_size: int
    averaging: float


class BatchOptions(TrainOptions, total=False):
    """What a method with a short initialisation takes on top."""

    whiten: bool
    particles: int


class ScoreOptions(BatchOptions, total=False):
    """What a method with a score network takes on top."""

    score_network: Network
    score_optimiser: Optimiser | float
    score_steps: int
    score_warmup: int | float
    noise: Noise | float
    estimator: Estimator
    network_loss: AbstractNetworkLoss


class CriticOptions(BatchOptions, total=False):
    """What a method with a critic takes on top."""

    critic_network: Network
    critic_optimiser: Optimiser | float
    critic_steps: int
    critic_warmup: int | float


def Adaptive(
    max_evaluations: int | None = None, **options: Unpack[TrainOptions]
) -> ExploreAndTrain:
    """Explore, distil, improve, decide: what `fit` does where no method is named.

    See `methods.adaptive`.

    Args:
        max_evaluations: the most evaluations of the target that exploration spends;
            None is as many as `explore` needs.
        **options: by name,
            `network`: one whose density is known, `networks.mixture(bins=8)` by
            default: splines in coupling layers, on a mixture with a component for every
            mode;
            `optimiser`: any transformation of optax, or one of ours, or the learning
            rate of ours (3e-3);
            `steps` (4000): the most that are made;
            `batch_size` (256), `averaging` (0.999): see `TrainConfig`.
    """
    _refuse_unknown("adaptive", options, TrainOptions)
    network = options.get("network", MixtureSpec(bins=8))
    training = _training(options, TrainConfig(optimiser=Adam(3e-3)))
    return ExploreAndTrain(
        network=as_spec(network), training=training, max_evaluations=max_evaluations
    )


def score_based(
    objective: AbstractScoreObjective,
    *,
    name: str = "score_based",
    **options: Unpack[ScoreOptions],
) -> Alternating:
    """A sampler trained on a loss that needs its score, and a network that learns it.

    Args:
        objective: the loss at one noisy draw, a subclass of
            `objectives.AbstractScoreObjective`.
        name: what the method is called in configs and histories.
        **options: by name,
            `network`: the sampler network, by default a mixture fitted to the particles
            of a short exploration and bent by a residual map,
            `networks.mixture(layers=0, width=64, depth=3)`;
            `score_network`: the model of the score, by default of the sampler's sizes;
            `optimiser`, `score_optimiser`: any transformation of optax, or one of ours,
            or the learning rate of ours (1e-3 and 2e-3);
            `steps` (4000), `batch_size` (256);
            `score_steps`: score steps for each of the sampler's (4);
            `score_warmup`: steps at the start that train the score alone, a number or a
            share of all: by default two fifths of them, at most 500;
            `noise`: an `objectives.Noise`, or its scale (0.1): a loss like DFT's
            squares the error of the score, which less noise makes larger;
            `estimator`: how the score is learnt, "denoising", "sliced" or "exact";
            `averaging` (0.999), `whiten` (True), `particles` (8192): see `TrainConfig`;
            `network_loss`: see `objectives.AbstractNetworkLoss`.
    """
    _refuse_unknown(name, options, ScoreOptions)
    network = as_spec(options.get("network", _BENT))
    noise = options.get("noise", 0.1)
    losses = ScoreBased(
        objective,
        noise if isinstance(noise, Noise) else Noise(noise),
        options.get("estimator", "denoising"),
        options.get("network_loss"),
    )
    # A low momentum: the score network's error is not stationary.
    own = Adam(1e-3, momentum=0.5)
    return Alternating(
        objective=losses,
        network=network,
        second=options.get("score_network", network.partner()),
        training=_training(options, TrainConfig(optimiser=own, particles=_PARTICLES)),
        second_training=_second(
            options, "score", SecondTraining(Adam(2e-3, clip=10.0))
        ),
        name=name,
    )


def DFT(
    w1: float = 1.0,
    w2: float = 1.0,
    *,
    form: dft.Form = "denoising",
    damping: float = 0.5,
    **options: Unpack[ScoreOptions],
) -> Alternating:
    """Denoising Fisher Training: see `objectives.DFT` and `score_based`.

    The paper's own divergence is `damping=0.0`: a few draws carry it away on funnels
    and heavy tails.
    """
    return score_based(dft.DFT(w1, w2, form, damping), name="dft", **options)


def KL(**options: Unpack[ScoreOptions]) -> Alternating:
    """Implicit reverse KL: see `objectives.KL` and `score_based`.

    The noise is 0.05 and the learning rate 5e-4 by default: the loss is linear in the
    error of the score, and less noise hides less of the target.
    """
    own: ScoreOptions = {"noise": 0.05, "optimiser": 5e-4}
    return score_based(kl.KL(), name="kl", **(own | options))


def Fisher(**options: Unpack[ScoreOptions]) -> Alternating:
    """Fisher training without noise: see `objectives.Fisher` and `score_based`.

    The score is learnt by exact score matching, or with estimator="sliced". On long
    curved tails, such as those of the built-in target `rosenbrock`, draws run away:
    without noise the score is not learnt where there are few.
    """
    own: ScoreOptions = {
        "noise": Noise(0.0, antithetic=False),
        "estimator": "exact",
        "optimiser": 5e-4,
    }
    return score_based(fisher.Fisher(), name="fisher", **(own | options))


def SteinCritic(penalty: float = 0.5, **options: Unpack[CriticOptions]) -> Alternating:
    """A Stein critic against the sampler: see `objectives.SteinCritic`.

    Args:
        penalty: the weight of the critic's squared size.
        **options: those of `score_based` about the sampler and its training; and
            `critic_network`: by default a perceptron of the sampler's sizes;
            `critic_optimiser`: as `optimiser`;
            `critic_steps`: critic steps for each of the sampler's (5);
            `critic_warmup`: steps at the start that train the critic alone, as
            `score_warmup`.
    """
    _refuse_unknown("critic", options, CriticOptions)
    network = as_spec(options.get("network", _BENT))
    own = Adam(5e-4, momentum=0.5)
    return Alternating(
        objective=SteinCriticObjective(penalty),
        network=network,
        second=options.get("critic_network", _critic(network.partner())),
        training=_training(options, TrainConfig(optimiser=own, particles=_PARTICLES)),
        second_training=_second(options, "critic", SecondTraining(steps=5)),
        name="critic",
    )


def _critic(partner: Any) -> Any:
    """A critic of the sizes of a model of the score."""
    if isinstance(partner, ResidualSpec):
        # A residual map starts near the target, where the best critic is small too.
        sizes = partner.width, partner.depth, partner.activation
        return MLPSpec(*sizes, final_scale=0.01)
    return partner


def single_network(
    objective: AbstractBatchObjective,
    *,
    name: str = "single_network",
    defaults: TrainConfig | None = None,
    **options: Unpack[BatchOptions],
) -> SingleNetwork:
    """A sampler trained on a loss of its draws alone.

    Args:
        objective: the loss, a subclass of `objectives.AbstractBatchObjective`.
        name: what the method is called in configs and histories.
        defaults: the training where nothing else is given.
        **options: by name,
            `network`: the sampler network, by default as that of `score_based`;
            `optimiser`: any transformation of optax, or one of ours, or the learning
            rate of ours;
            `steps`, `batch_size`, `averaging`, `whiten`, `particles`: see
            `TrainConfig`.
    """
    _refuse_unknown(name, options, BatchOptions)
    network = options.get("network", _BENT)
    training = _training(options, defaults or TrainConfig(particles=_PARTICLES))
    return SingleNetwork(
        objective=objective, network=network, training=training, name=name
    )


def KSD(
    c: float = 1.0, beta: float = -0.5, **options: Unpack[BatchOptions]
) -> SingleNetwork:
    """The kernel Stein discrepancy: see `objectives.KSD` and `single_network`.

    The loss multiplies scores of pairs of draws. Where the score has no bound, as in
    the neck of the built-in target `funnel`, training breaks down.
    """
    defaults = TrainConfig(batch_size=512, particles=_PARTICLES)
    return single_network(ksd.KSD(c, beta), name="ksd", defaults=defaults, **options)


def SteinGAN(
    heuristic: steingan.Heuristic | None = None, **options: Unpack[BatchOptions]
) -> SingleNetwork:
    """Amortised SVGD: see `objectives.SteinGAN` and `single_network`."""
    objective, defaults = (
        steingan.SteinGAN(heuristic),
        TrainConfig(batch_size=512, particles=_PARTICLES),
    )
    return single_network(objective, name="steingan", defaults=defaults, **options)


def Transport(**options: Unpack[BatchOptions]) -> SingleNetwork:
    """Reverse KL with the exact entropy, on a map of a Gaussian mixture.

    `network` is by default `networks.mixture()`; see `objectives.ReverseKL` and
    `single_network`.
    """
    own: BatchOptions = {"network": MixtureSpec()}
    defaults = TrainConfig(steps=5000, optimiser=Adam(5e-3))
    return single_network(
        reverse_kl.ReverseKL(), name="transport", defaults=defaults, **(own | options)
    )


def Flow(**options: Unpack[BatchOptions]) -> SingleNetwork:
    """Reverse KL with the exact entropy, on a coupling flow from one normal.

    `network` is by default `networks.coupling()`; see `objectives.ReverseKL` and
    `single_network`.
    """
    own: BatchOptions = {"network": CouplingSpec()}
    return single_network(
        reverse_kl.ReverseKL(), name="flow", defaults=TrainConfig(), **(own | options)
    )


def Gaussian(**options: Unpack[BatchOptions]) -> SingleNetwork:
    """A full-rank Gaussian fitted by reverse KL, with pairs of points `z` and `-z`.

    Through minibatches this is doubly stochastic variational inference (DSVI). See
    `objectives.ReverseKL` and `single_network`.
    """
    own: BatchOptions = {"network": AffineSpec()}
    defaults = TrainConfig(steps=2000, optimiser=Adam(1e-2))
    objective = reverse_kl.ReverseKL(antithetic=True)
    return single_network(
        objective, name="gaussian", defaults=defaults, **(own | options)
    )


# What `fit --method` and a run directory's config call them.
REGISTRY: dict[str, Callable[..., AbstractMethod]] = {
    "adaptive": Adaptive,
    "transport": Transport,
    "dft": DFT,
    "kl": KL,
    "fisher": Fisher,
    "critic": SteinCritic,
    "ksd": KSD,
    "steingan": SteinGAN,
    "flow": Flow,
    "gaussian": Gaussian,
}

Config = TypeVar("Config", TrainConfig, SecondTraining)


def _with(config: Config, given: Mapping[str, Any]) -> Config:
    """A config with what is given; a number is the learning rate of its optimiser."""
    changes = dict(given)
    rate = changes.get("optimiser")
    if isinstance(rate, int | float):
        assert isinstance(config.optimiser, Adam)
        changes["optimiser"] = dataclasses.replace(config.optimiser, learning_rate=rate)
    return dataclasses.replace(config, **changes)


def _training(options: Mapping[str, Any], defaults: TrainConfig) -> TrainConfig:
    names = {field.name for field in dataclasses.fields(TrainConfig)}
    return _with(defaults, {k: v for k, v in options.items() if k in names})


def _second(
    options: Mapping[str, Any], prefix: str, defaults: SecondTraining
) -> SecondTraining:
    """The training of the second network, from `score_steps` and so on."""
    given = {
        field.name: options[f"{prefix}_{field.name}"]
        for field in dataclasses.fields(SecondTraining)
        if f"{prefix}_{field.name}" in options
    }
    return _with(defaults, given)


def _refuse_unknown(name: str, given: Iterable[str], options: Any) -> None:
    known = sorted(options.__annotations__)
    for option in given:
        if option not in known:
            sizes = option in ("width", "depth", "activation", "layers", "components")
            hint = "its network's: network=networks.residual(...), or one of " * sizes
            raise UsageError(
                f"The method {name!r} has no option {option!r}; give {hint}"
                f"{', '.join(known)}."
            )
