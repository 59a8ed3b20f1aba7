"""To and from other libraries, which are imported when they are first needed."""

from pushforward.bridges.arviz import to_arviz
from pushforward.bridges.numpyro import from_numpyro

__all__ = ["from_numpyro", "to_arviz"]
