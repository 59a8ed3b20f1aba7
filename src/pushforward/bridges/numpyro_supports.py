"""The supports of NumPyro's distributions: our constraints, or its own bijectors.

Where every site has a support that has a name here, the parameters are described by
names alone, and a sampler file needs nothing else. Elsewhere (a support without a name,
bounds that depend on other sites) the model itself says where its sites may be: it is
run, and each site is placed by the bijector that NumPyro has for its support.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from pushforward.errors import UsageError
from pushforward.targets.constraints import (
    Constraint,
    greater_than,
    interval,
    less_than,
)
from pushforward.targets.structure import Leaf, Structure

# A site as NumPyro describes it.
Site = dict[str, Any]


def bounds(site: Site) -> list[Float[np.ndarray, "..."]]:
    """The bounds in a site's support: a number, or an array where they differ."""
    support = _base(site["fn"].support)
    found = [getattr(support, name, None) for name in ("lower_bound", "upper_bound")]
    arrays = [np.asarray(b, float) for b in found if b is not None]
    # One number where it is the same for all elements.
    return [np.asarray(a.max()) if len(np.unique(a)) == 1 else a for a in arrays]


def _base(support: Any) -> Any:
    """The constraint on one element (or vector) of a site."""
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return support


def constraint(site: Site) -> Constraint | None:
    """Our constraint for a site's support; None where there is none."""
    from numpyro.distributions import constraints as c

    support, shape = _base(site["fn"].support), np.shape(site["value"])
    numbers: list[Any] = [
        float(b) if b.ndim == 0 else np.broadcast_to(b, shape) for b in bounds(site)
    ]
    common = [b for b in numbers if isinstance(b, float)]
    # Subclasses before what they are made of.
    named = (
        (type(c.simplex), "simplex"),
        (type(c.positive_ordered_vector), None),
        (type(c.ordered_vector), "ordered"),
        (type(c.corr_cholesky), "cholesky_correlation"),
        (type(c.corr_matrix), "correlation"),
        (type(c.scaled_unit_lower_cholesky), None),
        (type(c.softplus_lower_cholesky), "cholesky_covariance"),
        (type(c.lower_cholesky), "cholesky_covariance"),
        (type(c.positive_definite), "covariance"),
        (type(c.sphere), "unit_vector"),
        (type(c.softplus_positive), "positive"),
        (type(c.circular), "circular"),
        ((type(c.real), type(c.real_vector), type(c.real_matrix)), "real"),
    )
    for kind, name in named:
        if isinstance(support, kind):
            return None if name is None else Constraint(name)
    if isinstance(support, c.zero_sum) and support.event_dim == 1:
        return Constraint("zero_sum")
    if not all(np.isfinite(b).all() for b in numbers):
        return None
    if isinstance(support, c.interval):
        return Constraint("unit_interval") if common == [0, 1] else interval(*numbers)
    if isinstance(support, (c.greater_than, c.greater_than_eq)):
        return Constraint("positive") if common == [0] else greater_than(*numbers)
    if isinstance(support, (c.less_than, c.less_than_eq)):
        return less_than(*numbers)
    return None


def is_sphere(site: Site) -> bool:
    """Whether a site is a vector of length 1."""
    from numpyro.distributions import constraints as c

    return isinstance(_base(site["fn"].support), type(c.sphere))


def moves(first: Site, second: Site) -> bool:
    """Whether a site's bounds differ from one run of the model to another."""
    pairs = zip(bounds(first), bounds(second), strict=False)
    return not all(np.array_equal(a, b) for a, b in pairs)


@dataclasses.dataclass(frozen=True)
class ReplayedLeaf(Leaf):
    """A site whose free shape is that of NumPyro's bijector."""

    free: tuple[int, ...] = ()

    @property
    def free_shape(self) -> tuple[int, ...]:
        """Its shape in unconstrained coordinates."""
        return self.free


@dataclasses.dataclass(frozen=True)
class ReplayedStructure(Structure):
    """The sites of a model, placed by running it.

    A file holds no model: such a sampler is loaded with `load(path, like=target)`.
    """

    # The model with its arguments and a handler in place; known by its identity.
    run: Callable[[Callable[[Site], Any]], Any] | None = None

    def _replay(self, place: Callable[[Site], Any]) -> None:
        assert self.run is not None
        self.run(place)

    def _forward(self, u: Float[Array, " d"]):
        from numpyro.distributions import biject_to

        parts = {
            leaf.name: part
            for leaf, part in zip(self.leaves, self.split(u), strict=True)
        }
        values, log_det = {}, jnp.zeros((), u.dtype)

        def place(site: Site) -> Any:
            nonlocal log_det
            if (free := parts.get(site["name"])) is None:
                return None
            bijector: Any = biject_to(site["fn"].support)
            value = bijector(free)
            values[site["name"]] = value
            log_det += jnp.sum(bijector.log_abs_det_jacobian(free, value))
            return value

        self._replay(place)
        return values, log_det

    def unflatten(self, u: Float[Array, " d"]) -> Any:
        """The sites for the unconstrained vector `u`."""
        return self._forward(u)[0]

    def log_det(self, u: Float[Array, " d"]) -> Float[Array, ""]:
        """The log-determinant of the Jacobian of `unflatten` at `u`."""
        return self._forward(u)[1]

    def _backward(self, tree: Any) -> tuple[dict[str, Array], Array]:
        from numpyro.distributions import biject_to

        free, inside = {}, jnp.ones((), bool)

        def place(site: Site) -> Any:
            nonlocal inside
            if site["name"] not in tree:
                return None
            value = jnp.asarray(tree[site["name"]], float)
            support = site["fn"].support
            bijector: Any = biject_to(support)
            free[site["name"]] = bijector.inv(value)
            inside &= jnp.all(support(value))
            return value

        self._replay(place)
        return free, inside

    def flatten(self, tree: Any) -> Float[Array, " d"]:
        """The unconstrained vector of the sites (inverse of `unflatten`)."""
        free, _ = self._backward(tree)
        return jnp.concatenate([jnp.ravel(free[leaf.name]) for leaf in self.leaves])

    def contains(self, tree: Any) -> Bool[Array, ""]:
        """Whether every site is in its support."""
        return self._backward(tree)[1]

    def to_json(self) -> dict[str, Any]:
        """As of any structure, but for the tree, which a file cannot hold."""
        return {**super().to_json(), "tree": None}


def structure_of(
    sites: dict[str, Site],
    moving: set[str],
    run: Callable[[Callable[[Site], Any]], Any],
) -> Structure:
    """The structure of a model's sites.

    Args:
        sites: those to be drawn, by name.
        moving: the names of those whose bounds depend on others.
        run: runs the model, with a function that places its sites.
    """
    example = {name: np.zeros(np.shape(site["value"])) for name, site in sites.items()}
    named = {n: None if n in moving else constraint(s) for n, s in sites.items()}
    if all(c is not None for c in named.values()):
        return Structure.of(example, {n: c for n, c in named.items() if c is not None})
    leaves = tuple(
        ReplayedLeaf(
            name,
            np.shape(sites[name]["value"]),
            Constraint(_label(sites[name], name in moving)),
            _free_shape(name, sites[name]),
        )
        for name in sorted(sites)
    )
    return ReplayedStructure(jax.tree.structure(example), leaves, run=run)


def _label(site: Site, moving: bool) -> str:
    own = None if moving else constraint(site)
    if own is not None:
        return str(own)
    return type(_base(site["fn"].support)).__name__.strip("_")


def _free_shape(name: str, site: Site) -> tuple[int, ...]:
    from numpyro.distributions import biject_to

    support = site["fn"].support
    try:
        bijector: Any = biject_to(support)
        return tuple(bijector.inverse_shape(np.shape(site["value"])))
    except NotImplementedError:
        kind = type(_base(support)).__name__.strip("_")
        raise UsageError(
            f"The site {name!r} has the support {kind}, for which NumPyro has no "
            "bijector; write it as a function of sites that have one."
        ) from None
