"""An objective, a network and an optimiser of one's own, from outside the package.

The objective is DFT's with a robust first part: Huber's loss in place of the squared
gap between the scores. It is a loss at one noisy draw `x`, given a model `score` of the
sampler's own score. `score_based` puts around it what else it needs: the score network,
the noise, the two networks' turns.

    python examples/own_objective.py
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import pushforward as pf


class RobustDFT(pf.objectives.AbstractScoreObjective):
    """`w huber(s_q - s) + 2 (s_q - s) . (s - c)`, differentiated through `x`."""

    w: float = 1.0

    def __call__(self, x, conditional, score, first, second):
        s, gap = score(x), first(x) - score(x)
        robust = 2 * jnp.sum(optax.losses.huber_loss(gap))
        return self.w * robust + 2 * jnp.sum(gap * (s - conditional))


class Skip(eqx.Module):
    """`z + f(z)`, with a multi-layer perceptron `f`."""

    mlp: eqx.nn.MLP
    in_size: int = eqx.field(static=True)
    out_size: int = eqx.field(static=True)

    def __init__(self, dim, key):
        self.mlp = eqx.nn.MLP(dim, dim, width_size=64, depth=2, key=key)
        self.in_size = self.out_size = dim

    def __call__(self, z):
        return z + self.mlp(z)


def main(steps=3000):
    """Fits a ring."""
    target = pf.targets.get("donut")
    method = pf.methods.score_based(
        RobustDFT(),
        network=Skip,
        score_network=eqx.nn.MLP(2, 2, 64, 3, jax.nn.silu, key=jax.random.key(0)),
        optimiser=optax.adamw(optax.cosine_decay_schedule(1e-3, steps)),
        steps=steps,
    )
    return pf.fit(jax.random.key(1), target, method)


if __name__ == "__main__":
    print(main())
