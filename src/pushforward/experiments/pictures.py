"""Small images as text, so that a result file can hold those it shows."""

import base64
import zlib

import numpy as np
from jaxtyping import Float, UInt8

from pushforward.errors import FileError

# Shades of grey that are kept: enough for the eye, and a quarter of the bytes.
_SHADES = 15


def pack(images: Float[np.ndarray, "n d"]) -> str:
    """Images in [0, 1], in sixteen shades, as a text; what lies outside is cut off."""
    shades = np.rint(_SHADES * np.clip(np.nan_to_num(images), 0, 1)).astype(np.uint8)
    return base64.b85encode(zlib.compress(shades.tobytes(), 9)).decode()


def unpack(text: str, pixels: int) -> UInt8[np.ndarray, "n d"]:
    """The images of `pack`, each of so many pixels from 0 to 255."""
    try:
        shades = np.frombuffer(zlib.decompress(base64.b85decode(text)), np.uint8)
        return shades.reshape(-1, pixels) * np.uint8(255 // _SHADES)
    except (ValueError, zlib.error) as error:
        raise FileError(f"The images in a result file are damaged ({error}).") from None
