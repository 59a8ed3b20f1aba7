"""What draws are called on disk, and in tables."""

import numpy as np

from pushforward.targets.structure import Structure


def column_names(structure: Structure) -> list[str]:
    """A name for each column of a table of draws, in the user's own parameters."""
    if structure.own_names is not None:
        return list(structure.own_names)
    names = []
    for leaf in structure.leaves:
        label = leaf.name or "x"
        names += number_names(label, leaf.shape)
    return names


def number_names(label: str, shape: tuple[int, ...]) -> list[str]:
    """A name for each number of an array: `theta[0,1]`."""
    indices = np.ndindex(*shape)
    return [f"{label}[{','.join(map(str, i))}]" if i else label for i in indices]


def leaf_names(structure: Structure) -> list[str]:
    """A name for each array of an `.npz` file."""
    return [leaf.name or "draws" for leaf in structure.leaves]
