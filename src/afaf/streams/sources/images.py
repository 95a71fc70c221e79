"""Any image to the pixels a network takes. The rule, in this order:

0. a JPEG of more pixels than fit into memory is decoded at half, a quarter or an eighth of its size;
1. an animation is its first frame; a photograph is turned upright as its EXIF note says;
2. transparent pixels show white; 16-bit grey is cut to 8 bits; grey stays grey, everything else becomes red, green and blue;
3. the largest square in the middle is scaled to `size` x `size`, bicubic (with Pillow's antialiasing when it shrinks).
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
PIXELS_AT_MOST = 50_000_000  # a small file can promise far more; decoded, they would fill the memory
JPEG_WORK = 1_000_000_000  # pixels times scans of a JPEG that is still decoded: some seconds
BYTES_AT_MOST = 1 << 29  # of an image file
NOT_READ = frozenset({".heic", ".heif", ".avif", ".jxl", ".jp2", ".cr2", ".cr3", ".nef", ".arw", ".dng", ".svg"}) - SUFFIXES  # told of
_MARKER = re.compile(rb"\xff+[^\x00\xff\xd0-\xd7]")  # within a scan: anything but data and restarts


def read_image(path: Path, size: int | None) -> Pixels:
    """The image in a file as (height, width, 1 or 3)."""
    with warnings.catch_warnings(), reading(path, "replace or remove it"):
        warnings.simplefilter("ignore")  # Pillow's doubts about the file: it is refused below, or it is fine
        try:
            data = read_bytes(path, BYTES_AT_MOST)
            opened = Image.open(io.BytesIO(data), formats=FORMATS)
        except UnidentifiedImageError:
            raise DataError(f"{path}: not an image, whatever its name says: replace or remove it") from None
        with opened as image:
            if image.format in ("JPEG", "MPO"):
                _prepare_jpeg(image, data, size, path)
            return pixels_of(image, size, str(path))


def _prepare_jpeg(image: Image.Image, data: bytes, size: int | None, path: Path) -> None:
    """Refuse one that would take minutes to decode; have one that is too large for memory decoded smaller, where it is scaled anyway."""
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
    """The scans of a JPEG file, each of which goes over all its pixels; `at_most` + 1 stands for more."""
    place, scans = 2, 0
    while scans <= at_most and place + 4 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF:  # a fill byte
            place += 1
            continue
        if marker == 0xD9:  # the end; what follows is no part of the picture
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
    """A Pillow image as (height, width, 1 or 3); its size is looked at before its pixels are decoded."""
    width, height = image.size
    if width * height > PIXELS_AT_MOST:
        raise DataError(f"{name}: {width}x{height} pixels, more than {PIXELS_AT_MOST // 10**6} million: shrink or remove it")
    with suppress(Exception):  # a broken note about the camera is no reason to refuse the picture
        image = ImageOps.exif_transpose(image)
    image = _grey_or_colour(image, name)
    if size is not None and image.size != (size, size):
        image = _scaled(image, size)
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def fit(images: NDArray[Any], size: int | None, name: str) -> NDArray[Any]:
    """Images (n, height, width, channels) scaled by the same rule; uint8 stays uint8, float32 stays float32."""
    n, height, width, channels = images.shape
    if size is None or (height, width) == (size, size):
        return images
    if not height or not width:
        raise DataError(f"{name}: images of {height}x{width} pixels cannot be scaled")
    fitted = np.empty((n, size, size, channels), images.dtype)
    for i in range(n):
        if channels == 3 and images.dtype == np.uint8:  # the same as plane by plane, in one call
            fitted[i] = np.asarray(_scaled(Image.fromarray(np.ascontiguousarray(images[i])), size))
            continue
        for c in range(channels):
            plane = Image.fromarray(np.ascontiguousarray(images[i, :, :, c]))
            fitted[i, :, :, c] = np.asarray(_scaled(plane, size))
    return fitted


def _scaled(image: Image.Image, size: int) -> Image.Image:
    """The middle square, cut out first so that nothing beside it bleeds in."""
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
