"""The posterior of the second experiment: Bayesian logistic regression.

The parameters are `(w, log alpha)`, 55 weights and one log precision:

    y_i ~ Bernoulli(sigmoid(x_i . w)),   w ~ N(0, I / alpha),   alpha ~ Gamma(1, .01),

the last by shape and rate. In `t = log alpha` the log prior is, up to a constant,

    d/2 t - exp(t) |w|^2 / 2  +  t - .01 exp(t),

where the single `t` is the Jacobian of the logarithm.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import pushforward as pf
from reproduction.covertype.data import Classification

RATE = 0.01
BATCH = 500


def log_prior(x: Float[Array, " d"]) -> Float[Array, ""]:
    """The log prior of `(w, log alpha)`, with the Jacobian of the logarithm."""
    w, t = x[:-1], x[-1]
    alpha = jnp.exp(t)
    gaussian = 0.5 * w.shape[0] * t - 0.5 * alpha * jnp.sum(w**2)
    return gaussian + t - RATE * alpha


def log_prior_hu(x: Float[Array, " d"]) -> Float[Array, ""]:
    """The prior in the code of Hu et al. (2018): `alpha = s^2`, without a Jacobian.

    It is another posterior, kept for the record.
    """
    w, s = x[:-1], x[-1]
    alpha = s**2 + 1e-12
    gaussian = 0.5 * w.shape[0] * jnp.log(alpha) - 0.5 * alpha * jnp.sum(w**2)
    return gaussian - RATE * alpha


def log_likelihood(x: Float[Array, " d"], datum: dict[str, Array]) -> Float[Array, ""]:
    """The log likelihood of one row: `y l - log(1 + e^l)` at the logit `l = x.w`."""
    # A product of vectors: over many rows and points it becomes one of matrices.
    logit = datum["x"] @ x[:-1]
    return datum["y"] * logit - jax.nn.softplus(logit)


def posterior(
    data: Classification,
    *,
    batch_size: int = BATCH,
    prior=log_prior,
) -> pf.MinibatchTarget:
    """The posterior over the training rows, seen through minibatches.

    Args:
        data: the rows.
        batch_size: of the minibatches.
        prior: `log_prior`, or `log_prior_hu`.
    """
    dim = data.train_x.shape[1] + 1
    names = (*(f"w[{i}]" for i in range(dim - 1)), "log_alpha")
    rows = {"x": data.train_x, "y": data.train_y}
    dtype = jnp.result_type(float)
    return pf.MinibatchTarget(
        prior,
        log_likelihood,
        {k: jnp.asarray(v, dtype) for k, v in rows.items()},
        dim,
        names=names,
        batch_size=batch_size,
    )


def prior_draws(key: PRNGKeyArray, n: int, dim: int) -> Float[Array, "n d"]:
    """Draws of the prior, where the classic samplers start."""
    alpha_key, w_key = jax.random.split(key)
    alpha = jax.random.exponential(alpha_key, (n, 1)) / RATE
    w = jax.random.normal(w_key, (n, dim - 1)) / jnp.sqrt(alpha)
    return jnp.concatenate([w, jnp.log(alpha)], axis=1)


class Affine(eqx.Module):
    """Whitened coordinates `u`, with `x = centre + factor u`."""

    centre: Float[Array, " d"]
    factor: Float[Array, "d d"]

    def to_target(self, u: Float[Array, " d"]) -> Float[Array, " d"]:
        """The parameters at one whitened point."""
        return self.centre + self.factor @ u

    def from_target(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """The whitened point of some parameters; `factor` is lower triangular."""
        return jax.scipy.linalg.solve_triangular(
            self.factor, x - self.centre, lower=True
        )


class Relative(eqx.Module):
    """The full-data log density in whitened coordinates, relative to their centre.

    At `x = m + L u` the logit of row i moves by `e = z_i.u`, `z_i = L' x_i`. With `p`
    the probability at the centre, its log likelihood changes by

        (y - p) e  -  (log(1 + p (exp(e) - 1)) - p e).

    The first terms add up to a constant times u, which is summed once in 64-bit; the
    second are small and of one sign. So a sum over half a million rows keeps its
    accuracy in 32-bit, where the sum of the log likelihoods themselves, some 10^5,
    would be rounded to hundredths, too coarse for an accept step.
    """

    rows: Float[Array, "n d"]
    chance: Float[Array, " n"]
    slope: Float[Array, " d"]
    whitening: Affine

    def __init__(self, data: Classification, whitening: Affine):
        centre = np.asarray(whitening.centre, np.float64)
        factor = np.asarray(whitening.factor, np.float64)
        chance = np.empty(len(data.train_y))
        slope = np.zeros(centre.shape)
        rows = np.empty((len(chance), len(centre)), np.float32)
        block = 50_000
        for i in range(0, len(chance), block):
            x = data.train_x[i : i + block].astype(np.float64)
            z = x @ factor[:-1]
            p = 1 / (1 + np.exp(-x @ centre[:-1]))
            slope += z.T @ (data.train_y[i : i + block] - p)
            rows[i : i + block], chance[i : i + block] = z, p
        dtype = jnp.result_type(float)
        self.rows = jnp.asarray(rows, dtype)
        self.chance = jnp.asarray(chance, dtype)
        self.slope = jnp.asarray(slope, dtype)
        self.whitening = whitening

    def __call__(self, u: Float[Array, " d"]) -> Float[Array, ""]:
        """The log density at one whitened point; 0 at the centre."""
        moved = self.rows @ u
        bend = jnp.log1p(self.chance * jnp.expm1(moved)) - self.chance * moved
        prior = log_prior(self.whitening.to_target(u)) - log_prior(
            self.whitening.centre
        )
        return self.slope @ u - jnp.sum(bend) + prior


def relative(data: Classification, whitening: Affine) -> pf.Target:
    """The target of the reference: all data, whitened coordinates."""
    return pf.Target(Relative(data, whitening), data.train_x.shape[1] + 1)


class Scores(eqx.Module):
    """How well 100 draws predict: accuracy, and mean log likelihood of a test row."""

    accuracy: Float[Array, ""]
    log_likelihood: Float[Array, ""]


@jax.jit
def predict(
    draws: Float[Array, "n d"], x: Float[Array, "m p"], y: Float[Array, " m"]
) -> Scores:
    """The predictive distribution of the draws, their average, on test rows."""
    with jax.default_matmul_precision("highest"):
        logits = x @ draws[:, :-1].T
    log_n = jnp.log(jnp.asarray(draws.shape[0], logits.dtype))
    yes = jax.nn.logsumexp(jax.nn.log_sigmoid(logits), axis=1) - log_n
    no = jax.nn.logsumexp(jax.nn.log_sigmoid(-logits), axis=1) - log_n
    right = (yes > no) == (y > 0.5)
    held_out = jnp.where(y > 0.5, yes, no)
    return Scores(jnp.mean(right.astype(logits.dtype)), jnp.mean(held_out))
