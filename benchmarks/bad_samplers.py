"""Bad samplers, each wrong in a way that is known, and the forty that are counted.

Ten kinds of fault are made alike on every target, by changing exact draws; two more are
the target's own. All work on unconstrained coordinates.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import pushforward as pf

TARGETS = (
    "student_t",
    "banana",
    "mog2",
    "donut",
    "neal_funnel",
    "eight_schools_noncentred",
)
SIZES = (500, 2000, 5000)

# From so many exact draws the quantiles and standard deviations are taken.
POOL = 100_000


@dataclasses.dataclass(frozen=True)
class Known:
    """A target, a source of exact draws, and what is known of its law."""

    name: str
    target: pf.AbstractTarget
    pool: np.ndarray
    log_densities: np.ndarray

    @staticmethod
    def of(name: str) -> "Known":
        """The built-in target of that name."""
        target = pf.targets.get(name)
        pool = target.sample_flat(jax.random.key(0), POOL)
        values = _log_density(target, pool)
        return Known(name, target, np.asarray(pool, float), np.asarray(values, float))

    def exact(self, seed: int, n: int) -> np.ndarray:
        """Exact draws; those of seeds above zero are not in the pool."""
        return np.asarray(self.target.sample_flat(jax.random.key(seed), n), float)

    def as_given(self, flat: np.ndarray):
        """Draws in the target's own tree, as a user has them."""
        tree = jax.vmap(self.target.structure.unflatten)(jnp.asarray(flat, float))
        return jax.tree.map(np.asarray, tree)

    def log_density(self, flat: np.ndarray) -> np.ndarray:
        """The log density at draws."""
        return np.asarray(_log_density(self.target, jnp.asarray(flat, float)), float)

    def centres(self, flat: np.ndarray) -> np.ndarray:
        """For each draw the middle of what it belongs to: the law, or its mode."""
        if self.name != "mog2":
            return np.median(self.pool, axis=0)[None]
        return np.where(flat[:, :1] < 0, [[-2.0, 2.0]], [[2.0, -2.0]])


@jax.jit
def _log_density(target, flat):
    return jax.lax.map(target.log_density, flat, batch_size=1000)


Make = Callable[[np.random.Generator, Known, int, int], np.ndarray]


def _kept(keep: Callable[[Known, np.ndarray], np.ndarray]) -> Make:
    """Exact draws of which only some are kept."""

    def make(rng, known, seed, n):
        x = known.exact(seed, 4 * n)
        return x[keep(known, x)][:n]

    return make


def _changed(change: Callable[[np.random.Generator, Known, np.ndarray], None]) -> Make:
    """Exact draws, changed in place."""

    def make(rng, known, seed, n):
        x = known.exact(seed, n)
        change(rng, known, x)
        return x

    return make


def _cut(share: float) -> Make:
    """Nothing where the log density is among the lowest `1 - share`."""

    def keep(known, x):
        lowest = np.quantile(known.log_densities, 1 - share)
        return known.log_density(x) >= lowest

    return _kept(keep)


def _heavy(rng, known, x):
    """Every distance from the centre is spread as Student's t with df = 10 spreads."""
    centres = known.centres(x)
    spread = np.sqrt(5 / rng.gamma(5.0, size=(len(x), 1)))
    x[:] = centres + spread * (x - centres)


def _narrow(rng, known, x):
    """The standard deviations are a tenth too small."""
    centres = known.centres(x)
    x[:] = centres + 0.9 * (x - centres)


def _shifted(rng, known, x):
    """Every coordinate is off by a tenth of its standard deviation."""
    x += 0.1 * known.pool.std(axis=0)


def _correlated(rng, known, x):
    """The first two coordinates correlate by .2 more, or thereabouts."""
    mean, sd = known.pool.mean(axis=0), known.pool.std(axis=0)
    z = (x - mean) / sd
    x[:, 1] = mean[1] + sd[1] * (0.2 * z[:, 0] + np.sqrt(0.96) * z[:, 1])


def _copied(rng, known, seed, n):
    """Every draw comes twice."""
    return rng.permutation(np.repeat(known.exact(seed, -(-n // 2)), 2, axis=0)[:n])


def _nearly_copied(rng, known, seed, n):
    """Half of the draws are others, with noise of 1e-6 standard deviations."""
    x = known.exact(seed, n - n // 2)
    copies = x[rng.permutation(len(x))[: n // 2]]
    noise = known.pool.std(axis=0) * rng.standard_normal(copies.shape)
    return rng.permutation(np.concatenate([x, copies + 1e-6 * noise]))


def _clipped(rng, known, x):
    """The first coordinate ends at its 1 % and 99 % quantiles."""
    x[:, 0] = np.clip(x[:, 0], *np.quantile(known.pool[:, 0], [0.01, 0.99]))


def _littered(rng, known, x):
    """3 % lie anywhere within ten standard deviations."""
    which = rng.permutation(len(x))[: round(0.03 * len(x))]
    mean, sd = known.pool.mean(axis=0), known.pool.std(axis=0)
    x[which] = mean + sd * rng.uniform(-10, 10, (len(which), x.shape[1]))


def _as_normal(rng, known, x):
    """A normal law of the same covariance."""
    x[:] = rng.multivariate_normal(x.mean(axis=0), np.cov(known.pool.T), len(x))


def _lopsided(rng, known, x):
    """The first coordinate is positive in 55 % of the draws."""
    x[:, 0] = np.abs(x[:, 0]) * np.where(rng.random(len(x)) < 0.55, 1, -1)


def _bent_less(rng, known, x):
    """The bend of the banana is .027 and not .03."""
    x[:, 1] += 0.003 * (x[:, 0] ** 2 - 100)


def _swapped(rng, known, x):
    """The two coordinates are exchanged."""
    x[:] = x[:, ::-1].copy()


def _one_mode(rng, known, seed, n):
    """One of the two modes is missing."""
    return _kept(lambda known, x: x[:, 0] < 0)(rng, known, seed, n)


def _wrong_weights(rng, known, x):
    """The modes weigh .55 and .45."""
    wanted = np.where(rng.random(len(x)) < 0.55, 1, -1)
    x *= (wanted * np.sign(x[:, 0]))[:, None]


def _blurred(rng, known, x):
    """The ring has noise of .3 across it."""
    radius = np.linalg.norm(x, axis=1, keepdims=True)
    x *= (radius + 0.3 * rng.standard_normal(radius.shape)) / radius


def _gap(known, x):
    """A sector of thirty degrees is missing from the ring."""
    return np.abs(np.arctan2(x[:, 1], x[:, 0])) > np.deg2rad(15)


def _no_neck(known, x):
    """The narrowest 5 % of the funnel are missing."""
    return x[:, 0] > np.quantile(known.pool[:, 0], 0.05)


def _short(rng, known, x):
    """The funnel's log variance has a standard deviation of 2.7 and not 3."""
    rest = x[:, 1:] * np.exp(-x[:, :1] / 2)
    x[:, 0] *= 0.9
    x[:, 1:] = rest * np.exp(x[:, :1] / 2)


def _log_tau(known):
    return known.target.names.index("tau")


def _no_small_tau(known, x):
    """The smallest 10 % of tau are missing."""
    at = _log_tau(known)
    return x[:, at] > np.quantile(known.pool[:, at], 0.1)


def _two_schools(rng, known, x):
    """The schools of effects 28 and -3 are exchanged."""
    names = list(known.target.names)
    pair = [names.index(f"theta_trans[{i}]") for i in (0, 2)]
    x[:, pair] = x[:, pair[::-1]]


KINDS: dict[str, Make] = {
    "tails cut at 98 %": _cut(0.98),
    "tails cut at 99.5 %": _cut(0.995),
    "tails too heavy": _changed(_heavy),
    "sd 10 % too small": _changed(_narrow),
    "shifted by .1 sd": _changed(_shifted),
    "correlation off by .2": _changed(_correlated),
    "every draw twice": _copied,
    "half near copies": _nearly_copied,
    "coordinate clipped at 1 and 99 %": _changed(_clipped),
    "3 % far away": _changed(_littered),
}
# The two that a target has of its own.
OWN: dict[str, dict[str, Make]] = {
    "student_t": {
        "normal, same covariance": _changed(_as_normal),
        "55 % on one side": _changed(_lopsided),
    },
    "banana": {
        "bent a tenth less": _changed(_bent_less),
        "coordinates swapped": _changed(_swapped),
    },
    "mog2": {"a mode missing": _one_mode, "weights .55, .45": _changed(_wrong_weights)},
    "donut": {"blurred": _changed(_blurred), "thirty degrees missing": _kept(_gap)},
    "neal_funnel": {
        "narrowest 5 % missing": _kept(_no_neck),
        "log variance 10 % too narrow": _changed(_short),
    },
    "eight_schools_noncentred": {
        "smallest 10 % of tau missing": _kept(_no_small_tau),
        "two schools swapped": _changed(_two_schools),
    },
}

# Chosen before any of them was tested.
_COUNTED = {
    "tails cut at 98 %": TARGETS,
    "tails cut at 99.5 %": ("student_t", "banana"),
    "tails too heavy": ("student_t", "mog2", "donut"),
    "sd 10 % too small": ("mog2", "neal_funnel", "eight_schools_noncentred"),
    "shifted by .1 sd": ("banana", "eight_schools_noncentred"),
    "correlation off by .2": ("student_t", "donut"),
    "every draw twice": ("donut", "neal_funnel"),
    "half near copies": ("banana", "mog2", "eight_schools_noncentred"),
    "coordinate clipped at 1 and 99 %": ("student_t", "neal_funnel"),
    "3 % far away": ("banana", "donut", "eight_schools_noncentred"),
}


def kinds(target: str) -> dict[str, Make]:
    """The twelve faults of a target."""
    return KINDS | OWN[target]


def counted() -> tuple[tuple[str, str], ...]:
    """The forty (target, kind) that the verdict is held to."""
    return tuple(
        (target, kind)
        for target in TARGETS
        for kind in kinds(target)
        if kind in OWN[target] or target in _COUNTED.get(kind, ())
    )
