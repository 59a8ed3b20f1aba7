"""What methods that train a network share: its shape, its coordinates, its pace."""

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward._precision import NETWORK_DTYPE, narrow
from pushforward.errors import UsageError
from pushforward.methods.base import Clock
from pushforward.networks import (
    MLP,
    AbstractBatchNetwork,
    AbstractNetwork,
    Generator,
    MixtureMap,
    ResidualMap,
    ScoreMLP,
    UNet,
    at_rest,
)
from pushforward.networks.layers import Compute
from pushforward.scores import Field
from pushforward.targets.base import AbstractTarget
from pushforward.targets.coordinates import Whitening
from pushforward.whitening import Look, look

Shape = Literal["residual", "plain", "mixture", "image"]
Schedule = Literal["cosine", "constant"]

# Gaussians in the base of a mixture map.
COMPONENTS = 16


def new_map(
    shape: Shape,
    latent: int,
    dim: int,
    width: int,
    depth: int,
    activation: str,
    *,
    scale: float = 1.0,
    particles: Float[Array, "n d"] | None = None,
    codes: int = 0,
    weigh_codes: bool = False,
    compute: Compute = "float32",
    key: PRNGKeyArray,
) -> AbstractNetwork:
    """A new sampler network from `latent` to `dim` numbers.

    A residual one starts at the standard normal (times `scale`); a mixture at the
    particles of the first look; a plain one, the multi-layer perceptron of the paper,
    wherever its random weights put it, and so does the generator of an image, which
    may have `codes`, equally likely or with weights to be learnt.
    """
    if codes and (shape != "image" or not 2 <= codes <= latent):
        raise UsageError(
            "codes are for shape='image': none, or from 2 to as many as there are "
            f"latent numbers; there are codes={codes}, latent={latent}, "
            f"shape={shape!r}."
        )
    if shape == "image":
        network = Generator(latent, width, compute, codes, weigh_codes, key=key)
        if network.out_size != dim:
            raise UsageError(
                f"shape='image' makes images of {network.out_size} pixels, and the "
                f"target has {dim} coordinates."
            )
        return network
    if shape == "mixture":
        if particles is None or latent != dim + 1:
            raise UsageError(
                "shape='mixture' starts at the particles of a first look, and its "
                f"latent has one number more than the target, {dim + 1}."
            )
        first, second = jax.random.split(key)
        mixture = fit_mixture(first, particles, COMPONENTS)
        return mixture_map(second, mixture, width, depth)
    if shape == "plain":
        return MLP(latent, dim, width, depth, activation, key=key)
    if latent != dim:
        raise UsageError(
            f"A residual map keeps the dimension, {dim}; with latent={latent} use "
            "shape='plain'."
        )
    return ResidualMap(dim, dim, width, depth, activation, scale=scale, key=key)


def new_score(
    shape: Shape,
    target: AbstractTarget,
    width: int,
    depth: int,
    activation: str,
    *,
    compute: Compute = "float32",
    key: PRNGKeyArray,
) -> "ScoreModel":
    """A new model of the sampler's score, in the same style as the sampler."""
    if shape == "image":
        side = round(target.dim**0.5)
        return UNet(side, width, compute, depth, key=key)
    levels = target.is_noise_conditional
    if shape == "plain" and not levels:
        return MLP(target.dim, target.dim, width, depth, activation, key=key)
    return ScoreMLP(target.dim, width, depth, activation, conditional=levels, key=key)


ScoreModel = ScoreMLP | MLP | UNet


def at_level(model: ScoreModel, sigma: Any) -> Field:
    """The score at this noise level, for a model that knows levels."""
    if isinstance(model, MLP):
        return lambda x: model(x)
    if isinstance(model, ScoreMLP) and not model.conditional:
        return lambda x: model(x)
    return lambda x: model(x, sigma)


def in_training(
    network: AbstractNetwork, z: Float[Array, "n l"]
) -> tuple[Float[Array, "n d"], AbstractBatchNetwork | None]:
    """Draws in training, and the network that has seen the batch, if it looks at it."""
    if isinstance(network, AbstractBatchNetwork):
        return network.train(z)
    return jax.vmap(network)(z), None


def rested(network: AbstractNetwork) -> AbstractNetwork:
    """A network that is to be used: its running statistics, if any, made its own."""
    if not isinstance(network, AbstractBatchNetwork):
        return network
    shape = (16, 256, network.in_size)
    return at_rest(network, jax.random.normal(jax.random.key(0), shape, NETWORK_DTYPE))


# Logits, means and lower factors of the covariances of a Gaussian mixture.
Mixture = tuple[Float[Array, " k"], Float[Array, "k d"], Float[Array, "k d d"]]


def mixture_map(
    key: PRNGKeyArray, mixture: Mixture, width: int, depth: int, layers: int = 0
) -> MixtureMap:
    """A new mixture map that starts at this mixture."""
    components, dim = mixture[1].shape
    network = MixtureMap(dim + 1, width, depth, components, layers, key=key)
    return eqx.tree_at(
        lambda m: (m.logits, m.means, m.factors),
        network,
        tuple(narrow(part) for part in mixture),
    )


def coordinates(
    key: PRNGKeyArray, target: AbstractTarget, *, particles: int, whiten: bool
) -> Look:
    """A first look at the target, or with `whiten=False` its own coordinates."""
    if whiten:
        return look(key, target, particles=particles)
    plain = Whitening.identity(target.dim)
    blank = jax.random.normal(key, (particles, target.dim))
    return Look(plain, blank, None, None, None, jnp.zeros((), jnp.int32))


def pace(schedule: Schedule, clock: Clock) -> Float[Array, ""]:
    """The factor on the learning rate at this step."""
    if schedule == "constant":
        return jnp.ones((), jnp.float32)
    return clock.warmup_cosine()


def fit_mixture(
    key: PRNGKeyArray,
    x: Float[Array, "n d"],
    components: int,
    *,
    sweeps: int = 50,
    metric: Float[Array, "d d"] | None = None,
) -> Mixture:
    """A Gaussian mixture by EM, from a k-means++ start: logits, means, factors.

    A weak prior (d + 1 pseudo-observations of variance .02) keeps every covariance
    positive. No library in the core does this inside a compiled program.

    With a `metric` it is a mixture for many dimensions. Its components have one
    covariance in common, as the points are too few for one each, and the start measures
    distances between `metric @ x`: in coordinates in which all directions vary alike,
    the one that separates two modes does not stand out against so many others.
    """
    n, dim = x.shape
    y = x if metric is None else x @ metric.T
    eye = jnp.eye(dim, dtype=x.dtype)

    def next_centre(carry, key):
        distances = carry
        chosen = y[jax.random.categorical(key, jnp.log(distances + 1e-12))]
        new = jnp.minimum(distances, jnp.sum((y - chosen[None]) ** 2, axis=1))
        return new, chosen

    start = jnp.ones(n, x.dtype)
    _, centres = jax.lax.scan(next_centre, start, jax.random.split(key, components))
    distances = jnp.sum((y[:, None] - centres[None]) ** 2, axis=-1)
    members = jax.nn.one_hot(jnp.argmin(distances, axis=1), components, dtype=x.dtype)

    def maximise(members):
        mass = jnp.sum(members, axis=0) + 1e-3
        means = members.T @ x / mass[:, None]
        second = jnp.einsum("nk,ni,nj->kij", members, x, x) / mass[:, None, None]
        spread = second - means[:, :, None] * means[:, None, :]
        counted = mass
        if metric is not None:
            pooled = jnp.einsum("k,kij->ij", mass / jnp.sum(mass), spread)
            spread = jnp.broadcast_to(pooled[None], spread.shape)
            counted = jnp.full_like(mass, n)
        share = (counted / (counted + dim + 1))[:, None, None]
        covariances = share * spread + (0.02 * (1 - share) + 1e-4) * eye[None]
        return jnp.log(mass / n), means, jnp.linalg.cholesky(covariances)

    def sweep(_, mixture):
        logits, means, factors = mixture
        inverses = jnp.linalg.inv(factors)
        # (n, k, d): the whitened distance of every point to every component.
        offsets = jnp.einsum("kij,nkj->nki", inverses, x[:, None] - means[None])
        diagonals = jnp.diagonal(factors, axis1=1, axis2=2)
        log_dets = jnp.sum(jnp.log(diagonals), axis=1)
        log_weights = (logits - log_dets)[None] - 0.5 * jnp.sum(offsets**2, axis=-1)
        return maximise(jax.nn.softmax(log_weights, axis=1))

    return jax.lax.fori_loop(0, sweeps, sweep, maximise(members))


# On the way from one mode to another log q falls by more than this, and rises again.
_DIP = 3.0
# Normals whose means are closer than this, in standard deviations, overlap.
_OVERLAP = 4.0


def merge(
    log_density: Callable[[Float[Array, " d"]], Float[Array, ""]], mixture: Mixture
) -> Mixture:
    """A mixture of one covariance, with the components of one mode made one normal.

    Of those that a component overlaps, or reaches on a way without a dip, it joins the
    one where log q is highest; so one that lies between two modes does not link them.
    What is made of those that were joined has their weight, mean and covariance, and
    its copies stand in their places.
    """
    logits, means, factors = mixture
    offsets = means[:, None] - means[None]
    away = jnp.linalg.norm(offsets @ jnp.linalg.inv(factors[0]).T, axis=-1)
    along = jnp.linspace(0.0, 1.0, 9, dtype=means.dtype)[:, None, None, None]
    ways = means[None, None] + along * offsets[None]
    heights = jax.vmap(jax.vmap(jax.vmap(log_density)))(ways)
    before = jax.lax.cummax(heights)
    after = jax.lax.cummax(heights, reverse=True)
    dip = jnp.max(jnp.minimum(before, after) - heights, axis=0)
    reached = (away < _OVERLAP) | (dip < _DIP)
    highest = jnp.argmax(jnp.where(reached, heights[0], -jnp.inf), axis=1)
    for _ in range(means.shape[0].bit_length()):
        highest = highest[highest]
    linked = (highest[:, None] == highest[None, :]).astype(means.dtype)
    shares = linked * jax.nn.softmax(logits)[None]
    masses = jnp.sum(shares, axis=1)
    shares = shares / masses[:, None]
    centres = shares @ means
    apart = means[None] - centres[:, None]
    spread = jnp.einsum("kj,kji,kjl->kil", shares, apart, apart)
    covariances = spread + factors @ jnp.swapaxes(factors, 1, 2)
    logits = jnp.log(masses / jnp.sum(linked, axis=1))
    return logits, centres, jnp.linalg.cholesky(covariances)
