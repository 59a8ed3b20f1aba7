"""Simulation-based calibration: many posteriors of simulated data in one program."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from pushforward._validate import whole_number
from pushforward.diagnostics.ranks import MIN_RANKS, Ranks
from pushforward.draws.names import number_names
from pushforward.errors import UsageError
from pushforward.methods import AbstractMethod
from pushforward.targets.arguments import one_key
from pushforward.targets.base import AbstractTarget
from pushforward.targets.stacked import over_data
from pushforward.targets.structure import Structure
from pushforward.training.api import fit_many
from pushforward.training.status import Fit


@dataclasses.dataclass(frozen=True)
class Calibration(Ranks):
    """Rank statistics of trained samplers.

    Attributes:
        fits: The trainings, one for each data set.
        seconds: How long all of it took.
    """

    fits: tuple[Fit, ...] = ()
    seconds: float = 0.0


def calibrate(
    key: PRNGKeyArray,
    prior: Callable[[PRNGKeyArray], Any],
    simulate: Callable[[PRNGKeyArray, Any], Any],
    target_of: Callable[[Any], AbstractTarget],
    n: int = 256,
    *,
    method: AbstractMethod | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    num_draws: int = 255,
    at_once: int = 32,
    level: float = 0.01,
    progress: bool = True,
) -> Calibration:
    """Simulation-based calibration of samplers that `fit_many` trains.

    Parameters are drawn from the prior, data are simulated from them, and a sampler is
    trained for the posterior of each data set. The rank of each parameter among draws
    of its sampler is uniform if the samplers are right, and if the density is that of
    the model that the data were simulated from.

    Args:
        key: Random key.
        prior: `prior(key)` draws parameters, the same tree as the target's.
        simulate: `simulate(key, parameters)` draws data, a tree of arrays.
        target_of: `target_of(data)` is the posterior: a `Target` of these parameters.
        n: How many data sets.
        method: As for `fit_many`.
        steps: As for `fit_many`.
        batch_size: As for `fit_many`.
        num_draws: Draws of each sampler that the parameter is ranked among.
        at_once: How many samplers are trained in one program.
        level: The chance that calibrated samplers leave the band anywhere.
        progress: As for `fit_many`.

    Returns:
        The ranks, and whether they are inside a band that is simultaneous over all
        parameters; `print` it.
    """
    key, n = one_key(key), whole_number("n", n, MIN_RANKS)
    num_draws = whole_number("num_draws", num_draws, 2)
    at_once = whole_number("at_once", at_once)
    begun = time.monotonic()
    prior_key, data_key, fit_key, draw_key = jax.random.split(key, 4)
    parameters = [prior(k) for k in jax.random.split(prior_key, n)]
    data = [
        simulate(k, p)
        for k, p in zip(jax.random.split(data_key, n), parameters, strict=True)
    ]
    targets = over_data(target_of, data)
    structure = targets[0].structure
    try:
        truth = jax.tree.map(lambda *a: jnp.stack(a), *parameters)
        structure.flatten_draws(truth)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"prior(key) must draw the parameters of the target, {structure} ({error})."
        ) from error
    fits: list[Fit] = []
    keys = jax.random.split(fit_key, n)
    for start in range(0, n, at_once):
        part = slice(start, start + at_once)
        fits += fit_many(
            keys[part],
            targets[part],
            method,
            steps=steps,
            batch_size=batch_size,
            progress=progress,
        )
    draws = [
        each.sampler.sample(k, num_draws)
        for each, k in zip(fits, jax.random.split(draw_key, n), strict=True)
    ]
    ranks = _ranks(structure, truth, draws)
    seconds = time.monotonic() - begun
    return Calibration(ranks, num_draws, level, tuple(fits), seconds)


def _ranks(structure: Structure, truth: Any, draws: list[Any]) -> dict[str, np.ndarray]:
    """How many draws are below each number of the parameters, by name."""

    def below(i):
        return jax.tree.map(
            lambda d, t: np.sum(np.asarray(d) < np.asarray(t)[i], axis=0),
            draws[i],
            truth,
        )

    every = [below(i) for i in range(len(draws))]
    stacked = jax.tree.map(lambda *a: np.stack(a), *every)
    found = {}
    for leaf, value in zip(structure.leaves, jax.tree.leaves(stacked), strict=True):
        names = number_names(leaf.name or "x", leaf.shape)
        if structure.own_names is not None:
            names = list(structure.own_names)
        flat = value.reshape(len(draws), -1)
        found |= dict(zip(names, flat.T, strict=True))
    return found
