"""To and from other libraries, which are imported when they are first needed."""

from typing import TYPE_CHECKING

from pushforward._lazy import lazily
from pushforward._user_errors import register_hint

if TYPE_CHECKING:
    from pushforward.bridges.arviz import to_arviz
    from pushforward.bridges.foreign import constrain
    from pushforward.bridges.frames import to_pandas, to_polars
    from pushforward.bridges.numpy import from_numpy
    from pushforward.bridges.numpyro import from_numpyro
    from pushforward.bridges.numpyro_distribution import to_numpyro
    from pushforward.bridges.pymc import from_pymc
    from pushforward.bridges.stan import from_stan
    from pushforward.bridges.torch import from_torch

__all__ = [
    "constrain",
    "from_numpy",
    "from_numpyro",
    "from_pymc",
    "from_stan",
    "from_torch",
    "to_arviz",
    "to_numpyro",
    "to_pandas",
    "to_polars",
]

_HOME = {
    "constrain": "foreign",
    "from_numpy": "numpy",
    "from_numpyro": "numpyro",
    "from_pymc": "pymc",
    "from_stan": "stan",
    "from_torch": "torch",
    "to_arviz": "arviz",
    "to_numpyro": "numpyro_distribution",
    "to_pandas": "frames",
    "to_polars": "frames",
}

register_hint(
    "numpyro",
    "a NumPyro model becomes a target by pushforward.bridges.from_numpyro(model, "
    "data).",
)
register_hint(
    "torch",
    "an energy in PyTorch becomes a target by pushforward.bridges.from_torch(energy, "
    "dim).",
)

__getattr__, __dir__ = lazily(globals(), _HOME)
