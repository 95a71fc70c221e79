"""Small datasets in the publishers' formats, made from random pixels."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from afaf.streams.sources import PARTS, Source
from afaf.streams.sources.verify import ClassDigests, count_classes

Pixels = NDArray[np.uint8]
Labels = NDArray[np.uint8]


def pixels(*shape: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def cifar_bytes(images: Pixels, *labels: Labels) -> bytes:
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.concatenate([label[:, None] for label in labels] + [planes], 1).tobytes()


def cifar10(folder: Path, per_file: int = 20) -> dict[str, tuple[Pixels, Labels]]:
    """The six files; returns the images and labels of each part."""
    (folder / "cifar-10-batches-bin").mkdir(parents=True)
    images, labels = pixels(6 * per_file, 32, 32, 3), (np.arange(6 * per_file) * 7 % 10).astype(np.uint8)
    for i, name in enumerate([f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"]):
        cut = slice(i * per_file, (i + 1) * per_file)
        (folder / "cifar-10-batches-bin" / name).write_bytes(cifar_bytes(images[cut], labels[cut]))
    cut = 5 * per_file
    return {"train": (images[:cut], labels[:cut]), "test": (images[cut:], labels[cut:])}


def cifar100(folder: Path, classes: Sequence[int], train: int = 500, test: int = 100) -> None:
    """A copy that has these classes only, with the published number of images each unless told otherwise."""
    (folder / "cifar-100-binary").mkdir(parents=True)
    for name, count in (("train", train), ("test", test)):
        labels = np.repeat(np.array(classes, np.uint8), count)
        coarse = np.full_like(labels, 19)
        (folder / "cifar-100-binary" / f"{name}.bin").write_bytes(cifar_bytes(pixels(len(labels), 32, 32, 3), coarse, labels))


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def idx(folder: Path, n: int = 40, zipped: bool = True) -> dict[str, tuple[Pixels, Labels]]:
    """The four IDX files in `folder`."""
    folder.mkdir(parents=True)
    made = {}
    for part, prefix, count in (("train", "train", n), ("test", "t10k", n // 2)):
        images, labels = pixels(count, 28, 28, seed=count), (np.arange(count) % 10).astype(np.uint8)
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            content = idx_bytes(array)
            path = folder / f"{prefix}-{name}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(content, mtime=0) if zipped else content)
        made[part] = images[..., None], labels
    return made


def png(image: Pixels) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def tar_gz(path: Path, members: Mapping[str, bytes], special: Sequence[tarfile.TarInfo] = ()) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for info in special:
            tar.addfile(info)


@cache
def letters(per_letter: int, seed: int = 0) -> Mapping[str, bytes]:
    """Members of a notMNIST archive."""
    images = pixels(10 * per_letter, 28, 28, seed=seed)
    return {f"notMNIST_small/{'ABCDEFGHIJ'[i % 10]}/{i:04d}.png": png(image) for i, image in enumerate(images)}


def as_published(source: Source, folder: Path) -> Source:
    """The source as if what is in the folder were what was published."""
    digests, counts = {}, {}
    for part, records in source.records(folder).items():
        classes = ClassDigests(range(len(source.class_names)))
        for images, labels in records.pairs():
            classes.update(images, labels)
        digests |= {f"{part}/{source.class_names[c]}": digest for c, digest in classes.hexdigests().items()}
        counts[part] = tuple(int(n) for n in count_classes(source, records))
    assert set(counts) == set(PARTS)
    return replace(source, digests=digests, counts=counts)
