"""scikit-learn's digits: 1,797 grey images of 8x8 pixels that come with the library, for runs of seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from afaf.streams.sources.source import Part, Pixels, Records, dataset, in_memory
from afaf.streams.tasks import stratified

TEST_FRACTION = 0.2
STEP = 15  # the set's values 0..16 become 0..240: exact, and uint8 like every other image


def _open(_folder: Path) -> dict[Part, Records]:
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    digits = load_digits()
    images: Pixels = (digits.images * STEP).astype(np.uint8)[..., None]
    labels = digits.target.astype(np.uint8)
    train, test = stratified(digits.target, TEST_FRACTION, 0, "digits test")
    return {"train": in_memory(images, labels, train), "test": in_memory(images, labels, test)}


DIGITS = dataset("digits", _open)
