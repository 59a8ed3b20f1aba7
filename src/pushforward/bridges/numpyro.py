"""From a NumPyro model to a target."""

import contextlib
import functools
import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pushforward import _user_errors
from pushforward.bridges.numpyro_supports import is_sphere, moves, structure_of
from pushforward.errors import MissingDependencyError, UsageError
from pushforward.targets import AbstractTarget, MinibatchTarget, Target
from pushforward.targets.structure import Structure

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


def from_numpyro(model: Model, *args: Any, **kwargs: Any) -> AbstractTarget:
    """The posterior of a NumPyro model, given its arguments.

    Every site that is sampled and not observed becomes a parameter under its own name,
    constrained to its support. Draws come back as a dict of sites, which
    `numpyro.infer.Predictive` takes as it is; it computes deterministic sites too.

    Supports that have a name in `pushforward.constraints` have that constraint. Where a
    support has none, or depends on other sites, NumPyro's bijectors place the sites; a
    sampler of such a model is loaded with `load(path, like=target)`.

    A plate with a `subsample_size` makes a `MinibatchTarget`: the model must take its
    data by the plate's indices, or by `numpyro.subsample`.

    Discrete sites with finitely many values are summed over, where the package funsor
    is installed.

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
    discrete = {n for n, s in sites.items() if s["fn"].support.is_discrete}
    sites = {n: s for n, s in sites.items() if n not in discrete}
    if not sites:
        raise _discrete_alone(*discrete)
    moving = {n for n, s in sites.items() if moves(s, traces[1][n])}
    structure = structure_of(sites, moving, _runner(model, args, kwargs))
    values = {k: s["value"] for k, s in sites.items()}
    if (plate := _subsampled(traces[0])) is not None:
        if discrete:
            raise _discrete_alone(*discrete)
        return _minibatches(model, args, kwargs, plate, traces[0], structure, values)
    if discrete:
        model = _enumerated(model, traces[0], discrete)
    joint = _joint(model, args, kwargs, values)
    return Target(joint, example=structure)


def _require() -> None:
    try:
        import numpyro  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "from_numpyro needs the package numpyro; install it with pip install "
            "'pushforward[numpyro]'."
        ) from error


@contextlib.contextmanager
def _as_numpyro_has_it() -> Iterator[None]:
    """NumPyro mixes types and ranks, which a program in strict mode refuses."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def _log_joint(model: Model, args: tuple, kwargs: dict, sites: dict[str, Array]):
    from numpyro.infer.util import log_density

    with _as_numpyro_has_it():
        if isinstance(model, _Enumerated):
            value = model.log_density(args, kwargs, sites)
        else:
            value, _ = log_density(model, args, kwargs, sites)
    return jnp.asarray(value, float)


def _runner(model: Model, args: tuple, kwargs: dict) -> Callable:
    """Runs the model with a function that gives its sites their values."""

    def run(place: Callable[[dict[str, Any]], Any]) -> Any:
        from numpyro import handlers

        def of_samples(site):
            return place(site) if site["type"] == "sample" else None

        seeded = handlers.seed(model, 0)
        with _as_numpyro_has_it():
            placed = handlers.substitute(seeded, substitute_fn=of_samples)
            return handlers.trace(placed).get_trace(*args, **kwargs)

    return run


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
    return sites


def _is_latent(site: dict[str, Any]) -> bool:
    return site["type"] == "sample" and not site["is_observed"]


def _trace(model: Model, args: tuple, kwargs: dict, seed: int) -> Trace:
    """What the model does when it is run once."""
    from numpyro import handlers
    from numpyro.infer import init_to_uniform

    uniform: Any = init_to_uniform()

    def start(site):
        # NumPyro has no starting points on a sphere, but for all other supports.
        on_sphere = site["type"] == "sample" and is_sphere(site)
        return None if on_sphere else uniform(site)

    # Improper priors cannot be sampled: sites start where NumPyro would start them.
    seeded = handlers.seed(model, seed)
    started = handlers.substitute(seeded, substitute_fn=start)
    try:
        with _as_numpyro_has_it():
            return handlers.trace(started).get_trace(*args, **kwargs)
    except Exception as error:
        raise _user_errors.density_error("Your model", error) from error


class _Enumerated:
    """A model whose discrete sites are summed over."""

    def __init__(self, model: Model, first_free: int):
        self.model, self.first_free = model, first_free

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model itself."""
        return self.model(*args, **kwargs)

    def log_density(self, args: tuple, kwargs: dict, sites: dict[str, Array]):
        """The log density of the other sites and the data."""
        from numpyro.contrib.funsor import config_enumerate, enum
        from numpyro.contrib.funsor.infer_util import log_density

        model = enum(config_enumerate(self.model), self.first_free)
        return log_density(model, args, kwargs, sites)[0]


def _enumerated(model: Model, trace: Trace, discrete: set[str]) -> _Enumerated:
    for name in discrete:
        if not trace[name]["fn"].has_enumerate_support:
            raise _discrete_alone(name)
    try:
        importlib.import_module("funsor")
    except ImportError as error:
        raise MissingDependencyError(
            f"The site {min(discrete)!r} is discrete, and only real numbers can be "
            "drawn by a network: install funsor (pip install funsor), with which "
            "from_numpyro sums over its values, or sum over them in the model (as "
            "numpyro.distributions.MixtureSameFamily does)."
        ) from error
    frames = [f for s in trace.values() for f in s.get("cond_indep_stack") or ()]
    return _Enumerated(model, -1 - max((-f.dim for f in frames), default=0))


def _discrete_alone(name: str, *_: str) -> UsageError:
    return UsageError(
        f"The site {name!r} is discrete, and only real numbers can be drawn by a "
        "network: if it is data, give it to the model; if not, sum over its values."
    )


def _subsampled(trace: Trace) -> str | None:
    """The plate of which the model takes a random part."""
    found = []
    for name, site in trace.items():
        size, part = site["args"] if site["type"] == "plate" else (0, None)
        if part is not None and part < size:
            found.append(name)
    if len(found) > 1:
        raise UsageError(
            f"The model takes random parts of the plates {' and '.join(found)}, and "
            "there can be minibatches of one: leave out subsample_size of the others."
        )
    return found[0] if found else None


class _Part(eqx.Module):
    """A part of the log density of a model that takes some elements of a plate.

    The likelihood of one element, or without an element all but the likelihood.
    """

    model: Model
    args: tuple
    kwargs: dict[str, Any]
    plate: str = eqx.field(static=True)
    size: int = eqx.field(static=True)

    def sites(self, parameters: dict[str, Array], index: Array) -> Trace:
        """What the model does with these elements of the plate."""
        from numpyro import handlers

        model = handlers.seed(self.model, 0)
        model = handlers.substitute(model, data=parameters)
        model = _indexing()(model, self.plate, index)
        return handlers.trace(model).get_trace(*self.args, **self.kwargs)

    def __call__(
        self, parameters: dict[str, Array], index: Array | None = None
    ) -> Float[Array, ""]:
        """The log likelihood of an element, or the log of all the rest."""
        total = jnp.zeros(())
        with _as_numpyro_has_it():
            at = jnp.zeros(1, jnp.int32) if index is None else index[None]
            for site in self.sites(parameters, at).values():
                if site["type"] != "sample":
                    continue
                if _inside(site, self.plate) == (index is not None):
                    value = jnp.sum(site["fn"].log_prob(site["value"]))
                    scale = 1.0 if site["scale"] is None else site["scale"]
                    # The plate's own scale is for the sum over its elements.
                    total += value * scale / (1 if index is None else self.size)
        return jnp.asarray(total, float)


def _inside(site: dict[str, Any], plate: str) -> bool:
    return any(frame.name == plate for frame in site["cond_indep_stack"])


def _indexing() -> Any:
    """A handler that chooses the elements of a plate."""
    from numpyro.primitives import Messenger

    class Indexing(Messenger):
        def __init__(self, fn, plate, index):
            self.plate, self.index = plate, index
            super().__init__(fn)

        def process_message(self, msg):
            if msg["type"] == "plate" and msg["name"] == self.plate:
                size, _ = msg["args"]
                msg["args"], msg["value"] = (size, self.index.shape[0]), self.index

    return Indexing


def _minibatches(
    model: Model,
    args: tuple,
    kwargs: dict,
    plate: str,
    trace: Trace,
    structure: Structure,
    values: dict[str, Array],
) -> MinibatchTarget:
    """The posterior of a model that takes a random part of its data."""
    size, part = trace[plate]["args"]
    for name, site in trace.items():
        if _is_latent(site) and _inside(site, plate):
            raise UsageError(
                f"The site {name!r} is inside the plate {plate!r}, of which the model "
                f"takes {part} of {size} elements at random, so that each element has "
                "parameters of its own: leave out subsample_size."
            )
    arrays = jax.tree.map(
        lambda a: jnp.asarray(a) if isinstance(a, np.ndarray) else a, (args, kwargs)
    )
    log_part = _Part(model, *arrays, plate=plate, size=size)

    def shapes(values, index):
        with _as_numpyro_has_it():
            found = log_part.sites(values, index)
        return {
            name: (jnp.shape(site["value"]), site["fn"].shape())
            for name, site in found.items()
            if site["type"] == "sample" and _inside(site, plate)
        }

    seen: dict[str, Any] = {}
    try:
        index = jnp.zeros(1, jnp.int32)
        jax.eval_shape(lambda v, i: seen.update(shapes(v, i)), values, index)
        fits = all(given == wanted for given, wanted in seen.values())
    except ValueError:
        fits = False
    if not fits:
        raise UsageError(
            f"The data in the plate {plate!r} of the model do not follow the elements "
            f"that it takes ({part} of {size}): take them by the plate's indices (with "
            f"the plate as i: y[i]) or by numpyro.subsample, or leave out "
            "subsample_size."
        )
    return MinibatchTarget(
        log_part, log_part, jnp.arange(size), example=structure, batch_size=part
    )
