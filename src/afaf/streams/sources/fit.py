"""Images of 28x28 pixels brought to the 32x32 of the paper's network."""

from __future__ import annotations

import numpy as np
from PIL import Image

from afaf.streams.sources.source import Pixels


def padded(images: Pixels) -> Pixels:
    """In the middle, zeros around."""
    return np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0)))


def resized(images: Pixels) -> Pixels:
    """Bicubic."""
    larger = np.empty((len(images), 32, 32, 1), np.uint8)
    for i, image in enumerate(images):
        larger[i, :, :, 0] = np.asarray(Image.fromarray(image[:, :, 0]).resize((32, 32), Image.Resampling.BICUBIC))
    return larger
