"""MNIST and Fashion-MNIST: IDX files (a big-endian header, then bytes), gzipped or not."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from afaf.errors import DataError
from afaf.files import open_regular
from afaf.streams.sources.images import fit
from afaf.streams.sources.source import CHUNK, Part, Pixels, Records, check_labels, dataset, reading

SIDE = 28
FILES: dict[Part, tuple[str, int]] = {"train": ("train", 60_000), "test": ("t10k", 10_000)}  # prefix, images at most
GZIP_MAGIC = b"\x1f\x8b"


def idx_records(images: Path, labels: Path, n_classes: int, at_most: int) -> Records:
    """Open 28x28 images and their labels, two IDX files, gzipped or not; refuse headers of more than `at_most` records."""
    with reading(labels), _unzipped(labels) as file:
        (n_labels,) = _header(file, labels, 1, at_most)
        label_array = np.frombuffer(_exactly(file, n_labels, labels, f"{n_labels} labels"), np.uint8)
        _ended(file, labels)
    check_labels(label_array, n_classes, labels)
    with reading(images), _unzipped(images) as file:
        count = _header(file, images, 3, at_most)[0]
    if count != n_labels:
        raise DataError(f"{images} promises {count} images, but {labels} has {n_labels} labels: they are not of one dataset")
    return Records(label_array, partial(_image_chunks, images, count, at_most))


def _image_chunks(path: Path, count: int, at_most: int) -> Iterator[Pixels]:
    with reading(path), _unzipped(path) as file:
        _header(file, path, 3, at_most)
        for start in range(0, count, CHUNK):
            size = min(CHUNK, count - start)
            raw = _exactly(file, size * SIDE * SIDE, path, f"{count} images")
            yield np.frombuffer(raw, np.uint8).reshape(size, SIDE, SIDE, 1)
        _ended(file, path)


@contextmanager
def _unzipped(path: Path) -> Iterator[IO[bytes]]:
    """Detects gzip by content: browsers unpack .gz files and keep the name."""
    with open_regular(path) as file:
        zipped = file.read(2) == GZIP_MAGIC
        file.seek(0)
        with gzip.GzipFile(fileobj=file) if zipped else nullcontext(file) as content:
            yield content  # type: ignore[misc]


def _header(file: IO[bytes], path: Path, dimensions: int, at_most: int) -> tuple[int, ...]:
    """Read the dimensions of an IDX header and check them before anything is allocated."""
    length = 4 + 4 * dimensions
    header = file.read(length)
    if not header:
        raise DataError(f"{path}: the file is empty: replace it")
    expected = struct.pack(">BBBB", 0, 0, 8, dimensions)
    if len(header) < length or header[:4] != expected:
        raise DataError(f"{path}: not an IDX file of bytes in {dimensions} dimension(s): it is damaged or another file: replace it")
    sizes = struct.unpack(f">{dimensions}I", header[4:])
    if sizes[0] > at_most:
        raise DataError(f"{path}: the header promises {sizes[0]} records, but the published file has {at_most}: replace it")
    if dimensions == 3 and sizes[1:] != (SIDE, SIDE):
        raise DataError(f"{path}: images of {sizes[1]}x{sizes[2]} pixels, not {SIDE}x{SIDE}: another dataset? Replace it")
    return sizes


def _exactly(file: IO[bytes], size: int, path: Path, promised: str) -> bytes:
    raw = file.read(size)
    if len(raw) != size:
        raise DataError(f"{path}: the header promises {promised}, but the file is truncated: replace it")
    return raw


def _ended(file: IO[bytes], path: Path) -> None:
    if file.read(1):
        raise DataError(f"{path}: the file is longer than its header promises: it is damaged; replace it")


def _open(subfolder: str, folder: Path) -> dict[Part, Records]:
    opened: dict[Part, Records] = {}
    for part, (prefix, at_most) in FILES.items():
        images, labels = (_find(folder / subfolder, f"{prefix}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
        opened[part] = idx_records(images, labels, 10, at_most)
    return opened


def _find(folder: Path, name: str) -> Path:
    """Find the file by its published name, gzipped or not; some copies have '.' instead of '-' before 'idx'."""
    names = [name + ".gz", name, name.replace("-idx", ".idx"), name.replace("-idx", ".idx") + ".gz"]
    return next((folder / n for n in names if (folder / n).is_file()), folder / names[0])


def _padded(images: Pixels) -> Pixels:
    """28x28 images centred in 32x32 zeros."""
    return np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0)))


_FITS: dict[str, Callable[[Pixels], Pixels]] = {"pad": _padded, "resize": partial(fit, size=32, name="MNIST")}
MNIST = dataset("mnist", partial(_open, "mnist"), _FITS)
FASHION_MNIST = dataset("fashion-mnist", partial(_open, "fashion-mnist"), _FITS)
