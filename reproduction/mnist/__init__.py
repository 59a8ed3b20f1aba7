"""The third experiment: a one-step sampler for an energy model of digits."""

# Files of its networks can be loaded from here on.
from reproduction.mnist import networks

__all__ = ["networks"]
