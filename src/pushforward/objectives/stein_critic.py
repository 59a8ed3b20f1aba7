"""The gain of a Stein critic, and the loss of the sampler (Hu et al., 2018).

`x = g(z)`. With `s_q` the target's score, Stein's identity gives for every field `f`

    E_p[s_q.f + div f] = E_p[(s_q - s_p).f],

which is zero for all of them only at `p = q`. The critic `f` seeks the largest value
of `E_p[s_q.f + div f] - penalty E_p|f|^2`, the sampler the smallest.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward import _validate
from pushforward._precision import narrow, widen
from pushforward.errors import UsageError
from pushforward.networks import AbstractBatchNetwork, AbstractNetwork
from pushforward.objectives.base import AbstractPairObjective, Info
from pushforward.objectives.draws import points
from pushforward.objectives.score_matching import divergence, sliced_divergence
from pushforward.targets.base import AbstractTarget

# Up to here the divergence is exact: d Jacobian-vector products a point.
EXACT_DIVERGENCE_DIM = 16


class SteinCritic(AbstractPairObjective):
    """Critic and sampler in turns.

    The critic's best answer is `f = (s_q - s_p) / (2 penalty)`, and what it reaches is
    the Fisher divergence over `4 penalty`. The sampler lowers the same value, through
    `x` alone: at the best critic that is the gradient of the Fisher divergence, penalty
    included (leave it out and the sampler drifts away even from a Gaussian). It is
    linear in `s_q`: one minibatch suffices. Hu et al. take the absolute value of the
    mean, which adds nothing, as `-f` is a critic too, and near the end turns the
    sampler's steps around at random.
    """

    penalty: float = 0.5
    second_name: ClassVar[str] = "critic_loss"

    def __check_init__(self):
        if not _validate.finite("penalty", self.penalty) > 0:
            raise UsageError(
                "penalty must be positive, or the best critic is infinite, and it is "
                f"{self.penalty}."
            )

    @property
    def minibatches(self) -> int:
        return 1

    def evaluations(self, n: int, second_steps: int) -> int:
        return n * (second_steps + 1)

    def noise_scale(self, target: AbstractTarget) -> float:
        return 0.0

    def resolve(self, target: AbstractTarget) -> "SteinCritic":
        target.require_no_noise("A Stein critic")
        return self

    def second_loss(
        self,
        second: Any,
        network: AbstractNetwork,
        target: AbstractTarget,
        key: PRNGKeyArray,
        n: int,
    ) -> Float[Array, ""]:
        return -self._value(second, network, target, key, n)

    def sampler_loss(
        self,
        network: AbstractNetwork,
        second: Any,
        target: AbstractTarget,
        key: PRNGKeyArray,
        n: int,
    ) -> tuple[Float[Array, ""], tuple[Info, AbstractBatchNetwork | None]]:
        value = self._value(second, network, target, key, n)
        return value, ({"stein": value}, None)

    def _value(self, critic, network, target, key, n):
        z_key, key = jax.random.split(key)
        x = points(network, z_key, n)
        return objective(critic, target, x, key, self.penalty)


def stein_mean(
    critic: AbstractNetwork,
    view: AbstractTarget,
    x: Float[Array, "n d"],
    key: PRNGKeyArray,
) -> Float[Array, ""]:
    """The mean of `s_q.f + div f`; above 16 dimensions Hutchinson's divergence."""
    minibatch_key, direction_key = jax.random.split(key)

    def one(x, minibatch_key, direction):
        score = narrow(view.score(widen(x), key=minibatch_key))
        inner = jnp.sum(score * critic(x))
        if direction is None:
            return inner + divergence(critic, x)
        return inner + sliced_divergence(critic, x, direction)

    n, dim = x.shape
    keys = jax.random.split(minibatch_key, n)
    # Rademacher directions: the least variance among those with E[v v'] = I.
    directions = (
        jax.random.rademacher(direction_key, x.shape, x.dtype)
        if dim > EXACT_DIVERGENCE_DIM
        else None
    )
    return jnp.mean(jax.vmap(one)(x, keys, directions))


def objective(
    critic: AbstractNetwork,
    view: AbstractTarget,
    x: Float[Array, "n d"],
    key: PRNGKeyArray,
    penalty: float,
) -> Float[Array, ""]:
    """`E[s_q.f + div f] - penalty E|f|^2`: the critic's gain, the sampler's loss."""
    size = jnp.mean(jnp.sum(jax.vmap(critic)(x) ** 2, axis=1))
    return stein_mean(critic, view, x, key) - penalty * size
