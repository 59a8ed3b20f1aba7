"""MNIST: sixty thousand digits to learn from, ten thousand to judge by."""

import dataclasses
import gzip
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8

from pushforward.errors import FileError
from pushforward.experiments.data import File, find

_HOME = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_SUMS = {
    "train-images-idx3-ubyte.gz": (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
    ),
    "train-labels-idx1-ubyte.gz": (
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
    ),
    "t10k-images-idx3-ubyte.gz": (
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
    ),
}
SIDE = 32


@dataclasses.dataclass(frozen=True)
class Digits:
    """Images of 32 by 32 pixels as rows of bytes, and their classes."""

    train_pixels: UInt8[np.ndarray, "n 1024"]
    train_classes: Int[np.ndarray, " n"]
    test_pixels: UInt8[np.ndarray, "m 1024"]
    test_classes: Int[np.ndarray, " m"]


def mnist() -> Digits:
    """The data set, found on this machine or downloaded."""
    parts = {
        name: read_idx(find("MNIST", [File(f"mnist/{name}", digest, (_HOME + name,))]))
        for name, digest in _SUMS.items()
    }
    train, train_classes, test, test_classes = parts.values()
    return Digits(
        padded(train),
        train_classes.astype(np.int32),
        padded(test),
        test_classes.astype(np.int32),
    )


def padded(images: UInt8[np.ndarray, "n h w"]) -> UInt8[np.ndarray, "n d"]:
    """Images of 28 by 28 in the middle of 32 by 32, as rows."""
    margin = (SIDE - images.shape[1]) // 2
    wide = np.pad(images, ((0, 0), (margin, margin), (margin, margin)))
    return wide.reshape(len(images), -1)


def read_idx(path: Path) -> np.ndarray:
    """An array of bytes from a file in MNIST's own format, IDX."""
    try:
        data = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise FileError(f"{path} cannot be read ({error}).") from error
    kind, dimensions = data[2:4] if data[:2] == b"\0\0" and len(data) > 4 else (0, 0)
    shape = np.frombuffer(data, ">u4", dimensions, offset=4) if kind == 8 else ()
    start = 4 + 4 * dimensions
    if kind != 8 or len(data) != start + int(np.prod(shape)):
        raise FileError(f"{path} is not an IDX file of bytes; replace it.")
    return np.frombuffer(data, np.uint8, offset=start).reshape(tuple(shape))
