"""To and from other libraries, which are imported when they are first needed."""

from typing import TYPE_CHECKING

from pushforward._lazy import lazily
from pushforward._user_errors import register_hint

if TYPE_CHECKING:
    from pushforward.bridges.arviz import to_arviz
    from pushforward.bridges.numpyro import from_numpyro
    from pushforward.bridges.numpyro_distribution import to_numpyro

__all__ = ["from_numpyro", "to_arviz", "to_numpyro"]

_HOME = {
    "from_numpyro": "numpyro",
    "to_arviz": "arviz",
    "to_numpyro": "numpyro_distribution",
}

register_hint(
    "numpyro",
    "a NumPyro model becomes a target by pushforward.bridges.from_numpyro(model, "
    "data).",
)

__getattr__, __dir__ = lazily(globals(), _HOME)
