"""A cluster of particles: one shape to learn instead of all its copies.

Four Lennard-Jones atoms in the plane, each pulled to their common centre. Their energy
does not change when atoms trade places, or the cluster is shifted, turned or mirrored;
`symmetries.particles` says so. Printed are the mean energy and the heat capacity of
the sampler's draws and of the same draws after many MALA steps, and how often two atoms
are at each distance.

    python examples/particle_cluster.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import pushforward as pf

ATOMS, TEMPERATURE, SPRING = 4, 0.5, 1.0
PAIRS = np.triu_indices(ATOMS, 1)


def distances(x):
    """Of all pairs of atoms of one cluster."""
    apart = x[PAIRS[0]] - x[PAIRS[1]]
    return jnp.sqrt(jnp.sum(apart**2, axis=1) + 1e-12)


def energy(x):
    """Lennard-Jones, and a spring from each atom to the centre."""
    inverse = 1 / (distances(x) ** 2 + 1e-3) ** 3
    centred = x - x.mean(axis=0)[None]
    return jnp.sum(inverse**2 - 2 * inverse) + 0.5 * SPRING * jnp.sum(centred**2)


def make_target():
    """The Boltzmann density of the clusters whose centre is at the origin."""
    return pf.Target(
        lambda x: -energy(x) / TEMPERATURE,
        example=jnp.zeros((ATOMS, 2)),
        symmetry=pf.symmetries.particles(reflections=True),
    )


def summary(x):
    """Mean energy, heat capacity, and the distribution of distances."""
    energies = np.asarray(jax.vmap(energy)(x))
    apart = np.asarray(jax.vmap(distances)(x)).ravel()
    shares = np.histogram(apart, np.linspace(0.6, 3.0, 9))[0] / len(apart)
    return energies.mean(), energies.var() / TEMPERATURE**2, shares


def main(method=None, steps=None, n=4000, moves=200):
    """Fits the cluster and compares its draws with a long Markov chain from them."""
    target = make_target()
    fit = pf.fit(jax.random.key(0), target, method, steps=steps, progress=False)
    print(fit)
    draws = fit.sampler.sample(jax.random.key(1), n)
    moved = pf.refine(jax.random.key(2), target, draws, moves)
    both = {"sampler": summary(draws), f"{moves} MALA steps": summary(moved)}
    for name, (mean, capacity, shares) in both.items():
        print(f"{name:15} energy {mean:.3f}, heat capacity {capacity:.2f}")
        print(f"{'':15} distances {np.round(shares, 3)}")
    return fit, both


if __name__ == "__main__":
    main()
