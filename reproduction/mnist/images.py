"""Small images: pages of them, and their place in a result file."""

import base64
import io
import zlib
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
from jaxtyping import Float, PRNGKeyArray, UInt8

import pushforward as pf
from pushforward.errors import FileError, UsageError
from reproduction.common.files import write_bytes

# The side in pixels of one pixel of an image.
ZOOM = 3


def grid(
    images: UInt8[np.ndarray, "n d"], columns: int, *, gap: int = 2
) -> UInt8[np.ndarray, "h w"]:
    """Arranges square images in rows, with white lines between them."""
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
            f"A sampler of {sampler.dim} coordinates draws no images; use "
            "pushforward sample to write its draws to a file."
        )
    if n < 1:
        raise UsageError(f"A page needs at least one image, not {n}.")
    draws = np.asarray(sampler.unconstrained().sample(key, n))
    write_bytes(path, png(grid(as_bytes(draws), round(n**0.5))))
    return path


def as_bytes(images: Float[np.ndarray, "n d"]) -> UInt8[np.ndarray, "n d"]:
    """Converts images in [0, 1] to bytes; values outside are clipped."""
    return np.rint(255 * np.clip(images, 0, 1)).astype(np.uint8)


def png(page: UInt8[np.ndarray, "h w"]) -> bytes:
    """Encodes a page as an enlarged PNG file."""
    large = np.repeat(np.repeat(page, ZOOM, axis=0), ZOOM, axis=1)
    picture = io.BytesIO()
    about: Any = {"Software": None}
    # No date or version inside: the same images give the same file.
    # As colours: a map of greys would round them.
    colours = np.repeat(large[:, :, None], 3, axis=2)
    matplotlib.image.imsave(picture, colours, format="png", metadata=about)
    return picture.getvalue()


# Shades of grey that are stored.
_SHADES = 15


def pack(images: Float[np.ndarray, "n d"]) -> str:
    """Encodes images in [0, 1] as text, in sixteen shades of grey."""
    shades = np.rint(_SHADES * np.clip(np.nan_to_num(images), 0, 1)).astype(np.uint8)
    return base64.b85encode(zlib.compress(shades.tobytes(), 9)).decode()


def unpack(text: str, pixels: int) -> UInt8[np.ndarray, "n d"]:
    """Decodes the images of `pack`; each has `pixels` values from 0 to 255."""
    try:
        shades = np.frombuffer(zlib.decompress(base64.b85decode(text)), np.uint8)
        return shades.reshape(-1, pixels) * np.uint8(255 // _SHADES)
    except (ValueError, zlib.error) as error:
        raise FileError(f"The images in a result file are damaged ({error}).") from None
