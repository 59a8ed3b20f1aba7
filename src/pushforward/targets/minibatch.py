"""A posterior whose likelihood is a sum over data, seen through minibatches."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pushforward.errors import UsageError
from pushforward.targets.base import (
    SCALAR,
    AbstractDeterministicTarget,
    AbstractTarget,
    Constraints,
    Knowledge,
    UserFunction,
    VarianceReduction,
    as_function,
    make_structure,
    view_functions,
)
from pushforward.targets.structure import Structure


class MinibatchTarget(AbstractTarget):
    """A posterior whose likelihood is a sum over data, seen through minibatches.

    The score of a minibatch B of the N observations is unbiased. With a centre `m` (see
    `with_control_variate`) it has the control variate of SVRG,
    `full_score(m) + N/B sum_i w_i (score_i(x) - score_i(m))`, small where it matters.

    Observations are drawn uniformly, or (see `with_importance_sampling`) the important
    ones more often: with probability `p_i`, and weight `w_i = 1 / (N p_i)`. Otherwise
    an observation that alone determines a parameter would be in few minibatches, and
    count N/B-fold there.
    """

    log_prior: Callable[[Any], Float[Array, ""]]
    log_likelihood: Callable[[Any, Any], Float[Array, ""]]
    data: Any
    sample_fn: Callable[..., Any] | None
    variance_reduction: VarianceReduction
    structure: Structure = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)

    def __init__(
        self,
        log_prior: Callable[[Any], Float[Array, ""]],
        log_likelihood: Callable[[Any, Any], Float[Array, ""]],
        data: Any,
        dim: int | None = None,
        *,
        example: Any = None,
        constraints: Constraints | None = None,
        names: tuple[str, ...] | None = None,
        sample: Callable[..., Any] | None = None,
        batch_size: int = 500,
    ):
        """A posterior from a prior and the log likelihood of one observation.

        Args:
            log_prior: log prior of the parameters.
            log_likelihood: `log_likelihood(parameters, datum)` of one observation.
            data: a tree of arrays whose leading axis runs over the observations.
            dim: the length of the parameters, where they are a vector.
            example: a tree with the shapes of the parameters, instead of `dim`.
            constraints: as for `Target`; the log-Jacobian is counted once, with the
                prior.
            names: a name for each coordinate, where `dim` is given.
            sample: `sample(key, n)`, where exact draws exist, which are constrained.
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
        self.log_prior = as_function("log_prior", log_prior)
        self.log_likelihood = as_function("log_likelihood", log_likelihood)
        self.data = jax.tree.map(jnp.asarray, data)
        self.sample_fn = sample
        self.variance_reduction = VarianceReduction()
        self.structure = make_structure(dim, example, names, constraints)
        self.batch_size = min(int(batch_size), size)

    @property
    def kind(self) -> type[AbstractTarget]:
        return MinibatchTarget

    @property
    def knowledge(self) -> Knowledge:
        size = jax.tree.leaves(self.data)[0].shape[0]
        return Knowledge(
            no_values=(
                f"a MinibatchTarget is seen through minibatches, and each value of its "
                f"log density is a sum over {size:,} observations"
            ),
            num_terms=size,
            through_minibatches=True,
        )

    def with_control_variate(self, at: Float[Array, " d"]) -> "MinibatchTarget":
        """This target with a control variate centred at `at`: one pass over the data.

        Args:
            at: an unconstrained point, best near the mode.
        """
        return self.reduce_variance(VarianceReduction(at, self.score(at)))

    def with_importance_sampling(
        self, importance: Float[Array, " n"]
    ) -> "MinibatchTarget":
        """This target with observations drawn by their importance.

        Half of the probability is uniform, which bounds every weight by 2; the other
        half is proportional to the importance.

        Args:
            importance: a number of at least 0 for each observation.
        """
        table = sampling_table(importance)
        return self.reduce_variance(VarianceReduction(sampling_table=table))

    def reduce_variance(self, found: VarianceReduction | None) -> "MinibatchTarget":
        if found is None:
            return self
        merged = eqx.combine(found, self.variance_reduction)
        return eqx.tree_at(
            lambda t: t.variance_reduction,
            self,
            merged,
            is_leaf=lambda leaf: isinstance(leaf, VarianceReduction),
        )

    def minibatch(self, key: PRNGKeyArray) -> "Minibatch":
        chosen, weights = self._draw_minibatch(key)
        rows = jax.tree.map(lambda a: a[chosen], self.data)
        return Minibatch(self, rows, weights)

    def subsample(self, n: int) -> "MinibatchTarget":
        if self.num_terms <= n:
            return self
        step = -(-self.num_terms // n)
        fewer = jax.tree.map(lambda a: a[::step], self.data)
        # What reduces the variance is known of all data only.
        return eqx.tree_at(
            lambda t: (t.data, t.variance_reduction),
            self,
            (fewer, VarianceReduction()),
            is_leaf=lambda leaf: isinstance(leaf, VarianceReduction),
        )

    def user_functions(self) -> tuple[UserFunction, ...]:
        prior, likelihood, tree = (
            self.log_prior,
            self.log_likelihood,
            self.structure.unflatten,
        )
        datum = jax.tree.map(lambda a: a[0], self.data)
        return (
            UserFunction(
                "log_prior", prior, lambda x: prior(tree(x)), SCALAR, self._prior
            ),
            UserFunction(
                "log_likelihood",
                likelihood,
                lambda x: likelihood(tree(x), datum),
                SCALAR,
                lambda x: self._likelihood(x, self.data),
                lambda x: self._likelihoods(x, self.data),
                self.data,
            ),
        )

    def _prior(self, x):
        """The log prior of an unconstrained point, with the log-Jacobian."""
        return self.log_prior(self.structure.unflatten(x)) + self.structure.log_det(x)

    def _likelihood(self, x, rows, weights=None):
        """The weighted sum of the log likelihoods of some observations."""
        terms = self._likelihoods(x, rows)
        if weights is not None:
            terms = terms * weights.astype(terms.dtype)
        return jnp.sum(terms)

    def _likelihoods(self, x, rows):
        parameters = self.structure.unflatten(x)
        return jax.vmap(lambda datum: self.log_likelihood(parameters, datum))(rows)

    def _draw_minibatch(self, key):
        """The numbers of the observations in a minibatch, and their weights."""
        # With replacement: independent, and free of a permutation of all N. In 32-bit,
        # so that a key picks the same observations whatever the program's precision.
        shape, table = (self.batch_size,), self.variance_reduction.sampling_table
        if table is None:
            chosen = jax.random.randint(key, shape, 0, self.num_terms, jnp.int32)
            return chosen, None
        # In whole numbers: a sum of N floats would blur the smallest probabilities.
        draws = jax.random.randint(key, shape, 0, table[-1], jnp.int32)
        chosen = jnp.searchsorted(table, draws, side="right")
        before = jnp.where(chosen > 0, table[chosen - 1], 0)
        share = (table[chosen] - before) / table[-1]
        return chosen, 1 / (self.num_terms * share)

    def _log_density(self, x):
        return self._prior(x) + self._likelihood(x, self.data)

    def _score(self, x, key, sigma):
        if key is None:
            return jax.grad(self._log_density)(x)
        return self.minibatch(key).score(x)


class Minibatch(AbstractDeterministicTarget):
    """One minibatch of a posterior: its score estimates that of the posterior.

    Its log density estimates that of the posterior up to a constant, unbiased too.
    """

    posterior: MinibatchTarget
    rows: Any
    weights: Float[Array, " n"] | None

    def __init__(
        self,
        posterior: MinibatchTarget,
        rows: Any,
        weights: Float[Array, " n"] | None,
    ):
        self.posterior, self.rows, self.weights = posterior, rows, weights

    @property
    def structure(self) -> Structure:
        """That of the posterior."""
        return self.posterior.structure

    @property
    def sample_fn(self) -> Callable[..., Any] | None:
        """Exact draws would be of the posterior, and not of this."""
        return None

    @property
    def kind(self) -> type[AbstractTarget]:
        return Minibatch

    @property
    def knowledge(self) -> Knowledge:
        return Knowledge(num_terms=self.posterior.batch_size)

    def user_functions(self) -> tuple[UserFunction, ...]:
        return view_functions(self)

    @property
    def _factor(self) -> float:
        return self.posterior.num_terms / self.posterior.batch_size

    def _likelihood(self, x):
        return self.posterior._likelihood(x, self.rows, self.weights)

    def _log_density(self, x):
        found, prior = self.posterior.variance_reduction, self.posterior._prior
        value = prior(x) + self._factor * self._likelihood(x)
        if found.centre is None or found.centre_score is None:
            return value
        at_centre = jax.grad(prior)(found.centre) + self._factor * jax.grad(
            self._likelihood
        )(found.centre)
        return value + (found.centre_score - at_centre) @ (x - found.centre)

    def _score(self, x, key, sigma):
        prior, likelihood = jax.grad(self.posterior._prior), jax.grad(self._likelihood)
        found = self.posterior.variance_reduction
        if found.centre is None or found.centre_score is None:
            return prior(x) + self._factor * likelihood(x)
        difference = likelihood(x) - likelihood(found.centre)
        return (
            found.centre_score
            + (prior(x) - prior(found.centre))
            + self._factor * difference
        )


def sampling_table(importance: Float[Array, " n"]) -> Int[Array, " n"]:
    """Cumulative whole numbers by which observations are drawn.

    Observation i is drawn where a uniform whole number falls below `table[i]` first.

    Args:
        importance: as for `MinibatchTarget.with_importance_sampling`.
    """
    n = importance.shape[0]
    # So that their sum stays below 2^31 and each is at least one.
    total = 2.0**30 - n
    mean = jnp.mean(importance)
    relative = jnp.where(mean > 0, importance / jnp.where(mean > 0, mean, 1.0), 1.0)
    shares = (0.5 + 0.5 * relative) / n
    return jnp.cumsum(jnp.ceil(total * shares).astype(jnp.int32), dtype=jnp.int32)
