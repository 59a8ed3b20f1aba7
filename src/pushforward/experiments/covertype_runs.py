"""How a sampler of the second experiment is run, and how its draws are judged."""

import dataclasses
import time
from collections.abc import Collection
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import pushforward as pf
from pushforward import mcmc
from pushforward.experiments.covertype_posterior import (
    posterior,
    predict,
    prior_draws,
)
from pushforward.experiments.covertype_reference import Reference
from pushforward.experiments.covertype_settings import (
    IN_PASSING,
    PREDICTING,
    Classic,
    Scale,
)
from pushforward.experiments.data import Classification
from pushforward.methods.base import AbstractMethod
from pushforward.methods.recipe import Choose, Screen


@dataclasses.dataclass(frozen=True)
class Judge:
    """Test rows and the reference: what draws are held against."""

    data: Classification
    reference: Reference
    scale: Scale

    def predictions(self, draws: Float[Any, "n d"]) -> dict[str, float]:
        """Accuracy and mean log likelihood on the test rows."""
        dtype = jnp.result_type(float)
        rows = jnp.asarray(self.data.test_x, dtype)
        labels = jnp.asarray(self.data.test_y, dtype)
        found = predict(jnp.asarray(draws, dtype), rows, labels)
        return {
            "accuracy": float(found.accuracy),
            "log_likelihood": float(found.log_likelihood),
        }

    def points(self, key: PRNGKeyArray, x: Float[Array, "n d"]) -> dict[str, float]:
        """All that is asked of a fixed set of points."""
        return {
            **self.predictions(x[:PREDICTING]),
            **self.reference.errors(x),
            "sliced_w2": self.reference.distance(key, x),
        }

    def sampler(self, key: PRNGKeyArray, sampler: pf.Sampler) -> dict[str, float]:
        """All that is asked of a sampler, each on fresh draws."""
        few, many, some, directions = jax.random.split(key, 4)
        return {
            **self.predictions(sampler.sample_flat(few, PREDICTING)),
            **self.reference.errors(sampler.sample_flat(many, self.scale.moment_draws)),
            "sliced_w2": self.reference.distance(
                directions, sampler.sample_flat(some, self.scale.w2_draws)
            ),
        }

    def in_passing(self, key: PRNGKeyArray, sampler: pf.Sampler) -> dict[str, float]:
        """What is looked at during training: accuracy, and the error of the means."""
        few, many = jax.random.split(key)
        errors = self.reference.errors(_draw(sampler, many, IN_PASSING))
        found = self.predictions(_draw(sampler, few, PREDICTING))
        return {"accuracy": found["accuracy"], "mean_error": errors["mean_error"]}


@eqx.filter_jit
def _draw(sampler: pf.Sampler, key: PRNGKeyArray, n: int):
    return sampler.block(key, n)


def draw_microseconds(sampler: pf.Sampler, n: int = 10_000, repeats: int = 20) -> float:
    """The median time of one of `n` draws in one pass, compiled beforehand."""
    spent = []
    for i in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(_draw(sampler, jax.random.key(i), n))
        spent.append(time.perf_counter() - start)
    return 1e6 * float(np.median(spent[1:])) / n


def run_classic(
    key: PRNGKeyArray, data: Classification, what: Classic, repeats: int
) -> tuple[Float[Array, "r n d"], int]:
    """The last points of every repeat, and the rows that one repeat looked at."""
    target = posterior(data, batch_size=what.batch_size)
    steps = max(round(what.epochs * target.size / target.batch_size), what.points)
    start_key, run_key = jax.random.split(key)
    if what.kind == "sgld":
        starts = prior_draws(start_key, repeats, target.dim)

        def size(t: Float[Array, ""]) -> Float[Array, ""]:
            # The paper's rate is taken to belong to the sum over a minibatch: on the
            # sum over all rows the steps would be of the order of 10^4, on the mean
            # three epochs would lead nowhere.
            return 0.1 * (t + 1) ** -0.55 * target.batch_size / target.size

        run = mcmc.sgld(
            run_key, target, starts, steps, step_size=size, keep=what.points
        )
        return run.kept, steps * target.batch_size
    keys = jax.random.split(run_key, repeats)
    starts = prior_draws(start_key, repeats * what.points, target.dim)

    def one(key, x):
        return mcmc.svgd(key, target, x, steps, step_size=0.05).positions

    ends = jax.vmap(one)(keys, starts.reshape(repeats, what.points, target.dim))
    return ends, what.points * steps * target.batch_size


def row_evaluations(
    evaluations: int,
    run: Collection[str],
    method: AbstractMethod,
    target: pf.MinibatchTarget,
) -> int:
    """How often a fit with so many evaluations of the target looked at a row of data.

    The first look, and the recipe's decisions, see all rows; a step sees a minibatch
    for every point, twice with the control variate. Only the stages in `run` count.
    """
    seen = looks = 0
    centred = getattr(method, "whiten", True)
    for stage in method.stages():
        if type(stage).__name__.lower() not in run:
            continue
        stage = stage.resolve(target, jax.default_backend())
        count = (stage.steps or 0) * stage.evaluations * stage.minibatches
        whole = isinstance(stage, Screen | Choose)
        seen += count * (target.size if whole else target.batch_size * (1 + centred))
        looks += count
    return seen + max(evaluations - looks, 0) * target.size


def break_even(
    training: float, microseconds: float, warmup: float, per_effective_draw: float
) -> float | None:
    """After how many draws training has paid for itself against NUTS.

    With `T` seconds of training, `t` a draw, `W` of NUTS' warm-up and `s` an effective
    draw of its: the n at which `T + t n = W + s n`; None if there is no such n.
    """
    gain = per_effective_draw - 1e-6 * microseconds
    if gain <= 0:
        return None
    return max(training - warmup, 0.0) / gain
