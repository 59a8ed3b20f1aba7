"""What to sample from: the kinds of target.

Every kind answers one internal call, `score(x, *, key=None, sigma=None)`, for one
unconstrained point `x`. Targets are pytrees: their data are arguments of the compiled
programs that use them, not constants inside.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pushforward.errors import UsageError
from pushforward.targets.structure import Structure


class AbstractTarget(eqx.Module):
    """A distribution on R^d known through its score, and perhaps its log density."""

    structure: eqx.AbstractVar[Structure]
    exact: eqx.AbstractVar[Callable[..., Any] | None]
    has_density: eqx.AbstractVar[bool]
    is_stochastic: eqx.AbstractVar[bool]
    # The noise levels at which the score is known, where it depends on one.
    sigma_range: eqx.AbstractVar[tuple[float, float] | None]

    @property
    def has_values(self) -> bool:
        """Whether log q itself is known at a point, and not only through its score."""
        return self.has_density and not self.is_stochastic

    @property
    def is_noise_conditional(self) -> bool:
        """Whether the score depends on a noise level."""
        return self.sigma_range is not None

    @property
    def dim(self) -> int:
        """The number of unconstrained coordinates."""
        return self.structure.size

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each coordinate."""
        return self.structure.names

    def score(
        self,
        x: Float[Array, " d"],
        *,
        key: PRNGKeyArray | None = None,
        sigma: Float[Array, ""] | float | None = None,
    ) -> Float[Array, " d"]:
        """The gradient of the log density at `x`.

        Args:
            x: one unconstrained point.
            key: draws the minibatch, where the target is seen through one; without a
                key all data are used.
            sigma: the noise level, where the target depends on one.
        """
        # Targets are computed at the highest matmul precision, whatever networks use.
        with jax.default_matmul_precision("highest"):
            return self._score(x, key, sigma)

    def log_density(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The un-normalised log density at one unconstrained point `x`."""
        with jax.default_matmul_precision("highest"):
            return self._log_density(x)

    def sample(self, key: PRNGKeyArray, n: int) -> Any:
        """Exact draws, in the user's own tree."""
        if self.exact is None:
            raise UsageError(
                "This target has no exact sampler; give it one as sample=, or compare "
                "with a reference."
            )
        return self.exact(key, n)

    def sample_flat(self, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]:
        """Exact draws as an array of unconstrained coordinates."""
        return self.structure.flatten_draws(self.sample(key, n))

    @abc.abstractmethod
    def _score(self, x, key, sigma) -> Float[Array, " d"]:
        """`score`, for the kind at hand."""

    @abc.abstractmethod
    def _log_density(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """`log_density`, for the kind at hand."""


class Target(AbstractTarget):
    """A density given by its un-normalised log."""

    function: Callable[[Any], Float[Array, ""]]
    exact: Callable[..., Any] | None
    modes: Float[Array, "k d"] | None
    structure: Structure = eqx.field(static=True)
    has_density: ClassVar[bool] = True
    is_stochastic: ClassVar[bool] = False
    sigma_range: ClassVar[tuple[float, float] | None] = None

    def __init__(
        self,
        log_density: Callable[[Any], Float[Array, ""]],
        dim: int | None = None,
        *,
        example: Any = None,
        names: tuple[str, ...] | None = None,
        sample: Callable[..., Any] | None = None,
        modes: Float[Array, "k d"] | None = None,
        structure: Structure | None = None,
    ):
        """A target from a log density.

        Args:
            log_density: a JAX function of one point (a vector, or a tree like
                `example`) that returns a scalar. It need not be normalised.
            dim: the number of coordinates, where the point is a vector.
            example: a tree with the shapes of the parameters, instead of `dim`.
            names: a name for each coordinate, where `dim` is given.
            sample: `sample(key, n)`, where exact draws exist.
            modes: the modes, where they are known.
            structure: made by `constrained`; not for direct use.
        """
        if not callable(log_density):
            raise UsageError(
                "log_density must be a function of one point, but it is a "
                f"{type(log_density).__name__}."
            )
        self.function = log_density
        self.exact = sample
        self.modes = modes
        self.structure = structure or _structure(dim, example, names)

    def _log_density(self, x):
        value = self.function(self.structure.unflatten(x))
        return value + self.structure.log_det(x)

    def _score(self, x, key, sigma):
        return jax.grad(self._log_density)(x)


class ScoreTarget(AbstractTarget):
    """A score without a density."""

    function: Callable[[Any], Any]
    exact: Callable[..., Any] | None
    structure: Structure = eqx.field(static=True)
    has_density: ClassVar[bool] = False
    is_stochastic: ClassVar[bool] = False
    sigma_range: ClassVar[tuple[float, float] | None] = None

    def __init__(
        self,
        score: Callable[[Any], Any],
        dim: int | None = None,
        *,
        names: tuple[str, ...] | None = None,
        sample: Callable[..., Any] | None = None,
    ):
        """A target from `score(x)`, a function from a vector to a vector."""
        self.function = score
        self.exact = sample
        self.structure = _structure(dim, None, names)

    def _score(self, x, key, sigma):
        return self.function(x)

    def _log_density(self, x):
        _refuse_density(self)


class MinibatchTarget(AbstractTarget):
    """A posterior whose likelihood is a sum over data, seen through minibatches.

    The score of a minibatch B of the N data is unbiased. With a centre `m` (see
    `centred_at`) it has the control variate of SVRG,
    `full_score(m) + N/B sum_i w_i (score_i(x) - score_i(m))`, small where it matters.

    Observations are picked alike, or (see `picking`) those that matter more often:
    with probability `p_i`, and weight `w_i = 1 / (N p_i)`. A row that is alone in what
    it tells would otherwise be in few minibatches, and count N/B-fold there.
    """

    log_prior: Callable[[Any], Float[Array, ""]]
    log_likelihood: Callable[[Any, Any], Float[Array, ""]]
    data: Any
    exact: Callable[..., Any] | None
    centre: Float[Array, " d"] | None
    centre_score: Float[Array, " d"] | None
    # Cumulative whole numbers: i is picked where a draw falls below `picks[i]` first.
    picks: Int[Array, " n"] | None
    structure: Structure = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)
    has_density: ClassVar[bool] = True
    is_stochastic: ClassVar[bool] = True
    sigma_range: ClassVar[tuple[float, float] | None] = None

    def __init__(
        self,
        log_prior: Callable[[Any], Float[Array, ""]],
        log_likelihood: Callable[[Any, Any], Float[Array, ""]],
        data: Any,
        dim: int | None = None,
        *,
        example: Any = None,
        names: tuple[str, ...] | None = None,
        sample: Callable[..., Any] | None = None,
        batch_size: int = 500,
    ):
        """A posterior from a prior and the log likelihood of one observation.

        Args:
            log_prior: log prior of the parameters.
            log_likelihood: `log_likelihood(parameters, datum)` of one observation.
            data: a tree of arrays whose leading axis runs over the observations.
            dim: the number of coordinates, where the parameters are a vector.
            example: a tree with the shapes of the parameters, instead of `dim`.
            names: a name for each coordinate.
            sample: `sample(key, n)`, where exact draws exist.
            batch_size: how many observations one evaluation of the score looks at.
        """
        lengths = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(data)}
        if len(lengths) != 1 or () in lengths:
            raise UsageError(
                "data must be arrays with one common leading axis, the observations; "
                f"their leading axes are {sorted(lengths)}."
            )
        (size,) = lengths.pop()
        if size < 1 or batch_size < 1:
            raise UsageError(
                f"A minibatch needs observations, but there are {size} of them and "
                f"batch_size is {batch_size}."
            )
        self.log_prior, self.log_likelihood = log_prior, log_likelihood
        self.data = jax.tree.map(jnp.asarray, data)
        self.exact = sample
        self.centre = self.centre_score = self.picks = None
        self.structure = _structure(dim, example, names)
        self.batch_size = min(int(batch_size), size)

    @property
    def size(self) -> int:
        """The number of observations."""
        return jax.tree.leaves(self.data)[0].shape[0]

    def _prior(self, x):
        return self.log_prior(self.structure.unflatten(x)) + self.structure.log_det(x)

    def _likelihood(self, x, data, weights=None):
        parameters = self.structure.unflatten(x)
        terms = jax.vmap(lambda d: self.log_likelihood(parameters, d))(data)
        if weights is not None:
            terms = terms * weights.astype(terms.dtype)
        return jnp.sum(terms)

    def _log_density(self, x):
        return self._prior(x) + self._likelihood(x, self.data)

    def _pick(self, key):
        """The numbers of the observations in a minibatch, and their weights."""
        # With replacement: independent, and free of a permutation of all N. In 32-bit,
        # so that a key picks the same observations whatever the program's precision.
        shape = (self.batch_size,)
        if self.picks is None:
            return jax.random.randint(key, shape, 0, self.size, jnp.int32), None
        # In whole numbers: a sum of N floats would blur the smallest probabilities.
        draws = jax.random.randint(key, shape, 0, self.picks[-1], jnp.int32)
        chosen = jnp.searchsorted(self.picks, draws, side="right")
        before = jnp.where(chosen > 0, self.picks[chosen - 1], 0)
        share = (self.picks[chosen] - before) / self.picks[-1]
        return chosen, 1 / (self.size * share)

    def _score(self, x, key, sigma):
        if key is None:
            return jax.grad(self._log_density)(x)
        chosen, weights = self._pick(key)
        batch = jax.tree.map(lambda a: a[chosen], self.data)
        factor = self.size / self.batch_size
        likelihood = jax.grad(self._likelihood)
        if self.centre is None or self.centre_score is None:
            return jax.grad(self._prior)(x) + factor * likelihood(x, batch, weights)
        prior = jax.grad(self._prior)(x) - jax.grad(self._prior)(self.centre)
        difference = likelihood(x, batch, weights) - likelihood(
            self.centre, batch, weights
        )
        return self.centre_score + prior + factor * difference

    def picking(self, importance: Float[Array, " n"]) -> "MinibatchTarget":
        """This target with observations picked by their importance.

        Half of the picks are alike for all, which bounds every weight by 2; the other
        half are in proportion to `importance`, a number of at least 0 for each.
        """
        return eqx.tree_at(
            lambda t: t.picks,
            self,
            picks(importance),
            is_leaf=lambda leaf: leaf is None,
        )

    def centred_at(self, centre: Float[Array, " d"]) -> "MinibatchTarget":
        """This target with a control variate at `centre`: one pass over the data."""
        return eqx.tree_at(
            lambda t: (t.centre, t.centre_score),
            self,
            (centre, self.score(centre)),
            is_leaf=lambda leaf: leaf is None,
        )


class NoiseConditionalTarget(AbstractTarget):
    """A score that depends on the noise level: that of `q * N(0, sigma^2)`."""

    function: Callable[[Any, Any], Any]
    exact: Callable[..., Any] | None
    structure: Structure = eqx.field(static=True)
    sigma_range: tuple[float, float] = eqx.field(static=True)
    has_density: ClassVar[bool] = False
    is_stochastic: ClassVar[bool] = False

    def __init__(
        self,
        score: Callable[[Any, Any], Any],
        dim: int | None = None,
        *,
        sigma_range: tuple[float, float],
        names: tuple[str, ...] | None = None,
        sample: Callable[..., Any] | None = None,
    ):
        """A target from `score(x, sigma)`, trusted for sigma in `sigma_range`."""
        low, high = map(float, sigma_range)
        if not 0 < low <= high:
            raise UsageError(
                f"sigma_range must be two positive numbers in order, not {sigma_range}."
            )
        self.function = score
        self.exact = sample
        self.structure = _structure(dim, None, names)
        self.sigma_range = (low, high)

    def _score(self, x, key, sigma):
        level = self.sigma_range[0] if sigma is None else sigma
        return self.function(x, jnp.asarray(level, x.dtype))

    def _log_density(self, x):
        _refuse_density(self)


def picks(importance: Float[Array, " n"]) -> Int[Array, " n"]:
    """Cumulative whole numbers by which observations are picked: see `picking`."""
    n = importance.shape[0]
    # So that their sum stays below 2^31 and each is at least one.
    total = 2.0**30 - n
    mean = jnp.mean(importance)
    relative = jnp.where(mean > 0, importance / jnp.where(mean > 0, mean, 1.0), 1.0)
    shares = (0.5 + 0.5 * relative) / n
    return jnp.cumsum(jnp.ceil(total * shares).astype(jnp.int32), dtype=jnp.int32)


def _refuse_density(target: AbstractTarget) -> NoReturn:
    raise UsageError(
        f"A {type(target).__name__} has a score but no log density, which this needs."
    )


def _structure(dim: int | None, example: Any, names: tuple[str, ...] | None):
    if (dim is None) == (example is None):
        raise UsageError(
            "Say the shape of the parameters once: either dim= (a vector) or example= "
            "(a tree of arrays)."
        )
    if dim is not None:
        return Structure.vector(dim, names)
    if names is not None:
        raise UsageError(
            "names= goes with dim=; a tree's own keys name its coordinates."
        )
    return Structure.of(example)
