"""The labels of a mixture mean nothing: fit one order, draw all, summarise relabelled.

Three normals share the data; whichever is called first, the density is the same. Told
so by `symmetry=`, the network learns one of the six orders, and the sampler draws all
of them in equal shares. Means over labels say nothing then, so each draw is sorted
before it is summarised.

    python examples/label_switching.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import pushforward as pf

CENTRES, SHARES, SD = np.array([-4.0, 0.0, 3.0]), np.array([0.5, 0.3, 0.2]), 0.7


def make_target(n=60):
    """The posterior of means and weights of the three normals, given `n` numbers."""
    rng = np.random.default_rng(0)
    label = rng.choice(3, n, p=SHARES)
    data = jnp.asarray(CENTRES[label] + SD * rng.normal(size=n), float)

    def log_density(p):
        offsets = (data[:, None] - p["mu"][None]) / SD
        parts = jnp.log(p["weights"])[None] - 0.5 * offsets**2
        prior = -0.5 * jnp.sum((p["mu"] / 5) ** 2) + jnp.sum(jnp.log(p["weights"]))
        return jnp.sum(jax.nn.logsumexp(parts, axis=1)) + prior

    return pf.Target(
        log_density,
        example={"mu": jnp.zeros(3), "weights": jnp.ones(3) / 3},
        constraints={"weights": "simplex"},
        symmetry=pf.symmetries.permutations("mu", "weights"),
    )


def relabelled(draws):
    """The same draws, the labels of each in the order of their means."""
    order = jnp.argsort(draws["mu"], axis=1)
    return {k: jnp.take_along_axis(v, order, axis=1) for k, v in draws.items()}


def main(method=None, steps=None, n=20_000):
    """Fits the posterior and prints the means, the shares of orders and log Z."""
    target = make_target()
    fit = pf.fit(jax.random.key(0), target, method, steps=steps, progress=False)
    print(fit)
    draws = fit.sampler.sample(jax.random.key(1), n)
    orders = np.unique(np.argsort(draws["mu"], axis=1), axis=0, return_counts=True)[1]
    print("shares of the orders:", np.round(orders / n, 3))
    sorted_draws = relabelled(draws)
    for name, values in sorted_draws.items():
        print(
            f"{name:8}", values.mean(axis=0).round(2), "±", values.std(axis=0).round(2)
        )
    print(pf.weigh(jax.random.key(2), target, fit.sampler, 2000))
    return fit, sorted_draws, orders


if __name__ == "__main__":
    main()
