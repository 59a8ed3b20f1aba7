"""What to sample from: the contract of a target, and the kinds without data.

Every kind answers one internal call, `score(x, *, key=None, sigma=None)`, for one
unconstrained point `x`, and says by its own methods what else it can do. Targets are
pytrees: their data are arguments of the compiled programs that use them, not constants
inside.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pushforward import _html
from pushforward.errors import UsageError
from pushforward.targets.constraints import Constraint
from pushforward.targets.structure import Structure
from pushforward.targets.symmetries import Action, Group

# One constraint for a bare array, or one for each parameter that has one, by name.
Constraints = str | Constraint | Mapping[str, str | Constraint]

# Parameters that a notebook shows.
_SHOWN = 12

# Terms of sums over data that `AbstractTarget.map` may hold at once.
_MAX_TERMS = 2**22


@dataclasses.dataclass(frozen=True)
class Knowledge:
    """What a kind of target knows; `AbstractTarget` turns it into answers.

    Attributes:
        no_density: why there is no log density, as a clause; None where there is one.
        no_values: why the log density cannot be had at every draw of a training, as a
            clause; None where it can.
        noise_range: the lowest and the highest noise level at which the score is known;
            (0, 0) for a score without noise.
        num_terms: how many terms one evaluation sums: the observations, or 1.
        through_minibatches: whether `score` with a key is that of a random minibatch.
        symmetry: the group under which the density does not change.
    """

    no_density: str | None = None
    no_values: str | None = None
    noise_range: tuple[float, float] = (0.0, 0.0)
    num_terms: int = 1
    through_minibatches: bool = False
    symmetry: Action | None = None


@dataclasses.dataclass(frozen=True)
class UserFunction:
    """A function that a target was made of, for the examination.

    Attributes:
        name: the name of the argument it was given as.
        given: the function itself.
        call: a call of it at one unconstrained point.
        returns: the tree of shapes that it must return.
        part: what it adds to the log density; None for a score.
        terms: the terms of `part`, where that is a sum over data.
        data: these data.
    """

    name: str
    given: Callable[..., Any]
    call: Callable[[Float[Array, " d"]], Any]
    returns: Any
    part: Callable[[Float[Array, " d"]], Float[Array, ""]] | None = None
    terms: Callable[[Float[Array, " d"]], Float[Array, " n"]] | None = None
    data: Any = None


class VarianceReduction(eqx.Module):
    """What makes the minibatches of a posterior less noisy; each part may be missing.

    Attributes:
        centre: where the control variate is centred.
        centre_score: the score of all data there.
        sampling_table: by which observations are drawn (see `sampling_table`).
    """

    centre: Float[Array, " d"] | None = None
    centre_score: Float[Array, " d"] | None = None
    sampling_table: Int[Array, " n"] | None = None


class AbstractTarget(eqx.Module):
    """A distribution on R^d known through its score, and perhaps its log density.

    What differs from kind to kind is asked of the target, never found out from its
    class: whether there is a density (`why_no_density`, `require_density`), values at
    every draw (`why_no_values`, `value_and_score`), noise levels (`noise_range`,
    `require_noise_levels`, `require_no_noise`), minibatches (`minibatch`,
    `evaluation_cost`) and data (`num_terms`, `subsample`, `map`). A wrapper answers for
    the target that it wraps.
    """

    structure: eqx.AbstractVar[Structure]
    sample_fn: eqx.AbstractVar[Callable[..., Any] | None]

    @property
    @abc.abstractmethod
    def kind(self) -> "type[AbstractTarget]":
        """The class of this target, or of the one that it wraps."""

    @property
    @abc.abstractmethod
    def knowledge(self) -> Knowledge:
        """What this target knows; other modules ask the methods below."""

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

    def value_and_score(
        self, x: Float[Array, " d"], *, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, ""], Float[Array, " d"]]:
        """A number whose gradient is the score, and the score.

        The number is the log density where it can be had at every draw, and elsewhere
        `score . x`, of which only the gradient at a fixed score means anything.

        Args:
            x: one unconstrained point.
            key: draws the minibatch, where the target is seen through one.
        """
        if self.why_no_values() is None:
            return jax.value_and_grad(self.log_density)(x)
        score = self.score(x, key=key)
        return jnp.sum(score * x), score

    def surrogate(
        self, x: Float[Array, " d"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, ""]:
        """The number of `value_and_score`, to be differentiated once: `ds/dx = score`.

        Args:
            x: one unconstrained point.
            key: draws the minibatch, where the target is seen through one.
        """
        if self.why_no_values() is None:
            return self.log_density(x)
        here = jax.lax.stop_gradient(x)
        score = jax.lax.stop_gradient(self.score(here, key=key))
        return jnp.sum(score * x)

    def why_no_density(self) -> str | None:
        """None where `log_density` answers; elsewhere the reason, as a clause."""
        return self.knowledge.no_density

    def why_no_values(self) -> str | None:
        """None where the log density can be had at every draw; elsewhere the reason.

        A posterior that is seen through minibatches has a density, but each of its
        values is a pass over all data.
        """
        return self.knowledge.no_density or self.knowledge.no_values

    def require_density(self, who: str) -> None:
        """Raises a `UsageError` where there is no log density; `who` needs one."""
        if (reason := self.why_no_density()) is not None:
            raise UsageError(f"{who} needs a log density, but {reason}.")

    def require_values(self, who: str) -> None:
        """Raises a `UsageError` where `why_no_values` has a reason."""
        if (reason := self.why_no_values()) is not None:
            raise UsageError(
                f"{who} needs the log density at every draw, but {reason}."
            )

    @property
    def noise_range(self) -> tuple[float, float]:
        """The lowest and the highest noise level at which the score is known.

        It is (0, 0) for the score of the distribution itself. Otherwise the score at
        level sigma is that of the distribution with N(0, sigma^2 I) added.
        """
        return self.knowledge.noise_range

    def has_noise_levels(self) -> bool:
        """Whether the score depends on a noise level: `noise_range` is not (0, 0)."""
        return self.noise_range[1] > 0

    def require_noise_levels(self, who: str) -> tuple[float, float]:
        """`noise_range`, or a `UsageError` where the score does not depend on noise."""
        if not self.has_noise_levels():
            raise UsageError(
                f"{who} needs a score that depends on the noise level, but a "
                f"{self.kind.__name__} has none; use a NoiseConditionalTarget."
            )
        return self.noise_range

    def require_no_noise(self, who: str) -> None:
        """Raises a `UsageError` where the score is known only with noise added."""
        if self.has_noise_levels():
            raise UsageError(
                f"{who} adds no noise to its draws, but the score of a "
                f"{self.kind.__name__} is known only with noise added; use the method "
                "DFT, KL or Fisher."
            )

    @property
    def num_terms(self) -> int:
        """How many terms one evaluation sums: the number of observations, or 1."""
        return self.knowledge.num_terms

    @property
    def symmetry(self) -> Action | None:
        """The group under which the density does not change, where one was given."""
        return self.knowledge.symmetry

    def evaluation_cost(self, minibatches: int = 1) -> int:
        """How many evaluations it takes to see `minibatches` independent scores.

        One where the score is not random, as one evaluation then serves for all.
        """
        return minibatches if self.knowledge.through_minibatches else 1

    def map(
        self, function: Callable[[Float[Array, " d"]], Any], points: Float[Array, "n d"]
    ) -> Any:
        """`function`, which evaluates this target once, at each of the points.

        It is `jax.vmap(function)(points)`, in blocks where the target sums over so many
        data that all points at once would not fit into memory.
        """
        block = max(1, _MAX_TERMS // self.num_terms)
        if block >= points.shape[0]:
            return jax.vmap(function)(points)
        return jax.lax.map(function, points, batch_size=block)

    @property
    def known_modes(self) -> Float[Array, "k d"] | None:
        """The modes, in unconstrained coordinates, where they are known."""
        return None

    @property
    def can_sample(self) -> bool:
        """Whether there are exact draws."""
        return self.sample_fn is not None

    def sample(self, key: PRNGKeyArray, n: int) -> Any:
        """Exact draws, in the user's own tree."""
        if self.sample_fn is None:
            raise UsageError(
                "This target has no exact sampler; give it one as sample=, or compare "
                "with a reference."
            )
        return self.sample_fn(key, n)

    def sample_flat(self, key: PRNGKeyArray, n: int) -> Float[Array, "n d"]:
        """Exact draws as an array of unconstrained coordinates."""
        return self.structure.flatten_draws(self.sample(key, n))

    def __repr__(self) -> str:
        # Of the fields alone, which transformations may have emptied.
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        facts = [f"{k}={_word(v)}" for k, v in values.items() if _word(v)]
        return f"{type(self).__name__} of {self.structure}\n  {', '.join(facts)}"

    def _repr_html_(self) -> str:
        """What a notebook shows: a row for each parameter."""
        leaves = self.structure.leaves
        rows = [
            (leaf.name or "x", str(leaf.shape or "scalar"), str(leaf.constraint))
            for leaf in leaves[:_SHOWN]
        ]
        if len(leaves) > _SHOWN:
            rows.append((f"and {len(leaves) - _SHOWN} more", "", ""))
        exact = "with" if self.can_sample else "without"
        what = f"{self.dim:,} coordinates, {exact} exact draws"
        return _html.heading(type(self).__name__, what) + _html.table(
            rows, ("parameter", "shape", "constraint")
        )

    @abc.abstractmethod
    def minibatch(self, key: PRNGKeyArray) -> "AbstractTarget":
        """The deterministic target of one random minibatch.

        Its score is an unbiased estimate of this target's. A target that is not seen
        through minibatches returns itself, so that two calls return the same object.
        """

    @abc.abstractmethod
    def subsample(self, n: int) -> "AbstractTarget":
        """This target with at most `n` of its observations, where it has more."""

    @abc.abstractmethod
    def reduce_variance(self, found: VarianceReduction | None) -> "AbstractTarget":
        """This target with less noisy minibatches, where it is seen through them.

        What is missing in `found` stays as the user gave it.
        """

    @abc.abstractmethod
    def user_functions(self) -> tuple[UserFunction, ...]:
        """The functions that the target is made of, in the order of its parts."""

    @abc.abstractmethod
    def _score(self, x, key, sigma) -> Float[Array, " d"]:
        """`score`, for the kind at hand."""

    @abc.abstractmethod
    def _log_density(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """`log_density`, for the kind at hand."""


Kind = TypeVar("Kind", bound="AbstractDeterministicTarget")


class AbstractDeterministicTarget(AbstractTarget):
    """A target whose score is not random: there are no minibatches to draw."""

    def minibatch(self: Kind, key: PRNGKeyArray) -> Kind:
        return self

    def subsample(self: Kind, n: int) -> Kind:
        return self

    def reduce_variance(self: Kind, found: VarianceReduction | None) -> Kind:
        return self


class Target(AbstractDeterministicTarget):
    """A density given by its un-normalised log."""

    log_density_fn: Callable[[Any], Float[Array, ""]]
    sample_fn: Callable[..., Any] | None
    modes: Float[Array, "k d"] | None
    structure: Structure = eqx.field(static=True)
    action: Action | None = eqx.field(static=True)

    def __init__(
        self,
        log_density: Callable[[Any], Float[Array, ""]],
        dim: int | None = None,
        *,
        example: Any = None,
        constraints: Constraints | None = None,
        symmetry: Any = None,
        names: tuple[str, ...] | None = None,
        sample: Callable[..., Any] | None = None,
        modes: Float[Array, "k d"] | None = None,
    ):
        """A target from a log density.

        The log-Jacobian of each constraint is added here, and draws come back
        constrained.

        Args:
            log_density: a JAX function of one point (a vector, or a tree like
                `example`, with the constraints met) that returns a scalar. It need not
                be normalised.
            dim: the length of the point, where it is a vector.
            example: a tree with the shapes of the parameters, instead of `dim`.
            constraints: a constraint for each parameter that has one, by its name;
                names in nested trees are joined with dots ("group.tau"). For a point
                that is one array, a single constraint on all of it.
            symmetry: a group under which the density does not change, of
                `pushforward.symmetries`: the network learns one copy, and draws, log
                densities and weights are those of all.
            names: a name for each coordinate, where `dim` is given.
            sample: `sample(key, n)`, where exact draws exist, which are constrained.
            modes: the modes, where they are known.

        Example:
            >>> import jax.numpy as jnp
            >>> gamma = Target(
            ...     lambda p: jnp.log(p["rate"]) - p["rate"],
            ...     example={"rate": 1.0},
            ...     constraints={"rate": "positive"},
            ... )
            >>> float(gamma.log_density(jnp.zeros(1)))
            -1.0
        """
        self.log_density_fn = as_function("log_density", log_density)
        self.sample_fn = sample
        self.modes = modes
        structure = make_structure(dim, example, names, constraints)
        self.structure, self.action = bind_symmetry(structure, symmetry)

    @property
    def kind(self) -> type[AbstractTarget]:
        return Target

    @property
    def knowledge(self) -> Knowledge:
        return Knowledge(symmetry=self.action)

    @property
    def known_modes(self) -> Float[Array, "k d"] | None:
        return self.modes

    def user_functions(self) -> tuple[UserFunction, ...]:
        given = self.log_density_fn

        def call(x):
            return given(self.structure.unflatten(x))

        return (UserFunction("log_density", given, call, SCALAR, self._log_density),)

    def _log_density(self, x):
        value = self.log_density_fn(self.structure.unflatten(x))
        return value + self.structure.log_det(x)

    def _score(self, x, key, sigma):
        return jax.grad(self._log_density)(x)


def constrained(
    log_density: Callable[[Any], Float[Array, ""]],
    constraints: Constraints,
    dim: int | None = None,
    *,
    example: Any = None,
    sample: Callable[..., Any] | None = None,
) -> Target:
    """`Target(log_density, dim, example=example, constraints=constraints, ...)`.

    Args:
        log_density: as for `Target`.
        constraints: as for `Target`.
        dim: as for `Target`.
        example: as for `Target`.
        sample: as for `Target`.
    """
    return Target(
        log_density, dim, example=example, constraints=constraints, sample=sample
    )


class ScoreTarget(AbstractDeterministicTarget):
    """A score without a density."""

    score_fn: Callable[[Any], Any]
    sample_fn: Callable[..., Any] | None
    structure: Structure = eqx.field(static=True)
    action: Action | None = eqx.field(static=True)

    def __init__(
        self,
        score: Callable[[Any], Any],
        dim: int | None = None,
        *,
        example: Any = None,
        constraints: Constraints | None = None,
        symmetry: Any = None,
        names: tuple[str, ...] | None = None,
        sample: Callable[..., Any] | None = None,
    ):
        """A target from a score, the gradient of a log density that is not known.

        Under constraints it is the gradient with respect to the constrained parameters:
        the chain rule is applied and the gradient of the log-Jacobian is added here.

        Args:
            score: a JAX function of one point that returns the gradient there, a vector
                or a tree like `example`.
            dim: the length of the point, where it is a vector.
            example: a tree with the shapes of the parameters, instead of `dim`.
            constraints: as for `Target`.
            symmetry: as for `Target`.
            names: a name for each coordinate, where `dim` is given.
            sample: `sample(key, n)`, where exact draws exist, which are constrained.
        """
        self.score_fn = as_function("score", score)
        self.sample_fn = sample
        structure = make_structure(dim, example, names, constraints)
        self.structure, self.action = bind_symmetry(structure, symmetry)

    @property
    def kind(self) -> type[AbstractTarget]:
        return ScoreTarget

    @property
    def knowledge(self) -> Knowledge:
        return Knowledge(
            no_density="a ScoreTarget has only a score", symmetry=self.action
        )

    def user_functions(self) -> tuple[UserFunction, ...]:
        given = self.score_fn

        def call(x):
            return given(self.structure.unflatten(x))

        return (UserFunction("score", given, call, self.structure.shapes()),)

    def _score(self, x, key, sigma):
        score = self.score_fn(self.structure.unflatten(x))
        return self.structure.pull_back(score, x)

    def _log_density(self, x):
        raise no_density(self)


class NoiseConditionalTarget(AbstractDeterministicTarget):
    """A score that depends on the noise level: that of `q * N(0, sigma^2)`."""

    score_fn: Callable[[Any, Any], Any]
    sample_fn: Callable[..., Any] | None
    structure: Structure = eqx.field(static=True)
    action: Action | None = eqx.field(static=True)
    sigma_range: tuple[float, float] = eqx.field(static=True)

    def __init__(
        self,
        score: Callable[[Any, Any], Any],
        dim: int | None = None,
        *,
        sigma_range: tuple[float, float],
        example: Any = None,
        constraints: Constraints | None = None,
        symmetry: Any = None,
        names: tuple[str, ...] | None = None,
        sample: Callable[..., Any] | None = None,
    ):
        """A target from `score(x, sigma)`, trusted for sigma in `sigma_range`.

        Args:
            score: a JAX function of one point and a noise level that returns the
                gradient of the smoothed log density, a vector or a tree like `example`.
            dim: the length of the point, where it is a vector.
            sigma_range: the lowest and the highest noise level.
            example: a tree with the shapes of the parameters, instead of `dim`.
            constraints: refused, unless each is "real": noise added to a constrained
                parameter is another noise in unconstrained coordinates.
            symmetry: as for `Target`, but the network learns all copies: the score of
                one of them with noise is not known.
            names: a name for each coordinate, where `dim` is given.
            sample: `sample(key, n)`, where exact draws (without noise) exist.
        """
        low, high = map(float, sigma_range)
        if not 0 < low <= high:
            raise UsageError(
                f"sigma_range must be two positive numbers in order, not {sigma_range}."
            )
        self.score_fn = as_function("score", score)
        self.sample_fn = sample
        structure = make_structure(dim, example, names, constraints)
        self.structure, self.action = bind_symmetry(structure, symmetry)
        self.sigma_range = (low, high)
        for leaf in self.structure.leaves:
            if not leaf.constraint.bijection.isometric:
                where = f" on {leaf.name!r}" if leaf.name else ""
                raise UsageError(
                    f"A NoiseConditionalTarget cannot have the constraint "
                    f"'{leaf.constraint}'{where}: Gaussian noise on a constrained "
                    "parameter is not Gaussian in unconstrained coordinates. Transform "
                    "the parameter first, and give the score of the smoothed density "
                    "of the unconstrained one."
                )

    @property
    def kind(self) -> type[AbstractTarget]:
        return NoiseConditionalTarget

    @property
    def knowledge(self) -> Knowledge:
        return Knowledge(
            no_density="a NoiseConditionalTarget has only a score for each noise level",
            noise_range=self.sigma_range,
            symmetry=self.action,
        )

    def user_functions(self) -> tuple[UserFunction, ...]:
        given, lowest = self.score_fn, jnp.asarray(self.sigma_range[0], float)

        def call(x):
            return given(self.structure.unflatten(x), lowest)

        return (UserFunction("score", given, call, self.structure.shapes()),)

    def _score(self, x, key, sigma):
        level = self.sigma_range[0] if sigma is None else sigma
        level = jnp.asarray(level, x.dtype)
        score = self.score_fn(self.structure.unflatten(x), level)
        return self.structure.pull_back(score, x)

    def _log_density(self, x):
        raise no_density(self)


# What a log density must return.
SCALAR = jax.ShapeDtypeStruct((), np.float32)


def no_density(target: AbstractTarget) -> UsageError:
    """For a call of `log_density` where there is none."""
    reason = target.why_no_density() or "there is none"
    return UsageError(f"This needs a log density, but {reason}.")


def as_function(name: str, given: Any) -> Callable[..., Any]:
    """What was given as the argument `name`, which must be a function."""
    if not callable(given):
        raise UsageError(
            f"{name} must be a function of one point, but it is a "
            f"{type(given).__name__}."
        )
    return given


def _word(value: Any) -> str:
    """A field in one line; nothing for what a line cannot show."""
    if isinstance(value, AbstractTarget):
        return str(value).splitlines()[0]
    if isinstance(value, int | float) or (
        isinstance(value, tuple) and all(isinstance(v, float) for v in value)
    ):
        return str(value)
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    rows = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(value)}
    is_data = isinstance(value, dict | list | tuple | jax.Array) and len(rows) == 1
    return f"{rows.pop()[0]:,} rows" if is_data and () not in rows else ""


def view_functions(target: AbstractTarget) -> tuple[UserFunction, ...]:
    """The log density or the score of a wrapper as a whole."""
    if target.why_no_density() is None:
        density = target.log_density
        return (UserFunction("log_density", density, density, SCALAR, density),)
    shapes = target.structure.shapes()
    return (UserFunction("score", target.score, target.score, shapes),)


def bind_symmetry(
    structure: Structure, symmetry: Any
) -> tuple[Structure, Action | None]:
    """The structure under the constraints of a group, and the group on it."""
    if symmetry is None:
        return structure, None
    if not isinstance(symmetry, Group):
        raise UsageError(
            "symmetry must be a group of pushforward.symmetries, such as "
            f"symmetries.permutations('mu'), not a {type(symmetry).__name__}."
        )
    structure = symmetry.constrain(structure)
    return structure, symmetry.bind(structure)


def make_structure(
    dim: int | None,
    example: Any,
    names: tuple[str, ...] | None,
    constraints: Constraints | None,
) -> Structure:
    """The structure of the parameters, from the arguments that every kind takes."""
    if (dim is None) == (example is None):
        raise UsageError(
            "Say the shape of the parameters once: either dim= (a vector) or example= "
            "(a tree of arrays)."
        )
    if isinstance(example, Structure):
        # From a bridge, which knows shapes and constraints by itself.
        return example
    if dim is not None:
        return Structure.vector(dim, names, constraints)
    if names is not None:
        raise UsageError(
            "names= goes with dim=; a tree's own keys name its coordinates."
        )
    return Structure.of(example, constraints)
