"""What an objective is: a loss with at most a few numbers, of one of three kinds.

- `AbstractScoreObjective`: of one point, given a model of the sampler's own score.
  `ScoreBased` makes a pair of losses of it.
- `AbstractPairObjective`: two losses in turn, of a second network and of the sampler.
- `AbstractBatchObjective`: of a batch of draws, with no second network.
"""

import abc
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward.networks import AbstractBatchNetwork, AbstractNetwork
from pushforward.objectives.score_matching import Field
from pushforward.targets.base import AbstractTarget

# A flat mapping of scalars: what the progress bar shows and metrics.jsonl holds.
Info = dict[str, Float[Array, ""]]


class AbstractScoreObjective(eqx.Module):
    """A loss at one noisy draw `x = x0 + sigma eps`, `x0 = g(z)`.

    A subclass needs `__call__` alone.
    """

    @abc.abstractmethod
    def __call__(
        self,
        x: Float[Array, " d"],
        conditional: Float[Array, " d"],
        score: Field,
        first: Field,
        second: Field,
    ) -> Float[Array, ""]:
        """What is differentiated through `x` at one point.

        Args:
            x: the noisy draw `x0 + sigma eps`.
            conditional: `-eps / sigma`, the score of `x` given `x0`.
            score: the frozen estimate of the sampler's score.
            first: the target's score (from one minibatch, where it has minibatches).
            second: the same from an independent minibatch, where `minibatches` is 2,
                and otherwise `first` itself.
        """

    @property
    def minibatches(self) -> int:
        """How many minibatches of a target it needs: 2 if it multiplies two scores.

        The product of a minibatch's score with itself has its variance on top.
        """
        return 1

    @property
    def needs_noise(self) -> bool:
        """Whether it looks at the conditional score, which noise alone makes finite."""
        return False

    def resolve(self, target: AbstractTarget) -> "AbstractScoreObjective":
        """The same objective, with what depends on the target filled in."""
        return self


class AbstractPairObjective(eqx.Module):
    """Two losses: of a second network about the sampler, and of the sampler by it."""

    # What the second network's loss is called in the history.
    second_name: eqx.AbstractClassVar[str]

    @property
    @abc.abstractmethod
    def minibatches(self) -> int:
        """How many minibatches each evaluation needs, where the target has them."""

    @abc.abstractmethod
    def evaluations(self, n: int, second_steps: int) -> int:
        """How often one step evaluates the target, with batches of `n`."""

    @abc.abstractmethod
    def noise_scale(self, target: AbstractTarget) -> float:
        """The noise that is part of the sampler's draws."""

    @abc.abstractmethod
    def resolve(self, target: AbstractTarget) -> "AbstractPairObjective":
        """The same objective, with what depends on the target filled in."""

    @abc.abstractmethod
    def second_loss(
        self,
        second: Any,
        network: AbstractNetwork,
        target: AbstractTarget,
        key: PRNGKeyArray,
        n: int,
    ) -> Float[Array, ""]:
        """The loss of the second network, on `n` draws of the sampler."""

    @abc.abstractmethod
    def sampler_loss(
        self,
        network: AbstractNetwork,
        second: Any,
        target: AbstractTarget,
        key: PRNGKeyArray,
        n: int,
    ) -> tuple[Float[Array, ""], tuple[Info, AbstractBatchNetwork | None]]:
        """The loss of the sampler, on `n` of its draws, the second network frozen.

        Returns:
            The loss; what is worth watching; and the network that has seen the batch,
            if it looks at whole batches.
        """


class AbstractBatchObjective(eqx.Module):
    """A loss of a batch of draws. A subclass needs `__call__` alone."""

    @abc.abstractmethod
    def __call__(
        self,
        network: AbstractNetwork,
        target: AbstractTarget,
        key: PRNGKeyArray,
        n: int,
        progress: Float[Array, ""],
    ) -> Float[Array, ""]:
        """What a step differentiates in the weights of the network.

        Args:
            network: the sampler, from standard normal numbers to coordinates.
            target: the target in the sampler's coordinates.
            key: for the latent points, and the minibatches of a stochastic target.
            n: how many points a step draws.
            progress: the share of the training that is done, from 0 to 1.
        """

    @property
    def least_batch(self) -> int:
        """The smallest batch it can be computed on: 2 if it compares draws."""
        return 1

    def resolve(self, target: AbstractTarget) -> "AbstractBatchObjective":
        """The same objective, with what depends on the target filled in."""
        return self
