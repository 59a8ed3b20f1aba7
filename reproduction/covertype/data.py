"""Covertype as a classification with two classes: reading, scaling, splitting."""

import dataclasses
import zipfile
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from pushforward.errors import FileError
from reproduction.common.data import File, find, is_there

COVERTYPE = (
    File(
        "covertype/covtype_int16.npz",
        "4bc6ab9d005b454f15c9d671e45869425d88d0d2cdb660be721166bfa4eedb4f",
    ),
    File(
        "covertype/covtype.data.gz",
        "614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771",
        (
            "https://archive.ics.uci.edu/ml/machine-learning-databases/covtype/"
            "covtype.data.gz",
            "https://ndownloader.figshare.com/files/5976039",
        ),
    ),
)
ROWS, COLUMNS = 581_012, 54
# Ten measurements, then a choice of one among 4 areas and of one among 40 soils.
MEASUREMENTS, AREAS, SOILS = 10, 4, 40


@dataclasses.dataclass(frozen=True)
class Classification:
    """Labelled rows, split: features in [0, 1] and a column of ones, labels 0, 1."""

    train_x: Float[np.ndarray, "n d"]
    train_y: Float[np.ndarray, " n"]
    test_x: Float[np.ndarray, "m d"]
    test_y: Float[np.ndarray, " m"]
    # "real", or "miniature" where the rows were generated.
    source: str


def covertype(
    *, rows: int | None = None, seed: int = 0, miniature_rows: int | None = None
) -> Classification:
    """Covertype as two classes, the second of seven against the rest, split 80 to 20.

    Args:
        rows: how many rows to use, chosen at random; None means all.
        seed: seed of the split.
        miniature_rows: if the file is not found, generate this many rows instead; None
            means that the file is required.
    """
    try:
        path = find("Covertype", COVERTYPE, download=miniature_rows is None)
    except FileError:
        if miniature_rows is None or is_there(COVERTYPE):
            raise
        return split(*miniature(miniature_rows), seed=seed, source="miniature")
    return split(*read_covertype(path), rows=rows, seed=seed, source="real")


def read_covertype(
    path: Path,
) -> tuple[Float[np.ndarray, "n 54"] | Int[np.ndarray, "n 54"], Int[np.ndarray, " n"]]:
    """Features and classes (1 to 7) of a Covertype file, `.npz` or UCI's `.data.gz`."""
    try:
        if path.suffix == ".npz":
            with path.open("rb") as file, np.load(file) as arrays:
                x, y = arrays["X"], arrays["y"]
        else:
            table = np.loadtxt(path, delimiter=",", dtype=np.float32)
            x, y = table[:, :-1], table[:, -1]
    except FileNotFoundError:
        raise FileError(f"There is no file {path}.") from None
    except (OSError, ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile):
        raise FileError(
            f"{path} cannot be read as Covertype: it should be {COLUMNS} columns of "
            "numbers and a class; fetch it again."
        ) from None
    if x.ndim != 2 or x.shape[1] != COLUMNS or y.shape != x.shape[:1] or not len(y):
        raise FileError(
            f"{path} is not Covertype: its features and classes have the shapes "
            f"{x.shape} and {y.shape}, where (n, {COLUMNS}) and (n,) are needed."
        )
    bad = np.flatnonzero(~np.isfinite(x).all(axis=0))
    if bad.size:
        raise FileError(
            f"{path} is damaged: column {bad[0] + 1} of {COLUMNS} holds numbers that "
            "are not finite; fetch it again."
        )
    if not np.isin(y, np.arange(1, 8)).all():
        raise FileError(f"{path} is not Covertype: its classes are not 1 to 7.")
    return x, y.astype(np.int64)


def split(
    x: Float[np.ndarray, "n d"] | Int[np.ndarray, "n d"],
    classes: Int[np.ndarray, " n"],
    *,
    rows: int | None = None,
    seed: int = 0,
    source: str,
) -> Classification:
    """Scales, labels and splits the rows: 80 % for training, 20 % for testing."""
    low, high = x.min(axis=0).astype(np.float32), x.max(axis=0).astype(np.float32)
    order = np.random.default_rng(seed).permutation(len(x))[:rows]
    scaled = (x[order] - low) / np.maximum(high - low, 1)
    features = np.concatenate([scaled, np.ones((len(order), 1))], axis=1)
    features = features.astype(np.float32)
    labels = (classes[order] == 2).astype(np.float32)
    cut = int(0.8 * len(order))
    return Classification(
        features[:cut], labels[:cut], features[cut:], labels[cut:], source
    )


def miniature(
    rows: int, seed: int = 0
) -> tuple[Int[np.ndarray, "n 54"], Int[np.ndarray, " n"]]:
    """Generated rows with Covertype's columns: common and rare soils, two classes."""
    rng = np.random.default_rng(seed)
    measured = rng.beta(2.0, 3.0, (rows, MEASUREMENTS))
    area = rng.choice(AREAS, rows, p=[0.45, 0.05, 0.44, 0.06])
    # A soil is half as common as one four places before it.
    weight = 0.5 ** (np.arange(SOILS) / 4)
    soil = rng.choice(SOILS, rows, p=weight / weight.sum())
    logit = measured @ np.linspace(-6, 6, MEASUREMENTS)
    logit += np.linspace(-1, 1, AREAS)[area] + np.cos(np.arange(SOILS))[soil]
    second = rng.uniform(size=rows) < 1 / (1 + np.exp(-logit))
    x = np.concatenate(
        [
            np.rint(1000 * measured).astype(np.int16),
            np.eye(AREAS, dtype=np.int16)[area],
            np.eye(SOILS, dtype=np.int16)[soil],
        ],
        axis=1,
    )
    return x, np.where(second, 2, 1)
