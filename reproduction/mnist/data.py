"""MNIST: 60,000 images for training, 10,000 for evaluation."""

import dataclasses
import gzip
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8

from pushforward.errors import FileError
from reproduction.common.data import File, find, is_there

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
FILES = tuple(File(f"mnist/{k}", v, (_HOME + k,)) for k, v in _SUMS.items())
SIDE = 32


@dataclasses.dataclass(frozen=True)
class Digits:
    """Images of 32 by 32 pixels as rows of bytes, and their classes."""

    train_pixels: UInt8[np.ndarray, "n 1024"]
    train_classes: Int[np.ndarray, " n"]
    test_pixels: UInt8[np.ndarray, "m 1024"]
    test_classes: Int[np.ndarray, " m"]
    # "real", or "miniature" where the images were generated.
    source: str


def mnist(*, miniature_images: int | None = None) -> Digits:
    """Loads MNIST, and downloads it if necessary.

    Args:
        miniature_images: if the files are not found, generate this many images instead;
            None means that the files are required.
    """
    try:
        paths = [find("MNIST", [f], download=miniature_images is None) for f in FILES]
    except FileError:
        if miniature_images is None or is_there(FILES):
            raise
        return _digits([*miniature(miniature_images), *miniature(500, 1)], "miniature")
    return _digits([read_idx(path) for path in paths], "real")


def _digits(parts: list[np.ndarray], source: str) -> Digits:
    train, train_classes, test, test_classes = parts
    return Digits(
        padded(train),
        train_classes.astype(np.int32),
        padded(test),
        test_classes.astype(np.int32),
        source,
    )


def padded(images: UInt8[np.ndarray, "n h w"]) -> UInt8[np.ndarray, "n d"]:
    """Pads images of 28 by 28 pixels to 32 by 32 and flattens them."""
    margin = (SIDE - images.shape[1]) // 2
    wide = np.pad(images, ((0, 0), (margin, margin), (margin, margin)))
    return wide.reshape(len(images), -1)


def read_idx(path: Path) -> np.ndarray:
    """Reads an array of bytes from a file in MNIST's format, IDX."""
    try:
        data = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise FileError(f"{path} cannot be read ({error}).") from error
    kind, dimensions = data[2:4] if data[:2] == b"\0\0" and len(data) > 4 else (0, 0)
    shape = np.frombuffer(data, ">u4", dimensions, offset=4) if kind == 8 else ()
    start = 4 + 4 * dimensions
    if kind != 8 or len(data) != start + int(np.prod(shape)):
        raise FileError(f"{path} is not an IDX file of bytes; download it again.")
    return np.frombuffer(data, np.uint8, offset=start).reshape(tuple(shape))


# Which of seven segments a digit shows, as on a pocket calculator: top, upper left and
# right, middle, lower left and right, bottom.
_SEGMENTS = (
    "1110111", "0010010", "1011101", "1011011", "0111010",
    "1101011", "1101111", "1010010", "1111111", "1111011",
)  # fmt: skip
# Corners of the segments: rows and columns from and to.
_PLACES = (
    (5, 7, 9, 19), (6, 14, 8, 10), (6, 14, 18, 20), (13, 15, 9, 19),
    (14, 22, 8, 10), (14, 22, 18, 20), (21, 23, 9, 19),
)  # fmt: skip


def miniature(
    images: int, seed: int = 0
) -> tuple[UInt8[np.ndarray, "n 28 28"], Int[np.ndarray, " n"]]:
    """Generates seven-segment digits of 28 by 28 pixels, shifted, in shades of grey."""
    glyphs = np.zeros((10, 28, 28), np.uint8)
    for digit, shown in enumerate(_SEGMENTS):
        for on, (top, bottom, left, right) in zip(shown, _PLACES, strict=True):
            if on == "1":
                glyphs[digit, top:bottom, left:right] = 255
    rng = np.random.default_rng(seed)
    classes = rng.integers(10, size=images)
    moves = rng.integers(-3, 4, size=(images, 2))
    greys = rng.integers(160, 256, size=images)
    drawn = [
        np.roll(glyphs[digit], move, axis=(0, 1))
        for digit, move in zip(classes, moves, strict=True)
    ]
    return np.minimum(np.stack(drawn), greys[:, None, None]).astype(np.uint8), classes
