"""Pages of small images."""

import io
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
from jaxtyping import Float, PRNGKeyArray, UInt8

import pushforward as pf
from pushforward import _files
from pushforward.errors import UsageError

# Images on a page where nobody says how many, and pixels for one of theirs.
PAGE, ZOOM = 100, 3


def grid(
    images: UInt8[np.ndarray, "n d"], columns: int, *, gap: int = 2
) -> UInt8[np.ndarray, "h w"]:
    """Square images side by side in rows, with a white line between them."""
    side = round(images.shape[1] ** 0.5)
    rows = -(-len(images) // columns)
    step = side + gap
    page = np.full((rows * step + gap, columns * step + gap), 255, np.uint8)
    for i, image in enumerate(images):
        top, left = gap + i // columns * step, gap + i % columns * step
        page[top : top + side, left : left + side] = image.reshape(side, side)
    return page


def draw_page(key: PRNGKeyArray, sampler: pf.Sampler, n: int, path: Path) -> Path:
    """Draws `n` images of a sampler onto one page, a PNG file."""
    side = round(sampler.dim**0.5)
    if side * side != sampler.dim or side < 8:
        raise UsageError(
            f"A sampler of {sampler.dim} coordinates draws no images; for its draws "
            "give --out a name that ends in .npy, .npz or .csv."
        )
    if n < 1:
        raise UsageError(f"A page needs at least one image, not {n}.")
    draws = np.asarray(sampler.sample_flat(key, n))
    _files.write_bytes(path, png(grid(as_bytes(draws), round(n**0.5))))
    return path


def as_bytes(images: Float[np.ndarray, "n d"]) -> UInt8[np.ndarray, "n d"]:
    """Images in [0, 1] as bytes; what lies outside is cut off."""
    return np.rint(255 * np.clip(images, 0, 1)).astype(np.uint8)


def png(page: UInt8[np.ndarray, "h w"]) -> bytes:
    """A page as a PNG file, enlarged."""
    large = np.repeat(np.repeat(page, ZOOM, axis=0), ZOOM, axis=1)
    picture = io.BytesIO()
    about: Any = {"Software": None}
    # No date or version inside: the same images give the same file.
    # As colours: a map of greys would round them.
    colours = np.repeat(large[:, :, None], 3, axis=2)
    matplotlib.image.imsave(picture, colours, format="png", metadata=about)
    return picture.getvalue()
