"""CIFAR-10 and CIFAR-100, binary version: label bytes, then the red, green and blue planes of a 32x32 image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from afaf.errors import DataError
from afaf.files import open_regular
from afaf.streams.sources.source import CHUNK, PARTS, Part, Pixels, Records, check_labels, dataset, reading

SIDE = 32
PIXELS = 3 * SIDE * SIDE


def cifar_records(paths: Sequence[Path], label_bytes: int, n_classes: int, at_most: int) -> Records:
    """Read records of `label_bytes` + 3072 bytes; the last label byte is the class. Refuse files of more than `at_most` records."""
    record = label_bytes + PIXELS
    sizes = [_count(path, record, at_most) for path in paths]
    labels = np.empty(sum(sizes), np.uint8)
    start = 0
    for path, size in zip(paths, sizes, strict=True):
        end = start + size
        np.concatenate([raw[:, label_bytes - 1].copy() for raw in _raw_chunks(path, size, record)], out=labels[start:end])
        check_labels(labels[start:end], n_classes, path)
        start = end

    def chunks() -> Iterator[Pixels]:
        for path, size in zip(paths, sizes, strict=True):
            for raw in _raw_chunks(path, size, record):
                yield _interleaved(raw[:, label_bytes:].reshape(-1, 3, SIDE, SIDE))

    return Records(labels, chunks)


def _interleaved(planes: NDArray[np.uint8]) -> Pixels:
    """(n, 3, h, w) to (n, h, w, 3); plane by plane is several times faster than one transposition."""
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
            f"the file is truncated or not the binary version; replace it"
        )
    if size // record > at_most:
        raise DataError(f"{path}: {size // record} records, but the published file has {at_most}: replace it")
    return size // record


def _raw_chunks(path: Path, size: int, record: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the records, `CHUNK` at a time, in one reused buffer."""
    buffer = np.empty((min(CHUNK, size), record), np.uint8)
    with reading(path), open_regular(path) as file:
        for start in range(0, size, CHUNK):
            raw = buffer[: min(CHUNK, size - start)]
            if file.readinto(raw.data) < raw.nbytes:
                raise DataError(f"{path}: the file ended while it was read: was it being written? Try again")
            yield raw


def _open(train: Sequence[str], test: str, label_bytes: int, n_classes: int, at_most: int, folder: Path) -> dict[Part, Records]:
    files: dict[Part, Sequence[str]] = {"train": train, "test": [test]}
    return {part: cifar_records([folder / name for name in files[part]], label_bytes, n_classes, at_most) for part in PARTS}


_BATCHES = [f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)]
CIFAR10 = dataset("cifar10", partial(_open, _BATCHES, "cifar-10-batches-bin/test_batch.bin", 1, 10, 10_000))
CIFAR100 = dataset("cifar100", partial(_open, ["cifar-100-binary/train.bin"], "cifar-100-binary/test.bin", 2, 100, 50_000))
