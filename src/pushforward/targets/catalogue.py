"""The names of the built-in targets, and what is behind them.

This module imports neither JAX nor NumPy, so that the command line can list the
targets at once; a target's own module is imported when it is asked for.
"""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pushforward.errors import UsageError

if TYPE_CHECKING:
    from pushforward.targets.base import AbstractTarget


@dataclass(frozen=True)
class Entry:
    """One built-in target.

    Attributes:
        name: what `get` and the command line call it.
        dim: its number of coordinates.
        description: one line.
        factory: where its factory is, as "module:function".
        exact: whether exact draws exist.
        kind: "density", or "score" for a score without a density.
    """

    name: str
    dim: int
    description: str
    factory: str
    exact: bool = True
    kind: Literal["density", "score"] = "density"

    def load(self) -> AbstractTarget:
        """Imports the factory and calls it."""
        module, function = self.factory.split(":")
        return getattr(importlib.import_module(module), function)()


_PLANAR = "pushforward.targets.planar"
_CLASSIC = "pushforward.targets.classic"
_SCHOOLS = "pushforward.targets.schools"

ENTRIES: tuple[Entry, ...] = (
    Entry(
        "gaussian",
        2,
        "a correlated Gaussian",
        f"{_PLANAR}:gaussian",
    ),
    Entry(
        "mog2",
        2,
        "two Gaussians, eight standard deviations apart",
        f"{_PLANAR}:mog2",
    ),
    Entry(
        "rosenbrock",
        2,
        "a Gaussian bent to a banana",
        f"{_PLANAR}:rosenbrock",
    ),
    Entry(
        "donut",
        2,
        "a ring of radius 2.5",
        f"{_PLANAR}:donut",
    ),
    Entry(
        "funnel",
        2,
        "a planar funnel: y sets the scale of x",
        f"{_PLANAR}:funnel",
    ),
    Entry(
        "squiggle",
        2,
        "a Gaussian bent to a wave",
        f"{_PLANAR}:squiggle",
    ),
    Entry(
        "funnel_coinsvgd",
        2,
        "the funnel's score as Coin-SVGD has it, wrong; only to replay the paper",
        f"{_PLANAR}:funnel_coinsvgd",
        exact=False,
        kind="score",
    ),
    Entry(
        "correlated_gaussian",
        10,
        "a Gaussian whose neighbouring coordinates correlate by 0.9",
        f"{_CLASSIC}:correlated_gaussian",
    ),
    Entry(
        "neal_funnel",
        10,
        "Neal's funnel: v sets the scale of nine others",
        f"{_CLASSIC}:neal_funnel",
    ),
    Entry(
        "banana",
        2,
        "a long twisted Gaussian",
        f"{_CLASSIC}:banana",
    ),
    Entry(
        "student_t",
        5,
        "heavy tails: Student's t with 5 degrees of freedom",
        f"{_CLASSIC}:student_t",
    ),
    Entry(
        "ring",
        2,
        "8 Gaussians on a circle",
        f"{_CLASSIC}:ring",
    ),
    Entry(
        "grid",
        2,
        "25 Gaussians on a square grid",
        f"{_CLASSIC}:grid",
    ),
    Entry(
        "gmm40",
        2,
        "40 Gaussians scattered over a square of side 80",
        f"{_CLASSIC}:gmm40",
    ),
    Entry(
        "eight_schools_centred",
        10,
        "a hierarchical posterior with a funnel",
        f"{_SCHOOLS}:eight_schools_centred",
    ),
    Entry(
        "eight_schools_noncentred",
        10,
        "the same posterior, reparametrised",
        f"{_SCHOOLS}:eight_schools_noncentred",
    ),
)

COLUMNS = ("name", "dim", "kind", "exact draws", "description")


def names() -> tuple[str, ...]:
    """The names of the built-in targets, in the order in which they are listed."""
    return tuple(entry.name for entry in ENTRIES)


def find(name: str) -> Entry:
    """The entry of that name.

    Raises:
        UsageError: if there is none; the message offers the nearest names.
    """
    for candidate in ENTRIES:
        if candidate.name == name:
            return candidate
    near = difflib.get_close_matches(str(name).lower().replace("-", "_"), names(), 3)
    offer = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    raise UsageError(
        f"There is no built-in target {name!r}; {offer}`pushforward targets` lists "
        "them all."
    )


def get(name: str) -> AbstractTarget:
    """Makes the built-in target of that name.

    Args:
        name: one of `names()`.

    Raises:
        UsageError: if there is none of that name.
    """
    return find(name).load()


def describe() -> tuple[tuple[str, ...], ...]:
    """One row of text for each target, with the columns `COLUMNS`."""
    return tuple(
        (
            entry.name,
            str(entry.dim),
            entry.kind,
            "yes" if entry.exact else "no",
            entry.description,
        )
        for entry in ENTRIES
    )
