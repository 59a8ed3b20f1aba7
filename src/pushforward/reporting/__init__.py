"""Pictures and the page of a fit; the pictures need matplotlib (the extra `plots`)."""

from typing import TYPE_CHECKING

from pushforward._lazy import lazily

if TYPE_CHECKING:
    from pushforward.reporting import plot
    from pushforward.reporting.api import report

__all__ = ["plot", "report"]

__getattr__, __dir__ = lazily(globals(), {"report": "api"}, ("plot",))
