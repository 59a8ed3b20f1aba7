"""A coupling flow: a map with an inverse, whose log-determinant costs nothing extra.

The layers are those of flowjax, an optional dependency that is loaded when a flow is
made, never before.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward._precision import NETWORK_DTYPE, narrow
from pushforward.errors import MissingDependencyError
from pushforward.networks.base import AbstractDensityNetwork, normal_log_density
from pushforward.networks.coupling import refuse_line, stacked_weights
from pushforward.networks.mlp import ACTIVATIONS, refuse_unknown


class FlowMap(AbstractDensityNetwork):
    """RealNVP: `layers` affine coupling layers, each followed by a flip.

    A layer leaves the first half `a` of the coordinates as it is and maps the second to
    `b exp(t(a)) + m(a)`, with `(t, m)` a multi-layer perceptron that starts near 0 and
    |t| softly bounded by `log_bound`; the flip then changes the roles. So training
    starts at the identity, up to the order of the coordinates.
    """

    # Weight and bias of each layer of the perceptrons, the flow's layers stacked. The
    # rest of flowjax's objects (functions, sizes) is made again for every call: a file
    # and an average of weights must find arrays alone.
    weights: tuple[Float[Array, "..."], ...]
    in_size: int = eqx.field(static=True)
    out_size: int = eqx.field(static=True)
    layers: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    depth: int = eqx.field(static=True)
    activation: str = eqx.field(static=True)
    log_bound: float = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        layers: int,
        width: int,
        depth: int,
        activation: str = "silu",
        log_bound: float = 4.0,
        *,
        key: PRNGKeyArray,
    ):
        """A flow of `in_size` coordinates, at least two."""
        require_flowjax()
        refuse_line(in_size)
        refuse_unknown(activation)
        self.in_size = self.out_size = in_size
        self.layers, self.width, self.depth = layers, width, depth
        self.activation, self.log_bound = activation, log_bound
        sizes = [in_size // 2, *[width] * depth, 2 * (in_size - in_size // 2)]
        self.weights = stacked_weights(key, sizes, layers)

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """The map at one point."""
        return self.with_log_det(x)[0]

    def with_log_det(
        self, x: Float[Array, " d"]
    ) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """The map at one point, and `log |det|` of its Jacobian there."""
        # flowjax adds zeros in the default precision, which strict mode refuses.
        with jax.numpy_dtype_promotion("standard"):
            y, log_det = self._bijection().transform_and_log_det(x)
        return y, narrow(log_det)

    def with_log_density(
        self, z: Float[Array, " d"]
    ) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """The map at one point, and the log density of its draws there."""
        y, log_det = self.with_log_det(z)
        return y, normal_log_density(z) - log_det

    def _bijection(self) -> Any:
        """The bijection of flowjax with these weights."""
        from flowjax import bijections, utils
        from paramax import Parameterize

        bound = self.log_bound

        def scale(t):
            return jnp.exp(bound * jnp.tanh(t / bound))

        zero = jnp.zeros((), NETWORK_DTYPE)
        affine: Any = eqx.tree_at(
            lambda a: (a.loc, a.scale),
            bijections.Affine(),
            (zero, Parameterize(scale, zero)),
        )

        def layer(key):
            coupling = bijections.Coupling(
                key,
                transformer=affine,
                untransformed_dim=self.in_size // 2,
                dim=self.in_size,
                nn_width=self.width,
                nn_depth=self.depth,
                nn_activation=ACTIVATIONS[self.activation],
            )
            return bijections.Chain([coupling, bijections.Flip((self.in_size,))])

        # Shapes only: the values are ours.
        stacked: Any = eqx.filter_eval_shape(
            eqx.filter_vmap(layer), jax.random.split(jax.random.key(0), self.layers)
        )
        # Made above among shapes, it would add shapes instead of numbers.
        constructor, _ = utils.get_ravelled_pytree_constructor(
            affine, filter_spec=eqx.is_inexact_array
        )
        stacked = eqx.tree_at(
            lambda c: (
                *(
                    leaf
                    for linear in c.bijections[0].conditioner.layers
                    for leaf in (linear.weight, linear.bias)
                ),
                c.bijections[0].transformer_constructor,
            ),
            stacked,
            (*self.weights, constructor),
        )
        return bijections.Scan(stacked)


def require_flowjax() -> None:
    """Refuses with the pip command where flowjax is not installed."""
    try:
        import flowjax.bijections  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "A coupling flow needs the package flowjax; install it with pip install "
            "'pushforward[flows]'."
        ) from error
