"""MNIST and Fashion-MNIST: IDX files (a big-endian header, then bytes), gzipped or not."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from afaf.errors import DataError
from afaf.files import open_regular
from afaf.streams.sources.datasets import dataset
from afaf.streams.sources.images import fit
from afaf.streams.sources.source import CHUNK, Part, Pixels, Records, check_labels, reading

SIDE = 28
FILES: dict[Part, tuple[str, int]] = {"train": ("train", 60_000), "test": ("t10k", 10_000)}  # prefix, images at most
GZIP_MAGIC = b"\x1f\x8b"


def idx_records(images: Path, labels: Path, n_classes: int, at_most: int) -> Records:
    """Open 28x28 images and their labels, two IDX files, gzipped or not; refuse headers of more than `at_most` records."""
    label_array = _read_labels(labels, at_most)
    check_labels(label_array, n_classes, labels)
    with reading(images), _open_maybe_gzipped(images) as file:
        count = _header(file, images, 3, at_most)[0]
    if count != len(label_array):
        raise DataError(f"{images} promises {count} images, but {labels} has {len(label_array)} labels: they are not of one dataset")
    return Records(label_array, partial(_image_chunks, images, count, at_most))


def _read_labels(path: Path, at_most: int) -> NDArray[np.uint8]:
    with reading(path), _open_maybe_gzipped(path) as file:
        (count,) = _header(file, path, 1, at_most)
        labels = np.frombuffer(_exactly(file, count, path, f"{count} labels"), np.uint8)
        _ended(file, path)
        return labels


def _image_chunks(path: Path, count: int, at_most: int) -> Iterator[Pixels]:
    with reading(path), _open_maybe_gzipped(path) as file:
        _header(file, path, 3, at_most)
        for start in range(0, count, CHUNK):
            size = min(CHUNK, count - start)
            raw = _exactly(file, size * SIDE * SIDE, path, f"{count} images")
            yield np.frombuffer(raw, np.uint8).reshape(size, SIDE, SIDE, 1)
        _ended(file, path)


def _open_maybe_gzipped(path: Path) -> IO[bytes]:
    """Detects gzip by content: browsers unpack .gz files and keep the name."""
    file = open_regular(path)
    zipped = file.read(2) == GZIP_MAGIC
    file.seek(0)
    return _Unzipped(file) if zipped else file  # type: ignore[return-value]


class _Unzipped(gzip.GzipFile):
    """A GzipFile that also closes the file it reads from."""

    def __init__(self, file: BufferedReader):
        super().__init__(fileobj=file)
        self._below = file

    def close(self) -> None:
        super().close()
        self._below.close()


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
