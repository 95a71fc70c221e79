"""A contact sheet: a few training images of every class, one row per class, grouped by task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from afaf.errors import DataError
from afaf.files import write_output
from afaf.files.marks import PROGRAM
from afaf.streams.tasks import Stream
from afaf.text import printable_name

GAP, MARGIN, NAMES, HEADING = 4, 12, 130, 26  # pixels
SMALLEST, LARGEST = 48, 128  # side of a displayed image
INK, PALE, PAPER = "#1a1a1a", "#777777", "white"


def contact_sheet(stream: Stream, per_class: int = 10) -> Image.Image:
    """Draw the sheet; images are shown as stored, before normalisation and augmentation."""
    if stream[0].train.images.ndim != 4:
        raise DataError(f"stream '{stream.name}' consists of vectors: it has no images to show")
    shown = _shown_size(*stream[0].train.images.shape[1:3])
    cell_w, cell_h = shown[0] + GAP, shown[1] + GAP
    rows = sum(len(task.classes) for task in stream)
    sheet = Image.new("RGB", (2 * MARGIN + NAMES + per_class * cell_w, 2 * MARGIN + len(stream) * HEADING + rows * cell_h), PAPER)
    draw = ImageDraw.Draw(sheet)
    y = MARGIN
    for task in stream:
        heading = f"Task {task.number}: {len(task.train):,} training, {len(task.test):,} test images"
        draw.text((MARGIN, y + 6), heading, INK, ImageFont.load_default(14))
        y += HEADING
        for class_id, name in zip(task.classes, task.class_names, strict=True):
            draw.text((MARGIN, y + cell_h // 2 - 8), _short(name), PALE, ImageFont.load_default(12))
            first = np.asarray(task.train.of_classes(class_id).images[:per_class])
            for i, image in enumerate(_as_bytes(first)):
                sheet.paste(_resized(Image.fromarray(image), shown), (MARGIN + NAMES + i * cell_w, y))
            y += cell_h
    return sheet


def save_contact_sheet(stream: Stream, path: Path, per_class: int = 10, *, inputs: Sequence[Path] = (), force: bool = False) -> None:
    """Write the sheet as PNG; never over `inputs`, over files that are not contact sheets only with `force`."""
    sheet, about = contact_sheet(stream, per_class), PngInfo()
    about.add_text("Software", PROGRAM)
    write_output(path, "png", lambda part: sheet.save(part, "PNG", pnginfo=about), inputs, force=force)


def _shown_size(height: int, width: int) -> tuple[int, int]:
    """Width and height on the sheet: small images are enlarged by an integer factor, large ones shrunk."""
    side = max(height, width)
    if side > LARGEST:
        return max(1, width * LARGEST // side), max(1, height * LARGEST // side)
    scale = -(-SMALLEST // side)
    return width * scale, height * scale


def _resized(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    enlarged = size[0] >= image.size[0]
    return image.resize(size, Image.Resampling.NEAREST if enlarged else Image.Resampling.BICUBIC)


def _short(name: str) -> str:
    name = printable_name(name)
    return name if len(name) <= 18 else name[:17] + "…"


def _as_bytes(images: NDArray[Any]) -> NDArray[np.uint8]:
    """Return uint8 images, colour or grey; floats are scaled from their range."""
    if images.dtype != np.uint8:
        low, high = float(images.min()), float(images.max())
        images = ((images - low) * (255 / (high - low if high > low else 1))).astype(np.uint8)
    return images[..., :3] if images.shape[3] >= 3 else images[..., 0]
