"""A Gaussian mixture fitted to particles: where a mixture map starts."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pushforward import _programs

# Logits, means and lower factors of the covariances of a Gaussian mixture.
Mixture = tuple[Float[Array, " k"], Float[Array, "k d"], Float[Array, "k d d"]]


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


# The log weight of a component that is not used: finite, and its density is 0.
UNUSED = -1e4
# The longest axis of a mode, in units of the spread of all points.
_LONGEST = 3.0


@_programs.compiled
def fit_mixture_to_modes(
    key: PRNGKeyArray,
    x: Float[Array, "n d"],
    labels: Int[Array, " n"],
    axes: Float[Array, "m d d"],
    counts: Int[Array, " m"],
    components: int,
    *,
    sweeps: int = 30,
) -> Mixture:
    """A Gaussian mixture with components for each of m modes, by EM within the modes.

    Point `i` is of mode `labels[i]`, which has `counts[labels[i]]` components; what is
    left of the `components` is unused. Covariances have a weak prior, the covariance of
    the mode: of its points, and where these are few of a Gaussian with `axes`.
    """
    n, dim = x.shape
    m = axes.shape[0]
    ends = jnp.cumsum(counts)
    index = jnp.arange(components)
    owner = jnp.minimum(jnp.sum(index[:, None] >= ends[None], axis=1), m - 1)
    used = index < ends[-1]
    allowed = (labels[:, None] == owner[None]) & used[None]

    of_mode = jax.nn.one_hot(labels, m, dtype=x.dtype)
    sizes = jnp.sum(of_mode, axis=0)
    centres = of_mode.T @ x / jnp.maximum(sizes, 1.0)[:, None]
    offsets = x - centres[labels]
    scatter = jnp.einsum("nm,ni,nj->mij", of_mode, offsets, offsets)
    # No mode is wider than all of the points.
    longest = _LONGEST * jnp.sqrt(jnp.sum(jnp.var(x, axis=0)))
    lengths = jnp.linalg.norm(axes, axis=1, keepdims=True)
    axes = axes * jnp.minimum(1.0, longest / jnp.maximum(lengths, 1e-30))
    laplace = axes @ jnp.swapaxes(axes, 1, 2)
    weight = jnp.asarray(2 * dim, x.dtype)
    spread = (scatter + weight * laplace) / (sizes + weight)[:, None, None]
    # Several components share what one would cover.
    shrink = jnp.where(counts > 1, 0.1, 1.0)
    prior = (spread * shrink[:, None, None])[owner]
    scales = jnp.sqrt(jnp.diagonal(spread, axis1=1, axis2=2))

    # k-means++ within the modes: the first of each anywhere, the next far from it.
    def next_centre(distances, i):
        mine = labels == owner[i]
        first = (i == 0) | (owner[i] != owner[i - 1])
        logits = jnp.where(first, 0.0, jnp.log(distances + 1e-12))
        logits = jnp.where(mine, logits, -1e30)
        chosen = x[jax.random.categorical(jax.random.fold_in(key, i), logits)]
        away = jnp.sum(((x - chosen[None]) / scales[labels]) ** 2, axis=1)
        return jnp.where(
            mine & used[i], jnp.minimum(distances, away), distances
        ), chosen

    start = jnp.full(n, 1e30, x.dtype)
    _, seeds = jax.lax.scan(next_centre, start, index)

    def distance(seed):
        return jnp.sum(((x - seed[None]) / scales[labels]) ** 2, axis=1)

    distances = jnp.where(allowed, jax.lax.map(distance, seeds).T, jnp.inf)
    members = jax.nn.one_hot(jnp.argmin(distances, axis=1), components, dtype=x.dtype)

    def maximise(members):
        mass = jnp.sum(members, axis=0)
        means = members.T @ x / jnp.maximum(mass, 1e-3)[:, None]
        means = jnp.where((mass > 1e-3)[:, None], means, centres[owner])

        def covariance(args):
            r, mean, total = args
            away = x - mean[None]
            return (away * r[:, None]).T @ away / jnp.maximum(total, 1e-3)

        found = jax.lax.map(covariance, (members.T, means, mass))
        share = (mass / (mass + dim + 1))[:, None, None]
        covariances = share * found + (1 - share) * prior
        floor = 1e-5 * jnp.diagonal(prior, axis1=1, axis2=2) + 1e-12
        covariances += jax.vmap(jnp.diag)(floor)
        logits = jnp.where(used, jnp.log(jnp.maximum(mass, 1e-2) / n), UNUSED)
        return logits, means, jnp.linalg.cholesky(covariances)

    def sweep(_, mixture):
        def log_weight(args):
            logit, mean, factor = args
            offsets = jax.scipy.linalg.solve_triangular(
                factor, (x - mean[None]).T, lower=True
            )
            log_det = jnp.sum(jnp.log(jnp.diagonal(factor)))
            return logit - log_det - 0.5 * jnp.sum(offsets**2, axis=0)

        logs = jax.lax.map(log_weight, mixture).T
        return maximise(jax.nn.softmax(jnp.where(allowed, logs, -jnp.inf), axis=1))

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


# Draws by which a mixture is weighed, and the least effective share of them.
WEIGHING, _EFFECTIVE = 16_384, 0.5


def reweigh(
    key: PRNGKeyArray,
    log_density: Callable[[Float[Array, " d"]], Float[Array, ""]],
    mixture: Mixture,
) -> Mixture:
    """The mixture with the weights that its components have under the target.

    With `p` the mixture, `w_k` proportional to `E_p[r_k q / p]`, where `r_k(x)` is the
    probability that `x` came from component k. Particles in two modes miss their
    weights by the chance of resampling; draws of the mixture, as many from each
    component as it should have, do not. Where their effective share is too small to
    tell, the weights stay.
    """
    logits, means, factors = mixture
    pick_key, key = jax.random.split(key)
    edges = jnp.cumsum(jax.nn.softmax(logits))[:-1]
    u = jax.random.uniform(pick_key, (WEIGHING,), means.dtype)
    u = (jnp.arange(WEIGHING, dtype=means.dtype) + u) / WEIGHING
    chosen = jnp.sum(u[:, None] > edges[None], axis=1)
    z = jax.random.normal(key, (WEIGHING, means.shape[1]), means.dtype)
    x = means[chosen] + jnp.einsum("nij,nj->ni", factors[chosen], z)

    def log_parts(mean, factor):
        away = jax.scipy.linalg.solve_triangular(factor, (x - mean[None]).T, lower=True)
        log_det = jnp.sum(jnp.log(jnp.diagonal(factor)))
        return -0.5 * jnp.sum(away**2, axis=0) - log_det

    parts = jax.vmap(log_parts)(means, factors).T + jax.nn.log_softmax(logits)[None]
    log_p = jax.nn.logsumexp(parts, axis=1)
    found = jax.vmap(log_density)(x) - log_p
    found = jnp.where(jnp.isfinite(found), found, -jnp.inf)
    share = jax.nn.softmax(found)
    masses = jnp.sum(share[:, None] * jnp.exp(parts - log_p[:, None]), axis=0)
    enough = 1 / jnp.sum(share**2) > _EFFECTIVE * WEIGHING
    logs = jnp.log(jnp.maximum(masses, jnp.finfo(masses.dtype).tiny))
    return jnp.where(enough, logs, logits), means, factors
