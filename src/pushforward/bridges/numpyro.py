"""From a NumPyro model to a target."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pushforward import _user_errors
from pushforward.errors import MissingDependencyError, UsageError
from pushforward.targets import Target

Model = Callable[..., Any]
# What a model did when it was run: its sites, as NumPyro describes them, by name.
Trace = dict[str, dict[str, Any]]
# What JAX raises where a program needs the values of its arguments, not only shapes.
_NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


class _Joint(eqx.Module):
    """The log of the joint density of a model at its data.

    The data are a part of it that a program takes as an argument: they are not compiled
    in, and other data of the same shapes need no new program.
    """

    model: Model
    args: tuple
    kwargs: dict[str, Any]

    def __call__(self, sites: dict[str, Array]) -> Float[Array, ""]:
        return _log_joint(self.model, self.args, self.kwargs, sites)


def from_numpyro(model: Model, *args: Any, **kwargs: Any) -> Target:
    """The posterior of a NumPyro model, given its arguments.

    Every site that is sampled and not observed becomes a parameter under its own name,
    constrained to its support. Draws come back as a dict of sites, which
    `numpyro.infer.Predictive` takes as it is.

    Args:
        model: the model, with its effect handlers if there are any.
        *args: what the model is called with: data, sizes.
        **kwargs: the same, by name.
    """
    _require()
    if not callable(model):
        raise UsageError(
            "The first argument of from_numpyro is the model, a function that samples, "
            f"and not a {type(model).__name__}; what it is called with comes after it."
        )
    traces = [_trace(model, args, kwargs, seed) for seed in (0, 1)]
    _check_observed(traces[0])
    sites = _latent_sites(*traces)
    example = {name: np.zeros(np.shape(site["value"])) for name, site in sites.items()}
    constraints = {name: _constraint(name, site) for name, site in sites.items()}
    joint = _joint(model, args, kwargs, {k: s["value"] for k, s in sites.items()})
    return Target(joint, example=example, constraints=constraints)


def _require() -> None:
    try:
        import numpyro  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "from_numpyro needs the package numpyro; install it with pip install "
            "'pushforward[numpyro]'."
        ) from error


def _log_joint(model: Model, args: tuple, kwargs: dict, sites: dict[str, Array]):
    from numpyro.infer.util import log_density

    # NumPyro mixes types and ranks, which a program in strict mode refuses.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        value, _ = log_density(model, args, kwargs, sites)
    return jnp.asarray(value, float)


def _joint(model: Model, args: tuple, kwargs: dict, sites: dict[str, Array]):
    """The log density, with data that are not compiled in, where the model allows."""
    joint = _Joint(
        model,
        *jax.tree.map(
            lambda a: jnp.asarray(a) if isinstance(a, np.ndarray) else a, (args, kwargs)
        ),
    )
    try:
        eqx.filter_eval_shape(lambda joint, sites: joint(sites), joint, sites)
        return joint
    except Exception as error:
        if not isinstance(error, _NEEDS_VALUES):
            raise _user_errors.density_error("Your model", error) from error
    # It asks for values: of its data, perhaps, such as the largest number of a group.
    compiled_in = functools.partial(_log_joint, model, args, kwargs)
    try:
        jax.eval_shape(compiled_in, sites)
    except Exception as error:
        raise _user_errors.density_error("Your model", error) from error
    return compiled_in


def _check_observed(trace: Trace) -> None:
    """Refuses data that do not fit or hold nan; warns where there are none at all."""
    from numpyro.distributions import MaskedDistribution

    seen = {n: s for n, s in trace.items() if s["type"] == "sample"}
    observed = {n: s for n, s in seen.items() if s["is_observed"]}
    if seen and not observed:
        warnings.warn(
            "No site of the model is observed, so this is its prior, of "
            f"{', '.join(seen)}; if that is not meant, give the model its data.",
            stacklevel=3,
        )
    for name, site in observed.items():
        value, wanted = np.asarray(site["value"]), site["fn"].shape()
        try:
            np.broadcast_shapes(value.shape, wanted)
        except ValueError:
            raise UsageError(
                f"The data of {name!r} have the shape {value.shape}, and in the model "
                f"it has {wanted}."
            ) from None
        masked = isinstance(site["fn"], MaskedDistribution)
        if np.issubdtype(value.dtype, np.floating) and not masked:
            missing = np.argwhere(np.isnan(value))
            if len(missing):
                where = f" at {missing[0].tolist()}" if value.ndim else ""
                raise UsageError(
                    f"The data of {name!r} are nan{where}: leave out what is missing, "
                    "or sample it."
                )


def _latent_sites(first: Trace, second: Trace) -> dict[str, dict[str, Any]]:
    """The sites to draw, each as NumPyro describes it; refuses what cannot be drawn."""
    for name, site in first.items():
        size, subsample = site["args"] if site["type"] == "plate" else (0, None)
        if subsample is not None and subsample < size:
            raise UsageError(
                f"The plate {name!r} of the model takes {subsample} of its {size} "
                "elements at random: leave out subsample_size, or use a "
                "MinibatchTarget."
            )
        if site["type"] == "param":
            raise UsageError(
                f"The model has the parameter {name!r}, which is not drawn: give it a "
                "prior (numpyro.sample) or a value (numpyro.handlers.substitute)."
            )
    sites = {name: site for name, site in first.items() if _is_latent(site)}
    if not sites:
        raise UsageError("The model samples nothing that is not observed.")
    for name, site in sites.items():
        there = second.get(name)
        if there is None or np.shape(there["value"]) != np.shape(site["value"]):
            raise UsageError(
                f"The site {name!r} is not always there, or not always of one shape: "
                "the model must have the same sites in every run."
            )
        if not site["fn"].support.is_discrete and _bounds(there) != _bounds(site):
            raise UsageError(
                f"The bounds of {name!r} depend on what is sampled before: sample it "
                "between fixed bounds, and scale it in the model."
            )
    return sites


def _is_latent(site: dict[str, Any]) -> bool:
    return site["type"] == "sample" and not site["is_observed"]


def _trace(model: Model, args: tuple, kwargs: dict, seed: int) -> Trace:
    """What the model does when it is run once."""
    from numpyro import handlers
    from numpyro.infer import init_to_uniform

    # Improper priors cannot be sampled: sites start where NumPyro would start them.
    seeded = handlers.seed(model, seed)
    started = handlers.substitute(seeded, substitute_fn=init_to_uniform())
    try:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return handlers.trace(started).get_trace(*args, **kwargs)
    except Exception as error:
        raise _user_errors.density_error("Your model", error) from error


def _bounds(site: dict[str, Any]) -> list[list[float]]:
    """The numbers in a site's support, without repetitions."""
    support = _base(site["fn"].support)
    found = [getattr(support, name, None) for name in ("lower_bound", "upper_bound")]
    return [np.unique(np.asarray(b, float)).tolist() for b in found if b is not None]


def _base(support: Any) -> Any:
    """The constraint on one element (or vector) of a site."""
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return support


def _constraint(name: str, site: dict[str, Any]) -> str:
    """Our name for a site's support."""
    from numpyro.distributions import constraints as c

    support, bounds = _base(site["fn"].support), _bounds(site)
    if support.is_discrete:
        raise UsageError(
            f"The site {name!r} is discrete, and only real numbers can be drawn by a "
            "network: if it is data, give it to the model; if not, sum over its values."
        )
    if any(len(values) != 1 for values in bounds):
        raise UsageError(
            f"The elements of {name!r} have bounds of their own: sample them as "
            "several sites, or between common bounds, and scale them in the model."
        )
    numbers = [values[0] for values in bounds]
    if isinstance(support, (type(c.real), type(c.real_vector), type(c.real_matrix))):
        return "real"
    if isinstance(support, type(c.simplex)):
        return "simplex"
    if isinstance(support, type(c.positive_ordered_vector)):
        raise _unknown(name, support)
    if isinstance(support, type(c.ordered_vector)):
        return "ordered"
    if isinstance(support, type(c.circular)):
        return "circular"
    if isinstance(support, c.interval):
        low, high = numbers
        return "unit_interval" if numbers == [0, 1] else f"interval({low!r}, {high!r})"
    if isinstance(support, (c.greater_than, c.greater_than_eq)):
        return "positive" if numbers == [0] else f"greater_than({numbers[0]!r})"
    if isinstance(support, (c.less_than, c.less_than_eq)):
        return f"less_than({numbers[0]!r})"
    if isinstance(support, type(c.softplus_positive)):
        return "positive"
    raise _unknown(name, support)


def _unknown(name: str, support: Any) -> UsageError:
    kind = type(support).__name__.strip("_")
    return UsageError(
        f"The site {name!r} has the support {kind}, for which there is no constraint; "
        "write it as a function of sites that are real, positive, bounded, ordered, "
        "angles or on a simplex."
    )
