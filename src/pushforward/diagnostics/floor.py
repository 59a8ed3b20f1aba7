"""The floor: what exact draws score, and whether a sampler has reached it.

Exact draws fail naive bars: their own KSD is positive, and one sliced W2 in four
exceeds its mean by a fifth. So a sampler is judged by the mean over independent sets of
draws, beside the same mean of exact draws: it is *at the floor* if its mean lies inside
the one-sided 99 % interval of exact draws' means.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward.diagnostics.ksd import ksd
from pushforward.diagnostics.wasserstein import sliced_w2
from pushforward.targets.base import AbstractTarget

Statistic = Literal["ksd_v", "ksd_u", "sliced_w2"]
Draw = Callable[[PRNGKeyArray, int], Float[Array, "n d"]]


@dataclasses.dataclass(frozen=True)
class Score:
    """A sampler's mean score beside that of exact draws.

    Attributes:
        mean: over the sampler's sets of draws.
        sd: of a single set.
        sets: how many sets.
        exact: the mean over sets of exact draws of the same size.
        exact_sd: of a single set of exact draws.
        bound: exact draws' means exceed it in 1 % of cases.
    """

    mean: float
    sd: float
    sets: int
    exact: float
    exact_sd: float
    bound: float

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return self.sd / self.sets**0.5

    @property
    def ratio(self) -> float:
        """The mean as a multiple of exact draws'."""
        return self.mean / self.exact

    @property
    def at_floor(self) -> bool:
        """Whether exact draws would do no better."""
        return self.mean <= self.bound


class Floor:
    """What exact draws of a target score, in sets of `n`.

    Sliced W2 is measured to fresh exact draws, in units of the target's standard
    deviations.
    """

    def __init__(
        self,
        key: PRNGKeyArray,
        target: AbstractTarget,
        n: int,
        *,
        sets: int = 100,
        statistics: Sequence[Statistic] = ("ksd_v", "ksd_u", "sliced_w2"),
    ):
        """Draws `sets` sets of `n` exact draws and scores them."""
        self.target, self.n, self.statistics = target, n, tuple(statistics)
        scale_key, key = jax.random.split(key)
        self.scale = jnp.std(target.sample_flat(scale_key, 100_000), axis=0)
        self.exact = self.scores(key, target.sample_flat, sets)

    def scores(self, key: PRNGKeyArray, draw: Draw, sets: int) -> dict[str, np.ndarray]:
        """Every statistic of every set of `draw(key, n)`."""
        found: dict[str, list[float]] = {name: [] for name in self.statistics}
        for i in range(sets):
            own, exact, slices = jax.random.split(jax.random.fold_in(key, i), 3)
            x = draw(own, self.n)
            if "sliced_w2" in found:
                y = self.target.sample_flat(exact, self.n)
                scale = self.scale[None]
                found["sliced_w2"].append(
                    float(sliced_w2(slices, x / scale, y / scale))
                )
            if "ksd_u" in found or "ksd_v" in found:
                result = ksd(x, _scores(self.target, x))
                for name, value in (("ksd_v", result.v), ("ksd_u", result.u)):
                    if name in found:
                        found[name].append(float(value))
        return {name: np.array(values) for name, values in found.items()}

    def judge(
        self, key: PRNGKeyArray, draw: Draw, *, sets: int = 20, comparisons: int = 1
    ) -> dict[str, Score]:
        """A sampler's scores beside exact draws'.

        Args:
            key: random key, used for nothing else.
            draw: `draw(key, n)`, such as `Sampler.sample_flat`.
            sets: how many sets of draws.
            comparisons: how many targets are judged (the 1 % is shared among them).
        """
        judged = {}
        for name, ours in self.scores(key, draw, sets).items():
            exact = self.exact[name]
            sd = exact.std(ddof=1)
            # The sampler's mean, were it exact, scatters about the mean estimated here.
            spread = sd * np.sqrt(1 / len(ours) + 1 / len(exact))
            quantile = scipy.stats.t.ppf(1 - 0.01 / comparisons, len(exact) - 1)
            # A sampler that has run away has no spread.
            with np.errstate(invalid="ignore"):
                own_sd = float(ours.std(ddof=1))
            judged[name] = Score(
                mean=float(ours.mean()),
                sd=own_sd,
                sets=sets,
                exact=float(exact.mean()),
                exact_sd=float(sd),
                bound=float(exact.mean() + quantile * spread),
            )
        return judged


@eqx.filter_jit
def _scores(target: AbstractTarget, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    return jax.vmap(target.score)(x)
