"""Decode any image to the pixels of the network's input, in these steps:

0. a JPEG of more pixels than fit into memory is decoded at half, a quarter or an eighth of its size;
1. of an animation the first frame is used; a photograph is rotated according to its EXIF orientation;
2. transparent pixels become white; 16-bit grey is reduced to 8 bits; grey stays grey, all other modes become RGB;
3. the largest centred square is scaled to `size` x `size`, bicubic (with Pillow's antialiasing when it shrinks).
"""

from __future__ import annotations

import io
import re
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from afaf.errors import DataError
from afaf.files import read_bytes
from afaf.files.urls import read_url
from afaf.streams.sources.source import Pixels, reading

try:
    import pillow_heif
except ImportError:  # the extra `heic`
    HEIC: tuple[str, ...] = ()
else:
    pillow_heif.register_heif_opener()
    HEIC = (".heic", ".heif")

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", *HEIC})
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM", *(("HEIF",) if HEIC else ()))
PIXELS_AT_MOST = 50_000_000  # a small file can declare far more, which would fill the memory when decoded
JPEG_WORK = 1_000_000_000  # limit of pixels times scans of a JPEG: decoding takes some seconds
BYTES_AT_MOST = 1 << 29  # of an image file
NOT_READ = frozenset({".heic", ".heif", ".avif", ".jxl", ".jp2", ".cr2", ".cr3", ".nef", ".arw", ".dng", ".svg"}) - SUFFIXES  # reported
_MARKER = re.compile(rb"\xff+[^\x00\xff\xd0-\xd7]")  # within a scan: any marker except restarts


def read_image(path: Path | str, size: int | None) -> Pixels:
    """Read an image file, or one behind a URL, as (height, width, 1 or 3)."""
    with reading(path, "replace or remove it"):
        data = read_bytes(path, BYTES_AT_MOST) if isinstance(path, Path) else read_url(path, BYTES_AT_MOST)
        return decode_image(data, size, str(path))


def decode_image(data: bytes, size: int | None, name: str) -> Pixels:
    """The same from the bytes of a file; `name` is for messages."""
    with warnings.catch_warnings(), reading(name, "replace or remove it"):
        warnings.simplefilter("ignore")  # Pillow's warnings about files that are refused below or decode well
        try:
            opened = Image.open(io.BytesIO(data), formats=FORMATS)
        except UnidentifiedImageError:
            raise DataError(f"{name}: not an image, whatever its name says: replace or remove it") from None
        with opened as image:
            if image.format in ("JPEG", "MPO"):
                _prepare_jpeg(image, data, size, name)
            return pixels_of(image, size, name)


def _prepare_jpeg(image: Image.Image, data: bytes, size: int | None, path: str) -> None:
    """Refuse a JPEG that takes minutes to decode; decode one that is too large for memory at reduced size if it is scaled anyway."""
    width, height = image.size
    scans = count_scans(data, JPEG_WORK // (width * height))
    if width * height * scans > JPEG_WORK:
        raise DataError(f"{path}: {width}x{height} pixels in {scans} scans or more would take minutes to decode: save it anew or remove it")
    if size is None or width * height <= PIXELS_AT_MOST:
        return
    scale = next((scale for scale in (2, 4) if width * height // scale**2 <= PIXELS_AT_MOST), 8)
    if min(width, height) // scale >= size:
        image.draft(None, (width // scale, height // scale))


def count_scans(data: bytes, at_most: int) -> int:
    """Count the scans of a JPEG file up to `at_most` + 1; decoding a scan touches every pixel."""
    place, scans = 2, 0
    while scans <= at_most and place + 4 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF:  # a fill byte
            place += 1
            continue
        if marker == 0xD9:  # end of image
            break
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
        if marker == 0xDA:
            scans += 1
            following = _MARKER.search(data, place)
            if following is None:
                break
            place = following.end() - 2
    return scans


def pixels_of(image: Image.Image, size: int | None, name: str) -> Pixels:
    """Return a Pillow image as (height, width, 1 or 3); its size is checked before its pixels are decoded."""
    width, height = image.size
    if width * height > PIXELS_AT_MOST:
        raise DataError(f"{name}: {width}x{height} pixels, more than {PIXELS_AT_MOST // 10**6} million: shrink or remove it")
    with suppress(Exception):  # damaged EXIF data is no reason to refuse the image
        image = ImageOps.exif_transpose(image)
    image = _grey_or_colour(image, name)
    if size is not None and image.size != (size, size):
        image = _scaled(image, size)
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def fit(images: NDArray[Any], size: int | None, name: str) -> NDArray[Any]:
    """Scale images (n, height, width, channels) in the same way; the dtype is kept."""
    n, height, width, channels = images.shape
    if size is None or (height, width) == (size, size):
        return images
    if not height or not width:
        raise DataError(f"{name}: images of {height}x{width} pixels cannot be scaled")
    fitted = np.empty((n, size, size, channels), images.dtype)
    for i in range(n):
        if channels == 3 and images.dtype == np.uint8:  # the same result as plane by plane, in one call
            fitted[i] = np.asarray(_scaled(Image.fromarray(np.ascontiguousarray(images[i])), size))
            continue
        for c in range(channels):
            plane = Image.fromarray(np.ascontiguousarray(images[i, :, :, c]))
            fitted[i, :, :, c] = np.asarray(_scaled(plane, size))
    return fitted


def _scaled(image: Image.Image, size: int) -> Image.Image:
    """Scale the centred square, cropped first so that no pixel outside enters the interpolation."""
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return image.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.BICUBIC)


def _grey_or_colour(image: Image.Image, name: str) -> Image.Image:
    mode = image.mode
    if mode in ("1", "L"):
        return (_on_white(image) if "transparency" in image.info else image).convert("L")
    if mode.startswith("I"):
        deep = np.asarray(image)
        clear = deep == image.info.get("transparency", -1)
        return Image.fromarray(np.where(clear, 255, np.clip(deep, 0, 65535) >> 8).astype(np.uint8))
    if mode == "F":
        raise DataError(f"{name}: an image of floating-point numbers: its range is unknown; save it with 8 bits")
    if mode in ("LA", "La"):
        return _on_white(image).convert("L")
    if mode in ("RGBA", "RGBa", "PA") or "transparency" in image.info:
        return _on_white(image)
    return image.convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
