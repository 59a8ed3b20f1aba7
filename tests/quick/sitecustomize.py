"""Cuts every training to a few steps, unless its number of steps is given.

The page of a fit runs no NUTS to compare with: its program takes long to compile.

Python imports this file at its start where its folder is on PYTHONPATH. So the tests
run what a reader would type, in a minute.
"""

import functools

from pushforward.reporting import cost
from pushforward.training import session

_STEPS = 60
_prepare = session.prepare


@functools.wraps(_prepare)
def _quickly(key, data, learner, steps, *others):
    steps = _STEPS if steps is None else steps
    return _prepare(key, data, learner, steps, *others)


session.prepare = _quickly
cost.MAX_NUTS_DIM = 0
