"""From a sampler to a distribution of NumPyro: a posterior as the next prior."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from pushforward.errors import MissingDependencyError, UsageError
from pushforward.sampler import Sampler


def to_numpyro(sampler: Sampler) -> Any:
    """A sampler as a distribution of NumPyro, with its exact density.

    It is over the vector of the sampler's unconstrained coordinates, so that it can
    stand in any model; `parameters` makes the user's own parameters of such a vector,
    constraints and all:

        prior = to_numpyro(sampler)

        def model(x, y):
            p = prior.parameters(numpyro.sample("p", prior))
            numpyro.sample("y", dist.Normal(p["slope"] * x, p["noise"]), obs=y)

    Args:
        sampler: One whose own density is known.

    Returns:
        A `numpyro.distributions.Distribution` with `sample`, `log_prob` and
        `parameters`.

    Raises:
        UsageError: The sampler's own density is not known.
    """
    if not isinstance(sampler, Sampler):
        raise UsageError(
            "to_numpyro needs a sampler, such as fit.sampler or pushforward.load of a "
            f"file, not a {type(sampler).__name__}."
        )
    if not sampler.has_density:
        raise UsageError(
            "to_numpyro needs a sampler whose own density is known, and this one adds "
            "noise or has a network that may fold; train it with methods.Transport()."
        )
    try:
        return _class()(sampler)
    except ImportError as error:
        raise MissingDependencyError(
            "to_numpyro needs the package numpyro; install it with pip install "
            "'pushforward[numpyro]'."
        ) from error


@functools.cache
def _class() -> Any:
    from numpyro.distributions import Distribution, constraints

    class Pushforward(Distribution):
        """The distribution of a sampler's unconstrained coordinates."""

        support: Any = constraints.real_vector
        pytree_data_fields = ("sampler",)

        def __init__(self, sampler: Sampler, *, validate_args: Any = None):
            self.sampler = sampler
            super().__init__((), (sampler.dim,), validate_args=validate_args)

        def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
            """Draws, each a vector."""
            return self.sampler.unconstrained().sample(key, tuple(sample_shape))

        def log_prob(self, value: Any, intermediates: Any = None) -> Any:
            """The log density of the sampler."""
            return self.sampler.unconstrained().log_prob(value)

        def parameters(self, value: Any) -> Any:
            """The user's own parameters at vectors of any leading shape."""
            value = jnp.asarray(value, float)
            place = self.sampler.structure.unflatten
            for _ in value.shape[:-1]:
                place = jax.vmap(place)
            return place(value)

    return Pushforward
