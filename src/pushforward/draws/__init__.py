"""Draws on disk: written a block at a time, and read again."""

from pushforward.draws.names import column_names
from pushforward.draws.read import read_draws
from pushforward.draws.write import write_draws

__all__ = ["column_names", "read_draws", "write_draws"]
