"""scikit-learn's digits: 1,797 grey images of 8x8 pixels that come with the library, for trying things in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from afaf.errors import DataError
from afaf.streams.sources.digests import DIGESTS
from afaf.streams.sources.source import Part, Pixels, Records, Source, in_memory
from afaf.streams.tasks import Preparation, stratified

PER_CLASS = (178, 182, 177, 183, 181, 182, 181, 179, 174, 180)
TEST_FRACTION = 0.2
TEST_PER_CLASS = tuple(round(TEST_FRACTION * n) for n in PER_CLASS)
STEP = 15  # the set's values 0..16 become 0..240: exact, and uint8 like every other image


def _open(_folder: Path) -> dict[Part, Records]:
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError as error:
        raise DataError("the digits come with scikit-learn, which is not installed: pip install scikit-learn") from error
    digits = load_digits()
    images: Pixels = (digits.images * STEP).astype(np.uint8)[..., None]
    labels = digits.target.astype(np.uint8)
    train, test = stratified(digits.target, TEST_FRACTION, 0, "digits test")
    return {"train": in_memory(images, labels, train), "test": in_memory(images, labels, test)}


DIGITS = Source(
    name="digits",
    title="scikit-learn digits",
    class_names=tuple("0123456789"),
    counts={"train": tuple(n - t for n, t in zip(PER_CLASS, TEST_PER_CLASS, strict=True)), "test": TEST_PER_CLASS},
    shape=(8, 8, 1),
    preparation=Preparation((0.2871,), (0.3538,)),  # of the training images
    open=_open,
    digests=DIGESTS["digits"],
)
