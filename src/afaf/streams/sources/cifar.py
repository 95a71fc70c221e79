"""CIFAR-10 and CIFAR-100 in their binary versions: label bytes, then the red, green and blue planes of a 32x32 image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from afaf.errors import DataError
from afaf.files import open_regular
from afaf.streams.sources.digests import DIGESTS
from afaf.streams.sources.source import CHUNK, PARTS, Part, Pixels, Records, Remote, Source, check_labels, reading
from afaf.streams.tasks import Preparation

Files = dict[Part, tuple[str, ...]]

SIDE = 32
PIXELS = 3 * SIDE * SIDE

_CIFAR100_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle caterpillar
cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl
hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road
rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR100_CLASSES = tuple(_CIFAR100_NAMES.split())
PREPARATION = Preparation((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), augment="crop-flip")


def cifar_records(paths: Sequence[Path], label_bytes: int, n_classes: int, at_most: int) -> Records:
    """Records of `label_bytes` + 3072 bytes, the last label byte being the class; no file may hold more than `at_most`."""
    record = label_bytes + PIXELS
    sizes = [_count(path, record, at_most) for path in paths]
    labels = np.empty(sum(sizes), np.uint8)
    start = 0
    for path, size in zip(paths, sizes, strict=True):
        found = labels[start : start + size]
        at = 0
        for raw in _raw_chunks(path, size, record):
            found[at : at + len(raw)] = raw[:, label_bytes - 1]
            at += len(raw)
        check_labels(found, n_classes, path)
        start += size

    def chunks() -> Iterator[Pixels]:
        for path, size in zip(paths, sizes, strict=True):
            for raw in _raw_chunks(path, size, record):
                yield _interleaved(raw[:, label_bytes:].reshape(-1, 3, SIDE, SIDE))

    return Records(labels, chunks)


def _interleaved(planes: NDArray[np.uint8]) -> Pixels:
    """Colour planes to colours beside each other; plane by plane, several times faster than one transposition."""
    images = np.empty((len(planes), SIDE, SIDE, 3), np.uint8)
    for channel in range(3):
        images[..., channel] = planes[:, channel]
    return images


def _count(path: Path, record: int, at_most: int) -> int:
    with reading(path):
        size = path.stat().st_size
    if size == 0:
        raise DataError(f"{path}: the file is empty: replace it")
    if size % record:
        raise DataError(
            f"{path}: {size} bytes are not a whole number of {record}-byte records: "
            f"the file is cut short or not of the binary version; replace it"
        )
    if size // record > at_most:
        raise DataError(f"{path}: {size // record} records, but the published file has {at_most}: replace it")
    return size // record


def _raw_chunks(path: Path, size: int, record: int) -> Iterator[NDArray[np.uint8]]:
    """The file's records, `CHUNK` at a time, in one buffer used again and again."""
    buffer = np.empty((min(CHUNK, size), record), np.uint8)
    with reading(path), open_regular(path) as file:
        for start in range(0, size, CHUNK):
            raw = buffer[: min(CHUNK, size - start)]
            _fill(file, raw, path)
            yield raw


def _fill(file: BinaryIO, target: NDArray[np.uint8], path: Path) -> None:
    view = target.data.cast("B")
    filled = 0
    while filled < len(view):
        got = file.readinto(view[filled:])  # type: ignore[attr-defined]
        if not got:
            raise DataError(f"{path}: the file ended while it was read: was it being written? Try again")
        filled += got


def _open(files: dict[Part, tuple[str, ...]], label_bytes: int, n_classes: int, at_most: int, folder: Path) -> dict[Part, Records]:
    return {part: cifar_records([folder / name for name in files[part]], label_bytes, n_classes, at_most) for part in PARTS}


CIFAR10_FILES: Files = {
    "train": tuple(f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)),
    "test": ("cifar-10-batches-bin/test_batch.bin",),
}
CIFAR100_FILES: Files = {"train": ("cifar-100-binary/train.bin",), "test": ("cifar-100-binary/test.bin",)}

CIFAR10 = Source(
    name="cifar10",
    title="CIFAR-10",
    class_names=CIFAR10_CLASSES,
    counts={"train": (5000,) * 10, "test": (1000,) * 10},
    shape=(SIDE, SIDE, 3),
    preparation=PREPARATION,
    open=partial(_open, CIFAR10_FILES, 1, 10, 10_000),
    places=("cifar-10-batches-bin",),
    remotes=(
        Remote(
            "cifar-10-binary.tar.gz",
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
            170_052_171,
            "c32a1d4ab5d03f1284b67883e8d87530",
            unpack=True,
        ),
    ),
    digests=DIGESTS["cifar10"],
)

CIFAR100 = Source(
    name="cifar100",
    title="CIFAR-100",
    class_names=CIFAR100_CLASSES,
    counts={"train": (500,) * 100, "test": (100,) * 100},
    shape=(SIDE, SIDE, 3),
    preparation=PREPARATION,
    open=partial(_open, CIFAR100_FILES, 2, 100, 50_000),
    places=("cifar-100-binary",),
    remotes=(
        Remote(
            "cifar-100-binary.tar.gz",
            ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
            168_513_733,
            "03b5dce01913d631647c71ecec9e9cb8",
            unpack=True,
        ),
    ),
    digests=DIGESTS["cifar100"],
)
