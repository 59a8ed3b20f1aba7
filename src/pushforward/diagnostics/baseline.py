"""The baseline of exact draws, and whether a sampler is as good.

Exact draws fail naive bars: their own KSD is positive, and one sliced W2 in four
exceeds its mean by a fifth. So a sampler is judged by the mean over independent sets of
draws, beside the same mean of exact draws: it is *at the floor*, indistinguishable from
exact draws, if its mean lies inside the one-sided 99 % interval of their means.
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
class BaselineComparison:
    """The mean of a statistic over a sampler's draws, beside that of exact draws.

    Attributes:
        mean: The mean over the sampler's sets of draws.
        sd: The standard deviation of a single set.
        sets: How many sets.
        exact: The mean over sets of exact draws of the same size.
        exact_sd: The standard deviation of a single set of exact draws.
        bound: Exact draws' means exceed it in 1 % of cases.
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
    def indistinguishable(self) -> bool:
        """Whether exact draws would do no better."""
        return self.mean <= self.bound


class ExactBaseline:
    """The statistics of exact draws of a target, in sets of `n`.

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
        """Draws `sets` sets of `n` exact draws and computes their statistics.

        Args:
            key: Random key.
            target: A target with exact draws.
            n: How many draws make a set.
            sets: How many sets.
            statistics: Which statistics.
        """
        self.target, self.n, self.statistics = target, n, tuple(statistics)
        scale_key, key = jax.random.split(key)
        self.scale = jnp.std(target.sample_flat(scale_key, 100_000), axis=0)
        self.exact = self.measure(key, target.sample_flat, sets)

    def measure(
        self, key: PRNGKeyArray, draw: Draw, sets: int
    ) -> dict[str, np.ndarray]:
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

    def compare(
        self, key: PRNGKeyArray, draw: Draw, *, sets: int = 20, comparisons: int = 1
    ) -> dict[str, BaselineComparison]:
        """A sampler's statistics beside those of exact draws.

        Args:
            key: Random key, used for nothing else.
            draw: `draw(key, n)`, such as `sampler.unconstrained().sample`.
            sets: How many sets of draws.
            comparisons: How many targets are compared (the 1 % is shared among them).
        """
        compared = {}
        for name, ours in self.measure(key, draw, sets).items():
            exact = self.exact[name]
            sd = exact.std(ddof=1)
            # The sampler's mean, were it exact, scatters about the mean estimated here.
            spread = sd * np.sqrt(1 / len(ours) + 1 / len(exact))
            quantile = scipy.stats.t.ppf(1 - 0.01 / comparisons, len(exact) - 1)
            # A sampler that has run away has no spread.
            with np.errstate(invalid="ignore"):
                own_sd = float(ours.std(ddof=1))
            compared[name] = BaselineComparison(
                mean=float(ours.mean()),
                sd=own_sd,
                sets=sets,
                exact=float(exact.mean()),
                exact_sd=float(sd),
                bound=float(exact.mean() + quantile * spread),
            )
        return compared


@eqx.filter_jit
def _scores(target: AbstractTarget, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    return jax.vmap(target.score)(x)
