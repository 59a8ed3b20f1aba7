"""Which network: small frozen objects of a few numbers, made into a network by `fit`.

Wherever a method takes a network it takes one of these, a function `(dim, key)` that
returns an `eqx.Module`, or such a module.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward import _validate
from pushforward._precision import NETWORK_DTYPE, narrow
from pushforward.errors import UsageError
from pushforward.networks.base import AbstractNetwork
from pushforward.networks.coupling import CouplingMap
from pushforward.networks.mixture import MixtureMap
from pushforward.networks.mixture_fit import (
    WEIGHING,
    Mixture,
    fit_mixture,
    merge,
    reweigh,
)
from pushforward.networks.mlp import (
    MLP,
    AffineMap,
    ResidualMap,
    ScoreMLP,
    refuse_unknown,
)
from pushforward.networks.own import check_output, own_network
from pushforward.networks.particles import ParticleMap
from pushforward.targets.base import AbstractTarget
from pushforward.targets.preconditioner import Preconditioned

# Above, particles are too few for a covariance of each component, and components are
# for modes alone.
MANY = 32
# Bins of the spline that bends a single coordinate.
BINS = 32


class Start(eqx.Module):
    """What a sampler network may start from.

    Attributes:
        target: the target in the network's coordinates, in which it is about standard.
        particles: points that roughly follow it.
        noise_scale: the noise that will be added to what the network gives.
        key: a second key, for networks that draw twice.
        mixture: a Gaussian mixture of the particles, where it has been fitted before.
    """

    target: Preconditioned
    particles: Float[Array, "n d"]
    noise_scale: float
    key: PRNGKeyArray
    mixture: Mixture | None = None


class AbstractNetworkSpec(eqx.Module):
    """How a network is made: as the sampler, or as a field such as a score."""

    def resolve(self, target: AbstractTarget) -> "AbstractNetworkSpec":
        """The same, with what depends on the target filled in."""
        return self

    def evaluations(self, target: AbstractTarget) -> int:
        """How often making a sampler network evaluates the target."""
        return 0

    @abc.abstractmethod
    def sampler(self, key: PRNGKeyArray, start: Start) -> AbstractNetwork:
        """A new sampler network, from latent numbers to the target's coordinates."""

    @abc.abstractmethod
    def field(self, key: PRNGKeyArray, target: AbstractTarget) -> AbstractNetwork:
        """A new network from points to vectors: a model of a score, or a critic.

        It is called as `s(x)`, or `s(x, sigma)` where the target knows noise levels.
        """

    @abc.abstractmethod
    def partner(self) -> "AbstractNetworkSpec":
        """What models the score of such a sampler, where nothing else is named."""


class ResidualSpec(AbstractNetworkSpec):
    """A multi-layer perceptron that starts at the standard normal.

    As the sampler a `ResidualMap`, as a field a `ScoreMLP`, with `depth` hidden layers
    of `width` units.
    """

    width: int = 64
    depth: int = 3
    activation: str = "silu"

    def __check_init__(self):
        _check_sizes(self.width, self.depth, self.activation)

    def sampler(self, key: PRNGKeyArray, start: Start) -> AbstractNetwork:
        # The noise adds sigma^2 to the variance: start at N(0, I) in all.
        scale = (1 - start.noise_scale**2) ** 0.5
        dim = start.target.dim
        return ResidualMap(
            dim, dim, self.width, self.depth, self.activation, scale=scale, key=key
        )

    def field(self, key: PRNGKeyArray, target: AbstractTarget) -> AbstractNetwork:
        return ScoreMLP(
            target.dim,
            self.width,
            self.depth,
            self.activation,
            conditional=target.has_noise_levels(),
            key=key,
        )

    def partner(self) -> AbstractNetworkSpec:
        return self


class MLPSpec(AbstractNetworkSpec):
    """A plain multi-layer perceptron, which starts wherever its random weights put it.

    Attributes:
        width: units of a hidden layer.
        depth: how many hidden layers.
        activation: the name of their activation.
        latent: how many numbers the sampler starts from; None is the dimension.
        final_scale: a factor on the initial weights of the last layer.
    """

    width: int = 64
    depth: int = 3
    activation: str = "silu"
    latent: int | None = None
    final_scale: float = 1.0

    def __check_init__(self):
        _check_sizes(self.width, self.depth, self.activation)
        if self.latent is not None:
            _validate.whole_number("latent", self.latent)
        _validate.positive("final_scale", self.final_scale)

    def resolve(self, target: AbstractTarget) -> "MLPSpec":
        return dataclasses.replace(self, latent=self.latent or target.dim)

    def _make(self, inputs: int, outputs: int, key: PRNGKeyArray) -> MLP:
        sizes = inputs, outputs, self.width, self.depth
        return MLP(*sizes, self.activation, self.final_scale, key=key)

    def sampler(self, key: PRNGKeyArray, start: Start) -> AbstractNetwork:
        dim = start.target.dim
        return self._make(self.latent or dim, dim, key)

    def field(self, key: PRNGKeyArray, target: AbstractTarget) -> AbstractNetwork:
        if target.has_noise_levels():
            return ResidualSpec(self.width, self.depth, self.activation).field(
                key, target
            )
        return self._make(target.dim, target.dim, key)

    def partner(self) -> AbstractNetworkSpec:
        return dataclasses.replace(self, latent=None)


class MixtureSpec(AbstractNetworkSpec):
    """Normals fitted to the particles of the initialisation, bent by coupling layers.

    Attributes:
        components: how many normals; None is 16, above 32 dimensions 8, and 1 where
            only a score is known, which cannot weigh them.
        layers: how many coupling layers; None is as many as part every two coordinates,
            at least 12. With 0 a residual map bends them, or a spline where there is
            only one coordinate.
        width: units of a hidden layer.
        depth: how many hidden layers.
        bins: how many bins the splines of the coupling layers have; 0 is no splines.
    """

    components: int | None = None
    layers: int | None = None
    width: int = 32
    depth: int = 2
    bins: int = 0

    def __check_init__(self):
        _check_sizes(self.width, self.depth)
        _validate.whole_number("bins", self.bins, 0)
        if self.components is not None:
            _validate.whole_number("components", self.components)
        if self.layers is not None:
            _validate.whole_number("layers", self.layers, 0)

    def resolve(self, target: AbstractTarget) -> "MixtureSpec":
        components, layers = self._sizes(target)
        return dataclasses.replace(self, components=components, layers=layers)

    def evaluations(self, target: AbstractTarget) -> int:
        # With coupling layers its density is known, and its weights are learnt.
        components, layers = self._sizes(target)
        weighed = components > 1 and not layers and 1 < target.dim <= MANY
        values = target.why_no_values() is None and target.num_terms == 1
        return WEIGHING if weighed and values else 0

    def _sizes(self, target: AbstractTarget) -> tuple[int, int]:
        components, layers = self.components, self.layers
        if components is None:
            # Their weights need values of log q, not only its score.
            components = 8 if target.dim > MANY else 16
            if target.why_no_values() is not None:
                components = 1
        if layers is None:
            # As many pairs of layers as part every two coordinates.
            enough = max(6 if self.bins else 12, 2 * (target.dim - 1).bit_length())
            layers = enough if target.dim > 1 else 0
        if layers:
            _refuse_line(target)
        return components, layers

    def sampler(self, key: PRNGKeyArray, start: Start) -> AbstractNetwork:
        components, layers = self._sizes(start.target)
        mixture = start.mixture
        if mixture is None:
            mixture = _fit(key, start, components)
            if self.evaluations(start.target):
                weigh_key = jax.random.fold_in(key, 1)
                mixture = reweigh(weigh_key, start.target.log_density, mixture)
        sizes = self.width, self.depth, layers, self.bins
        return mixture_map(start.key, mixture, *sizes)

    def field(self, key: PRNGKeyArray, target: AbstractTarget) -> AbstractNetwork:
        raise _no_field("mixture")

    def partner(self) -> AbstractNetworkSpec:
        return ResidualSpec(self.width, self.depth)


class CouplingSpec(AbstractNetworkSpec):
    """Coupling layers on one standard normal: a `CouplingMap`.

    Attributes:
        layers: how many coupling layers.
        width: units of a hidden layer.
        depth: how many hidden layers.
        activation: the name of their activation.
    """

    layers: int = 8
    width: int = 64
    depth: int = 2
    activation: str = "silu"

    def __check_init__(self):
        _validate.whole_number("layers", self.layers)
        _check_sizes(self.width, self.depth, self.activation)

    def resolve(self, target: AbstractTarget) -> "CouplingSpec":
        _refuse_line(target)
        return self

    def sampler(self, key: PRNGKeyArray, start: Start) -> AbstractNetwork:
        return CouplingMap(
            start.target.dim,
            self.layers,
            self.width,
            self.depth,
            self.activation,
            key=key,
        )

    def field(self, key: PRNGKeyArray, target: AbstractTarget) -> AbstractNetwork:
        raise _no_field("coupling")

    def partner(self) -> AbstractNetworkSpec:
        return ResidualSpec(self.width, self.depth, self.activation)


class AffineSpec(AbstractNetworkSpec):
    """A mean and a Cholesky factor: a Gaussian that starts at the standard normal."""

    def sampler(self, key: PRNGKeyArray, start: Start) -> AbstractNetwork:
        return AffineMap(start.target.dim)

    def field(self, key: PRNGKeyArray, target: AbstractTarget) -> AbstractNetwork:
        raise _no_field("affine")

    def partner(self) -> AbstractNetworkSpec:
        return ResidualSpec()


class ParticleSpec(AbstractNetworkSpec):
    """Identical particles: an equivariant `ParticleMap`.

    It sees positions as they are, and so is for targets whose coordinates stay: those
    of noise levels (`pushforward.smooth`), or with `whiten=False`.

    Attributes:
        count: how many particles.
        dim: the dimension of their space.
        width: units of a hidden layer, and numbers of a message.
        layers: how often messages are exchanged.
        latent: how many numbers of noise each particle has beside its position.
    """

    count: int
    dim: int
    width: int = 32
    layers: int = 3
    latent: int = 0

    def __check_init__(self):
        _validate.whole_number("count", self.count, 2)
        _validate.whole_number("dim", self.dim)
        _validate.whole_number("layers", self.layers)
        _validate.whole_number("latent", self.latent, 0)
        _check_sizes(self.width, 1)

    def _is_centred(self, target: AbstractTarget) -> bool:
        sizes = [(self.count - less) * self.dim for less in (0, 1)]
        if target.dim not in sizes:
            raise UsageError(
                f"networks.particles({self.count}, {self.dim}) has {sizes[0]} "
                f"coordinates, or {sizes[1]} where the particles are centred, and the "
                f"target has {target.dim}."
            )
        return target.dim == sizes[1]

    def sampler(self, key: PRNGKeyArray, start: Start) -> AbstractNetwork:
        if not start.target.preconditioner.is_scalar():
            raise UsageError(
                "networks.particles() needs coordinates in which particles are alike: "
                "give the method whiten=False, or smooth the target "
                "(pushforward.smooth)."
            )
        is_centred = self._is_centred(start.target)
        sizes = self.count, self.dim, self.width, self.layers, self.latent
        network = ParticleMap(*sizes, is_centred=is_centred, key=key)
        size = narrow(jnp.log(jnp.std(start.particles)))
        return eqx.tree_at(lambda n: n.log_size, network, size)

    def field(self, key: PRNGKeyArray, target: AbstractTarget) -> AbstractNetwork:
        return ParticleMap(
            self.count,
            self.dim,
            self.width,
            self.layers,
            is_centred=self._is_centred(target),
            score=True,
            conditional=target.has_noise_levels(),
            key=key,
        )

    def partner(self) -> AbstractNetworkSpec:
        return dataclasses.replace(self, latent=0)


class OwnSpec(AbstractNetworkSpec):
    """The user's own network: a function `(dim, key)` that makes it, or itself."""

    value: Any

    def _network(self, role: str, dim: int, key: PRNGKeyArray) -> AbstractNetwork:
        made = self.value
        if not isinstance(made, eqx.Module):
            try:
                made = made(dim, key)
            except TypeError as error:
                raise UsageError(
                    f"The {role} could not be made by calling network({dim}, key) "
                    f"({error}); give a function of these two arguments, or a module."
                ) from error
        return own_network(role, made)

    def sampler(self, key: PRNGKeyArray, start: Start) -> AbstractNetwork:
        dim = start.target.dim
        network = self._network("sampler network", dim, key)
        z = jax.ShapeDtypeStruct((network.in_size,), NETWORK_DTYPE)
        check_output("sampler network", network, dim, z)
        return network

    def field(self, key: PRNGKeyArray, target: AbstractTarget) -> AbstractNetwork:
        role = "score network"
        network = self._network(role, target.dim, key)
        x = jax.ShapeDtypeStruct((target.dim,), NETWORK_DTYPE)
        sigma = jax.ShapeDtypeStruct((), NETWORK_DTYPE)
        levels = (sigma,) if target.has_noise_levels() else ()
        check_output(role, network, target.dim, x, *levels)
        return network

    def partner(self) -> AbstractNetworkSpec:
        return ResidualSpec()


Network = AbstractNetworkSpec | eqx.Module | Callable[[int, PRNGKeyArray], Any]


def as_spec(network: Network) -> AbstractNetworkSpec:
    """What a user passed as a network, as a specification of one."""
    if isinstance(network, AbstractNetworkSpec):
        return network
    if callable(network):
        return OwnSpec(network)
    raise UsageError(
        "A network must be one such as networks.residual(), a function (dim, key) that "
        f"returns an eqx.Module, or an eqx.Module; not {network!r}."
    )


residual = ResidualSpec
mlp = MLPSpec
mixture = MixtureSpec
affine = AffineSpec
coupling = CouplingSpec
particles = ParticleSpec


def mixture_map(
    key: PRNGKeyArray,
    mixture: Mixture,
    width: int,
    depth: int,
    layers: int = 0,
    bins: int = 0,
) -> MixtureMap:
    """A new mixture map that starts at this mixture."""
    components, dim = mixture[1].shape
    # A single coordinate has no two halves.
    bins = BINS if dim == 1 else bins if layers else 0
    network = MixtureMap(dim + 1, width, depth, components, layers, bins, key=key)
    return eqx.tree_at(
        lambda m: (m.logits, m.means, m.factors),
        network,
        tuple(narrow(part) for part in mixture),
    )


def _fit(key: PRNGKeyArray, start: Start, components: int) -> Mixture:
    """The mixture of the particles of the initialisation."""
    target = start.target
    if target.dim <= MANY or target.why_no_values() is not None:
        return fit_mixture(key, start.particles, components)
    # Coordinates that are scaled one by one.
    metric = target.preconditioner.factor
    found = fit_mixture(key, start.particles, components, metric=metric)
    return merge(target.log_density, found)


def _no_field(name: str) -> UsageError:
    return UsageError(
        f"networks.{name}() is a sampler, not a model of a score or a critic; use "
        "networks.residual() or networks.mlp()."
    )


def _refuse_line(target: AbstractTarget) -> None:
    if target.dim < 2:
        raise UsageError(
            "A coupling layer changes one half of the coordinates given the other, and "
            "the target has only one; use the method Transport."
        )


def _check_sizes(width: int, depth: int, activation: str = "silu") -> None:
    _validate.whole_number("width", width)
    _validate.whole_number("depth", depth, 0)
    if not isinstance(activation, str):
        raise UsageError(f"activation must be a name, not {activation!r}.")
    refuse_unknown(activation)
