"""A method of two stages, as somebody might write it: two Gaussian fits."""

import dataclasses
from typing import ClassVar

import equinox as eqx

from pushforward import methods


class Stage(methods.AbstractMethod):
    """The Gaussian fit, or more of it, from where the stage before ended."""

    inner: methods.AbstractMethod
    name: str

    @property
    def network(self):
        return self.inner.network

    @property
    def training(self):
        return self.inner.training

    @property
    def evaluations(self):
        return self.inner.evaluations

    def with_sizes(self, **sizes):
        return dataclasses.replace(self, inner=self.inner.with_sizes(**sizes))

    def resolve(self, target):
        return dataclasses.replace(self, inner=self.inner.resolve(target))

    def init(self, key, target, steps, previous=None):
        if self.name == "first":
            return self.inner.init(key, target, steps, previous)
        clock = type(previous.clock).start(steps)
        return eqx.tree_at(lambda s: s.clock, previous, clock)

    def step(self, key, target, state):
        return self.inner.step(key, target, state)

    def sampler(self, target, state):
        return self.inner.sampler(target, state)


class TwoStages(methods.AbstractMethod):
    """Two fits, one after another; the engine runs the stages, never the method."""

    name: ClassVar[str] = "two_stages"
    network: None = None
    training: methods.TrainConfig = methods.TrainConfig(400, 16, particles=64)

    @property
    def evaluations(self):
        return 0

    def resolve(self, target):
        return self

    def stages(self):
        fit = methods.Gaussian(steps=self.steps, batch_size=16, particles=64)
        return Stage(fit, "first"), Stage(fit.with_sizes(steps=6000), "second")

    def init(self, key, target, steps, previous=None):
        raise NotImplementedError

    def step(self, key, target, state):
        raise NotImplementedError

    def sampler(self, target, state):
        raise NotImplementedError
