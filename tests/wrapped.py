"""A method around another one: tests override what they want to see done otherwise."""

import dataclasses

from pushforward import methods

GAUSSIAN = methods.Gaussian(steps=40, batch_size=16, particles=64)


class AbstractWrapper(methods.AbstractMethod):
    """Does what `inner` does."""

    inner: methods.AbstractMethod = GAUSSIAN
    name: str = "gaussian"

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
        return self.inner.init(key, target, steps, previous)

    def sampler(self, target, state):
        return self.inner.sampler(target, state)
