"""The field's hard densities, with what is known of them.

Data files are looked for in the folder that `PUSHFORWARD_DATA` names, then beside the
checkout, then in the user's cache; a density whose data are missing is left out.
"""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pushforward as pf


@dataclasses.dataclass(frozen=True)
class Hard:
    """A density and what is known of it.

    Attributes:
        make: the target.
        log_z: its log normaliser, where it is known.
        weights: from draws to the weights of its modes, or to other probabilities.
        exact: what these are for exact draws.
        energies: a file of reference configurations.
    """

    make: Callable[[], pf.Target]
    log_z: float | None = None
    weights: Callable[[jax.Array], jax.Array] | None = None
    exact: np.ndarray | None = None
    energies: str | None = None


def find(name: str) -> Path | None:
    """A data file, or None."""
    folders = [Path(__file__).resolve().parents[2] / "shared" / "data"]
    if named := os.environ.get("PUSHFORWARD_DATA"):
        folders.insert(0, Path(named).expanduser())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    paths = [folder / name for folder in [*folders, cache / "pushforward"]]
    return next((path for path in paths if path.is_file()), None)


def gaussians40(dim: int, *, equal: bool = True) -> Hard:
    """40 normals with means uniform in the box of half-width 40."""
    rng = np.random.default_rng(40)
    means = jnp.asarray(rng.uniform(-40, 40, (40, dim)), jnp.float32)
    sd = 1.0 if dim == 50 else 1.3133
    weights = np.full(40, 1 / 40) if equal else rng.dirichlet(np.full(40, 3.0))
    logits = jnp.asarray(np.log(weights), jnp.float32)
    constant = 0.5 * dim * np.log(2 * np.pi * sd**2)

    def log_density(x):
        squares = jnp.sum((x[None] - means) ** 2, axis=1) / sd**2
        return jax.nn.logsumexp(logits - 0.5 * squares) - constant

    def sample(key, n):
        mode_key, key = jax.random.split(key)
        mode = jax.random.categorical(mode_key, logits, shape=(n,))
        return means[mode] + sd * jax.random.normal(key, (n, dim))

    def shares(x):
        return jnp.mean(jax.nn.one_hot(_nearest(x, means), 40), axis=0)

    target = pf.Target(log_density, dim=dim, sample=sample)
    return Hard(lambda: target, 0.0, shares, weights)


def _nearest(x, centres):
    distances = jnp.sum(x**2, axis=1)[:, None] - 2 * x @ centres.T
    return jnp.argmin(distances + jnp.sum(centres**2, axis=1)[None], axis=1)


def many_well(dim: int) -> Hard:
    """Pairs with log density `.5 a + 6 a^2 - a^4 - .5 b^2`."""

    def log_density(x):
        a, b = x[0::2], x[1::2]
        return jnp.sum(0.5 * a + 6 * a**2 - a**4 - 0.5 * b**2)

    log_z = dim / 2 * (np.log(11784.50927) + 0.5 * np.log(2 * np.pi))
    grid = np.linspace(-4, 4, 200_001)
    density = np.exp(0.5 * grid + 6 * grid**2 - grid**4)
    right = density[grid > 0].sum() / density.sum()
    return Hard(
        lambda: pf.Target(log_density, dim=dim),
        log_z,
        lambda x: jnp.mean(x[:, 0::2] > 0, axis=0),
        np.full(dim // 2, right),
    )


def dw4(symmetry: Any = None) -> Hard:
    """Four particles in the plane that attract and repel; their centre is normal."""
    i, j = np.triu_indices(4, 1)

    def log_density(x):
        x = x.reshape(4, 2)
        r = jnp.sqrt(jnp.sum((x[i] - x[j]) ** 2, axis=1) + 1e-12)
        energy = jnp.sum(0.9 * (r - 4) ** 4 - 4 * (r - 4) ** 2)
        # Half the squared length of the centre, in coordinates of unit length.
        return -energy - 0.5 * jnp.sum(jnp.sum(x, axis=0) ** 2) / 4

    return Hard(
        lambda: pf.Target(log_density, dim=8, symmetry=symmetry),
        energies="hard/dw4.npz",
    )


def of_dw4() -> Any:
    """What DW-4 does not change under."""
    turned = pf.symmetries.rotations(dim=2, reflections=True)
    return pf.symmetries.permutations(blocks=4) * turned


def lj13() -> Hard:
    """Thirteen Lennard-Jones atoms in space on springs to their centre, centred."""
    i, j = np.triu_indices(13, 1)

    def log_density(x):
        inverse = 1 / (jnp.sum((x[i] - x[j]) ** 2, axis=1) + 1e-6) ** 3
        return -2 * jnp.sum(inverse**2 - 2 * inverse) - 0.5 * jnp.sum(x**2)

    return Hard(
        lambda: pf.Target(
            log_density,
            example=jnp.zeros((13, 3)),
            symmetry=pf.symmetries.particles(reflections=True),
        ),
        energies="hard/lj13.npz",
    )


def xy_chain(n: int) -> Hard:
    """A chain of angles with open ends and coupling 1."""
    from scipy.special import i0

    target = pf.Target(
        lambda x: jnp.sum(jnp.cos(jnp.diff(x))), dim=n, constraints="circular"
    )
    # How often neighbours differ by less than a right angle.
    grid = np.linspace(-np.pi, np.pi, 100_001)[1:]
    density = np.exp(np.cos(grid))
    near = density[np.abs(grid) < np.pi / 2].sum() / density.sum()

    def aligned(x):
        angles = jax.vmap(target.structure.unflatten)(x)
        return jnp.mean(jnp.cos(jnp.diff(angles, axis=1)) > 0, axis=0)

    log_z = n * np.log(2 * np.pi) + (n - 1) * np.log(i0(1.0))
    return Hard(lambda: target, float(log_z), aligned, np.full(n - 1, near))


def labels(dim: int) -> Hard:
    """A mixture of three normals in `dim` dimensions, whose labels mean nothing."""
    rng = np.random.default_rng(3)
    centres = np.array([[-3.0, 0.0], [0.0, 2.0], [3.0, -1.0]])[:, :dim]
    data = np.concatenate([c + 0.8 * rng.normal(size=(20, dim)) for c in centres])
    data = jnp.asarray(data, jnp.float32)

    def log_density(p):
        offsets = (data[:, None] - p["mu"][None]) / 0.8
        parts = jnp.log(p["w"])[None] - 0.5 * jnp.sum(offsets**2, axis=2)
        prior = -0.5 * jnp.sum((p["mu"] / 5) ** 2)
        return jnp.sum(jax.nn.logsumexp(parts, axis=1)) + prior

    def orders(x):
        first = x[:, : 3 * dim].reshape(-1, 3, dim)[..., 0]
        place = jnp.argsort(first, axis=1) @ jnp.array([9, 3, 1])
        known = jnp.array([5, 7, 11, 15, 19, 21])
        return jnp.mean(place[:, None] == known[None], axis=0)

    return Hard(
        lambda: pf.Target(
            log_density,
            example={"mu": jnp.zeros((3, dim)), "w": jnp.ones(3) / 3},
            constraints={"w": "simplex"},
            symmetry=pf.symmetries.permutations("mu", "w"),
        ),
        None,
        orders,
        np.full(6, 1 / 6),
    )


def lj4(temperature: float = 0.15) -> Hard:
    """Four Lennard-Jones atoms in space, each on a spring to the origin.

    They stand at the corners of a tetrahedron, which is as often left- as right-handed.
    """
    i, j = np.triu_indices(4, 1)

    def log_density(x):
        x = x.reshape(4, 3)
        inverse = 1 / (jnp.sum((x[i] - x[j]) ** 2, axis=1) + 1e-6) ** 3
        energy = jnp.sum(inverse**2 - 2 * inverse) + 0.5 * jnp.sum(x**2)
        return -energy / temperature

    def right_handed(x):
        x = x.reshape(-1, 4, 3)
        return jnp.mean(jnp.linalg.det(x[:, 1:] - x[:, :1]) > 0)[None]

    return Hard(
        lambda: pf.Target(log_density, dim=12), None, right_handed, np.array([0.5])
    )


def funnel10() -> Hard:
    """Neal's funnel in ten dimensions, `v ~ N(0, 9)` first."""

    def log_density(x):
        v, rest = x[0], x[1:]
        inner = jnp.sum(rest**2) * jnp.exp(-v) + 9 * (v + jnp.log(2 * jnp.pi))
        return -0.5 * (v**2 / 9 + jnp.log(2 * jnp.pi * 9) + inner)

    def sample(key, n):
        v_key, key = jax.random.split(key)
        v = 3 * jax.random.normal(v_key, (n, 1))
        rest = jnp.exp(v / 2) * jax.random.normal(key, (n, 9))
        return jnp.concatenate([v, rest], axis=1)

    target = pf.Target(log_density, dim=10, sample=sample)
    quantiles = np.array([-6.0, -3.0, 0.0, 3.0, 6.0])
    from scipy.stats import norm

    return Hard(
        lambda: target,
        0.0,
        lambda x: jnp.mean(x[:, :1] < quantiles[None], axis=0),
        norm.cdf(quantiles / 3),
    )


def rings() -> Hard:
    """Four rings around the origin, of radii 1, 2, 3, 4 and width .15."""
    radii = jnp.arange(1.0, 5.0)

    def log_density(x):
        r = jnp.sqrt(jnp.sum(x**2) + 1e-12)
        return jax.nn.logsumexp(-0.5 * ((r - radii) / 0.15) ** 2)

    grid = np.linspace(0, 6, 100_001)
    density = np.exp(-0.5 * ((grid[:, None] - np.arange(1, 5)) / 0.15) ** 2)
    mass = (density * grid[:, None]).sum(axis=0) * (grid[1] - grid[0])

    def shares(x):
        r = jnp.sqrt(jnp.sum(x**2, axis=1))
        nearest = jnp.argmin(jnp.abs(r[:, None] - radii[None]), axis=1)
        return jnp.mean(jax.nn.one_hot(nearest, 4), axis=0)

    log_z = float(np.log(2 * np.pi * mass.sum()))
    return Hard(lambda: pf.Target(log_density, dim=2), log_z, shares, mass / mass.sum())


def cox(*, whitened: bool) -> Hard:
    """Log-Gaussian Cox process of 126 pines on a grid of 40 x 40."""
    path = find("hard/pines.npz")
    assert path is not None
    points = np.load(path)["points"]
    cells = np.minimum((points * 40).astype(int), 39)
    counts = np.zeros((40, 40))
    np.add.at(counts, (cells[:, 0], cells[:, 1]), 1)
    rows = np.stack(np.meshgrid(range(40), range(40), indexing="ij"), -1)
    rows = rows.reshape(-1, 2)
    distances = np.linalg.norm(rows[:, None] - rows[None], axis=-1)
    covariance = 1.91 * np.exp(-distances / (40 / 33))
    lower = np.linalg.cholesky(covariance)
    mean, area = np.log(126) - 1.91 / 2, 1 / 1600
    factor = jnp.asarray(lower, jnp.float32)
    inverse = jnp.asarray(np.linalg.inv(lower), jnp.float32)
    y = jnp.asarray(counts.ravel(), jnp.float32)
    log_det = float(np.log(np.diagonal(lower)).sum())

    def likelihood(f):
        return jnp.sum(y * f - area * jnp.exp(f))

    def log_density(x):
        z = x if whitened else inverse @ (x - mean)
        f = mean + factor @ x if whitened else x
        constant = 800 * jnp.log(2 * jnp.pi) + (0.0 if whitened else log_det)
        return likelihood(f) - 0.5 * jnp.sum(z**2) - constant

    return Hard(lambda: pf.Target(log_density, dim=1600))


def logistic(name: str) -> Hard:
    """Bayesian logistic regression, standardised, with N(0, 1) priors."""
    path = find(f"hard/{name}.npz")
    assert path is not None
    data = np.load(path)
    x = np.asarray(data["X"], np.float64)
    spread = x.std(axis=0)
    x = (x - x.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    x = jnp.asarray(np.concatenate([np.ones((len(x), 1)), x], axis=1), jnp.float32)
    signs = jnp.asarray(2.0 * data["y"] - 1, jnp.float32)

    def log_density(w):
        fit = jnp.sum(jax.nn.log_sigmoid(signs * (x @ w)))
        return fit - 0.5 * jnp.sum(w**2) - 0.5 * len(w) * jnp.log(2 * jnp.pi)

    return Hard(lambda: pf.Target(log_density, dim=x.shape[1]))


def phi4(m2: float) -> Hard:
    """Lattice phi^4 on 8 x 8 with periodic ends, lambda = 8: action of m^2 = `m2`."""

    def log_density(x):
        phi = x.reshape(8, 8)
        steps = sum(jnp.sum((phi - jnp.roll(phi, 1, axis)) ** 2) for axis in (0, 1))
        return -(0.5 * steps + 0.5 * m2 * jnp.sum(phi**2) + 2.0 * jnp.sum(phi**4))

    return Hard(
        lambda: pf.Target(log_density, dim=64),
        None,
        lambda x: jnp.mean(jnp.mean(x, axis=1) > 0)[None],
        np.array([0.5]),
    )


def brownian() -> Hard:
    """Brownian motion of 30 steps, observed with noise but for the middle; 32-d."""
    rng = np.random.default_rng(0)
    path = np.cumsum(0.1 * rng.standard_normal(30))
    seen = np.r_[0:10, 20:30]
    y = jnp.asarray(path[seen] + 0.15 * rng.standard_normal(20), jnp.float32)

    def normal(x, sd):
        return -0.5 * (x / sd) ** 2 - jnp.log(sd) - 0.5 * jnp.log(2 * jnp.pi)

    def log_density(p):
        log_scales, x = p[:2], p[2:]
        innovation, noise = jnp.exp(log_scales)
        prior = jnp.sum(normal(log_scales, 2.0))
        moves = normal(jnp.diff(x, prepend=jnp.zeros(1)), innovation)
        return prior + jnp.sum(moves) + jnp.sum(normal(y - x[seen], noise))

    return Hard(lambda: pf.Target(log_density, dim=32))


HARD: dict[str, Callable[[], Hard]] = {
    "gaussians40_2d": lambda: gaussians40(2),
    "gaussians40_10d": lambda: gaussians40(10),
    "gaussians40_50d": lambda: gaussians40(50),
    "gaussians40_2d_unequal": lambda: gaussians40(2, equal=False),
    "gaussians40_10d_unequal": lambda: gaussians40(10, equal=False),
    "many_well_32": lambda: many_well(32),
    "many_well_64": lambda: many_well(64),
    "dw4": dw4,
    "dw4_symmetric": lambda: dw4(of_dw4()),
    "lj13_symmetric": lj13,
    "labels_1d": lambda: labels(1),
    "labels_2d": lambda: labels(2),
    "xy_chain_64": lambda: xy_chain(64),
    "lj4": lj4,
    "funnel10": funnel10,
    "rings": rings,
    "cox_whitened": lambda: cox(whitened=True),
    "cox": lambda: cox(whitened=False),
    "sonar": lambda: logistic("sonar"),
    "ionosphere": lambda: logistic("ionosphere"),
    "german_credit": lambda: logistic("german_credit"),
    "brownian": brownian,
    "phi4_disordered": lambda: phi4(-2.0),
    "phi4_critical": lambda: phi4(-4.0),
    "phi4_ordered": lambda: phi4(-6.0),
}
