"""Multi-layer perceptrons, plain and residual.

The residual ones start *at* the standard normal: their last layer is near zero, so the
map is the identity and the score is that of N(0, I), and training learns what is left.
"""

import itertools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward._precision import NETWORK_DTYPE
from pushforward.errors import UsageError
from pushforward.networks.base import (
    AbstractDensityNetwork,
    AbstractStoredNetwork,
    normal_log_density,
)

ACTIVATIONS: dict[str, Callable] = {
    "silu": jax.nn.silu,
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "tanh": jnp.tanh,
    "leaky_relu": lambda x: jax.nn.leaky_relu(x, 0.2),
}


def refuse_unknown(activation: str) -> None:
    """Refuses an activation that has no name here."""
    if activation not in ACTIVATIONS:
        raise UsageError(
            f"The activation {activation!r} is not known; there are "
            f"{', '.join(sorted(ACTIVATIONS))}."
        )


class MLP(AbstractStoredNetwork):
    """`depth` hidden layers of `width` units."""

    layers: tuple[eqx.nn.Linear, ...]
    in_size: int = eqx.field(static=True)
    out_size: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    depth: int = eqx.field(static=True)
    activation: str = eqx.field(static=True)
    final_scale: float = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        out_size: int,
        width: int,
        depth: int,
        activation: str = "silu",
        final_scale: float = 1.0,
        *,
        key: PRNGKeyArray,
    ):
        """An MLP whose last layer's initial values are scaled by `final_scale`."""
        refuse_unknown(activation)
        sizes = [in_size, *[width] * depth, out_size]
        keys = jax.random.split(key, depth + 1)
        layers = [
            eqx.nn.Linear(a, b, dtype=NETWORK_DTYPE, key=k)
            for a, b, k in zip(sizes[:-1], sizes[1:], keys, strict=True)
        ]
        layers = _redraw(key, layers)
        layers[-1] = jax.tree.map(lambda a: a * final_scale, layers[-1])
        self.layers = tuple(layers)
        self.in_size, self.out_size = in_size, out_size
        self.width, self.depth = width, depth
        self.activation, self.final_scale = activation, final_scale

    def arrays(self) -> dict[str, Any]:
        """Weight and bias of each layer."""
        named = {}
        for i, layer in enumerate(self.layers):
            assert layer.bias is not None
            named |= {
                f"layers.{i}.weight": layer.weight,
                f"layers.{i}.bias": layer.bias,
            }
        return named

    def __call__(self, x: Float[Array, " i"]) -> Float[Array, " o"]:
        """The network at one point."""
        for layer in self.layers[:-1]:
            x = ACTIVATIONS[self.activation](layer(x))
        return self.layers[-1](x)


def _redraw(key: PRNGKeyArray, layers: list[eqx.nn.Linear]) -> list[eqx.nn.Linear]:
    """The same layers with all their initial values from one draw.

    Every call of the random number generator takes half a second to compile; the draws
    replaced here are never used and so never compiled.
    """
    leaves, treedef = jax.tree.flatten(layers)
    ends = list(itertools.accumulate(leaf.size for leaf in leaves))
    flat = jax.random.uniform(key, (ends[-1],), NETWORK_DTYPE, -1.0, 1.0)
    bounds = [float(layer.in_features) ** -0.5 for layer in layers for _ in range(2)]
    values = [
        bound * flat[end - leaf.size : end].reshape(leaf.shape)
        for leaf, end, bound in zip(leaves, ends, bounds, strict=True)
    ]
    return jax.tree.unflatten(treedef, values)


class ResidualMap(AbstractStoredNetwork):
    """`g(z) = scale * z * exp(a(z)) + b(z)`, with `(a, b)` an MLP that starts near 0.

    The factor `exp(a)` lets one network serve widths that differ by orders of
    magnitude, as in a funnel; |a| is softly bounded by `log_bound`.
    """

    mlp: MLP
    in_size: int = eqx.field(static=True)
    out_size: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    depth: int = eqx.field(static=True)
    activation: str = eqx.field(static=True)
    scale: float = eqx.field(static=True)
    log_bound: float = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        out_size: int,
        width: int,
        depth: int,
        activation: str = "silu",
        scale: float = 1.0,
        log_bound: float = 8.0,
        *,
        key: PRNGKeyArray,
    ):
        """A residual map; `in_size` may exceed `out_size` (the rest is extra noise)."""
        if in_size < out_size:
            raise UsageError(
                f"A residual map needs at least as many latent numbers ({in_size}) as "
                f"coordinates ({out_size})."
            )
        self.mlp = MLP(in_size, 2 * out_size, width, depth, activation, 0.01, key=key)
        self.in_size, self.out_size = in_size, out_size
        self.width, self.depth, self.activation = width, depth, activation
        self.scale, self.log_bound = scale, log_bound

    def arrays(self) -> dict[str, Any]:
        """Those of its MLP."""
        return {f"mlp.{name}": a for name, a in self.mlp.arrays().items()}

    def __call__(self, x: Float[Array, " i"]) -> Float[Array, " o"]:
        """The map at one point."""
        a, b = jnp.split(self.mlp(x), 2)
        a = self.log_bound * jnp.tanh(a / self.log_bound)
        return self.scale * x[: self.out_size] * jnp.exp(a) + b

    def with_log_det(
        self, x: Float[Array, " d"]
    ) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """The map at one point, and `log |det|` of its Jacobian there, if square."""
        return self(x), log_det_jacobian(self, x)

    def push(
        self, x: Float[Array, " d"], log_p: Float[Array, ""], score: Float[Array, " d"]
    ) -> tuple[Float[Array, " d"], Float[Array, ""], Float[Array, " d"]]:
        """The map at one point, with the log density and the score that land there.

        The score is `J^-T (score - grad log |det J|)`, with J the Jacobian. In
        derivatives only the point moves; log density and score are constants.
        """
        still, b = jax.lax.stop_gradient((self, x))
        log_det, slope = jax.value_and_grad(lambda b: log_det_jacobian(still, b))(b)
        jacobian = jax.jacfwd(still)(b)
        return self(x), log_p - log_det, jnp.linalg.solve(jacobian.T, score - slope)


def log_det_jacobian(map: Callable, x: Float[Array, " d"]) -> Float[Array, ""]:
    """`log |det|` of the Jacobian of `map` at `x`: d Jacobian-vector products."""
    return jnp.linalg.slogdet(jax.jacfwd(map)(x))[1]


class ScoreMLP(AbstractStoredNetwork):
    """`s(u) = -u + r(u)`: the score of N(0, I) and what is left.

    With `conditional` it takes the noise level too, `-u / (1 + sigma^2) + r / sigma`:
    the score of N(0, I) so smoothed, and what is left of sigma times the score, which
    is of order one at every level.
    """

    mlp: MLP
    in_size: int = eqx.field(static=True)
    out_size: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    depth: int = eqx.field(static=True)
    activation: str = eqx.field(static=True)
    conditional: bool = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        width: int,
        depth: int,
        activation: str = "silu",
        *,
        conditional: bool = False,
        key: PRNGKeyArray,
    ):
        """A score model of `in_size` coordinates."""
        inputs = in_size + 1 if conditional else in_size
        self.mlp = MLP(inputs, in_size, width, depth, activation, 0.01, key=key)
        self.in_size = self.out_size = in_size
        self.width, self.depth, self.activation = width, depth, activation
        self.conditional = conditional

    def arrays(self) -> dict[str, Any]:
        """Those of its MLP."""
        return {f"mlp.{name}": a for name, a in self.mlp.arrays().items()}

    def __call__(
        self, x: Float[Array, " i"], sigma: Float[Array, ""] | None = None
    ) -> Float[Array, " i"]:
        """The score model at one point (and noise level, where it is conditional)."""
        if not self.conditional:
            return -x + self.mlp(x)
        assert sigma is not None
        inputs = jnp.concatenate([x, jnp.log(sigma)[None]])
        return -x / (1 + sigma**2) + self.mlp(inputs) / sigma


class AffineMap(AbstractDensityNetwork, AbstractStoredNetwork):
    """`x = m + L z` with a lower-triangular `L`, whose diagonal is kept positive."""

    mean: Float[Array, " d"]
    lower: Float[Array, "d d"]
    in_size: int = eqx.field(static=True)
    out_size: int = eqx.field(static=True)

    def __init__(self, in_size: int, *, key: PRNGKeyArray | None = None):
        """The identity map on `in_size` coordinates."""
        self.mean = jnp.zeros(in_size, NETWORK_DTYPE)
        self.lower = jnp.zeros((in_size, in_size), NETWORK_DTYPE)
        self.in_size = self.out_size = in_size

    def arrays(self) -> dict[str, Any]:
        """The mean, and the matrix as it is stored."""
        return {"mean": self.mean, "lower": self.lower}

    @property
    def has_density(self) -> bool:
        """The diagonal of `L` is positive."""
        return True

    @property
    def factor(self) -> Float[Array, "d d"]:
        """`L`: strictly lower part as stored, diagonal through the exponential."""
        return jnp.tril(self.lower, -1) + jnp.diag(jnp.exp(jnp.diag(self.lower)))

    def log_det(self) -> Float[Array, ""]:
        """The log-determinant of `L`."""
        return jnp.trace(self.lower)

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """The map at one point."""
        return self.mean + self.factor @ x

    def with_log_density(
        self, z: Float[Array, " d"]
    ) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """The map at one point, and the log density of its draws there."""
        return self(z), normal_log_density(z) - self.log_det()

    def log_density(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The log density at `x` of draws whose latent points are standard normal."""
        z = jax.scipy.linalg.solve_triangular(self.factor, x - self.mean, lower=True)
        return normal_log_density(z) - self.log_det()

    def push_latents(
        self, z: Float[Array, "n d"]
    ) -> tuple[
        Float[Array, "n d"], Float[Array, " n"], Float[Array, "n d"], Float[Array, " n"]
    ]:
        lower, log_det = jax.lax.stop_gradient((self.factor, self.log_det()))

        def one(z):
            # The score of N(m, L L') at m + L z.
            score = -jax.scipy.linalg.solve_triangular(lower, z, trans="T", lower=True)
            log_p = normal_log_density(z) - log_det
            return self(z), log_p, score, jnp.zeros((), z.dtype)

        return jax.vmap(one)(z)
