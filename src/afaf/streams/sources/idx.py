"""MNIST and Fashion-MNIST: IDX files (a big-endian header, then bytes), gzipped or not."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from afaf.errors import DataError
from afaf.files import open_regular
from afaf.streams.sources.digests import DIGESTS
from afaf.streams.sources.fit import padded, resized
from afaf.streams.sources.source import CHUNK, Part, Pixels, Records, Remote, Source, check_labels, reading
from afaf.streams.tasks import Preparation

SIDE = 28
FILES: dict[Part, tuple[str, int]] = {"train": ("train", 60_000), "test": ("t10k", 10_000)}  # prefix, images at most
GZIP_MAGIC = b"\x1f\x8b"


def idx_records(images: Path, labels: Path, n_classes: int, at_most: int) -> Records:
    """28x28 images and their labels, from two IDX files that may be gzipped; neither may promise more than `at_most`."""
    found = _read_labels(labels, at_most)
    check_labels(found, n_classes, labels)
    with reading(images), _open_maybe_gzipped(images) as file:
        count = _header(file, images, 3, at_most)[0]
    if count != len(found):
        raise DataError(f"{images} promises {count} images, but {labels} has {len(found)} labels: they are not of one set")
    return Records(found, partial(_image_chunks, images, count, at_most))


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
    """By content, not by name: browsers unpack .gz files and keep the name."""
    file = open_regular(path)
    zipped = file.read(2) == GZIP_MAGIC
    file.seek(0)
    return _Unzipped(file) if zipped else file  # type: ignore[return-value]


class _Unzipped(gzip.GzipFile):
    """Closes the file that it reads from, too."""

    def __init__(self, file: BufferedReader):
        super().__init__(fileobj=file)
        self._below = file

    def close(self) -> None:
        super().close()
        self._below.close()


def _header(file: IO[bytes], path: Path, dimensions: int, at_most: int) -> tuple[int, ...]:
    """The dimensions an IDX header promises, refused before anything is allocated for them."""
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
        raise DataError(f"{path}: the header promises {promised}, but the file ends before: it is cut short; replace it")
    return raw


def _ended(file: IO[bytes], path: Path) -> None:
    if file.read(1):
        raise DataError(f"{path}: the file goes on after what its header promises: it is damaged; replace it")


def _open(subfolder: str, folder: Path) -> dict[Part, Records]:
    opened: dict[Part, Records] = {}
    for part, (prefix, at_most) in FILES.items():
        images, labels = (_find(folder / subfolder, f"{prefix}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
        opened[part] = idx_records(images, labels, 10, at_most)
    return opened


def _find(folder: Path, name: str) -> Path:
    """The file under its published name, gzipped or not, with '-' or (as some copies have it) '.' before 'idx'."""
    names = [name + ".gz", name, name.replace("-idx", ".idx"), name.replace("-idx", ".idx") + ".gz"]
    return next((folder / n for n in names if (folder / n).is_file()), folder / names[0])


def _source(
    name: str,
    title: str,
    class_names: tuple[str, ...],
    train_counts: tuple[int, ...],
    test_counts: tuple[int, ...],
    preparation: Preparation,
    bases: tuple[str, ...],
    published: dict[str, tuple[int, str]],
) -> Source:
    return Source(
        name=name,
        title=title,
        class_names=class_names,
        counts={"train": train_counts, "test": test_counts},
        shape=(32, 32, 1),
        preparation=preparation,
        open=partial(_open, name),
        places=(name,),
        remotes=tuple(Remote(f"{name}/{file}", tuple(base + file for base in bases), size, md5) for file, (size, md5) in published.items()),
        fits={"pad": padded, "resize": resized},
        digests=DIGESTS[name],
    )


MNIST = _source(
    "mnist",
    "MNIST",
    tuple("0123456789"),
    (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
    (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    Preparation((0.1,), (0.2752,), channels=3),
    (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    ),
    {
        "train-images-idx3-ubyte.gz": (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        "train-labels-idx1-ubyte.gz": (28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
        "t10k-images-idx3-ubyte.gz": (1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
        "t10k-labels-idx1-ubyte.gz": (4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
    },
)

FASHION_MNIST = _source(
    "fashion-mnist",
    "Fashion-MNIST",
    ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    (6000,) * 10,
    (1000,) * 10,
    Preparation((0.2190,), (0.3318,), channels=3),
    (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    {
        "train-images-idx3-ubyte.gz": (26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        "train-labels-idx1-ubyte.gz": (29_515, "25c81989df183df01b3e8a0aad5dffbe"),
        "t10k-images-idx3-ubyte.gz": (4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
        "t10k-labels-idx1-ubyte.gz": (5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
    },
)
