"""notMNIST_small: letters A to J, 28x28 grey PNGs in a tar.gz or in the folder it unpacks to, with no official split.

The split and the order depend on the pixels alone, so every copy gives the same stream: images are sorted by letter, then by the hash
of their pixels, and identical images are in the same part.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from afaf.errors import DataError
from afaf.files import read_bytes
from afaf.streams.sources.images import fit
from afaf.streams.sources.safety import Limits, member_blocks, plain_members
from afaf.streams.sources.source import Part, Pixels, Records, dataset, in_memory, reading

LETTERS = "ABCDEFGHIJ"
SIDE = 28
LIMITS = Limits(members=20_000, member=64 * 1024, total=64 * 1024**2)  # published: 18,726 files of about 500 bytes
ARCHIVE, UNPACKED = "notMNIST_small.tar.gz", "notMNIST_small"

Letter = tuple[str, int, bytes]  # name, class, file content


def split_by_pixels(keys: list[bytes], labels: NDArray[np.uint8], quota: tuple[int, ...], seed: int = 0) -> NDArray[np.bool_]:
    """Return a mask of the test images: `quota` of each class, chosen by the hash of the pixels.

    Images with the same key form one group, whatever their letters. In the order of their seeded hash, groups join the test part
    unless a class would exceed its quota.
    """
    groups: dict[bytes, list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(key, []).append(i)
    rank = {key: hashlib.sha256(f"test part {seed} ".encode() + key).digest() for key in groups}
    left = np.array(quota)
    test = np.zeros(len(keys), np.bool_)
    for key in sorted(groups, key=rank.__getitem__):
        members = groups[key]
        counts = np.bincount(labels[members], minlength=len(quota))
        if (counts <= left).all():
            left -= counts
            test[members] = True
    return test


def notmnist_records(place: Path) -> dict[Part, Records]:
    """Read both parts; unreadable images (the published archive has two) are skipped and listed."""
    images, labels, skipped = _decode(place)
    keys = [hashlib.sha256(image).digest() for image in images]
    test = split_by_pixels(keys, labels, NOTMNIST.counts["test"])
    order = np.array(sorted(range(len(keys)), key=lambda i: (labels[i], keys[i])))
    return {
        "train": in_memory(images, labels, order[~test[order]], tuple(skipped)),
        "test": in_memory(images, labels, order[test[order]], tuple(skipped)),
    }


def _decode(place: Path) -> tuple[Pixels, NDArray[np.uint8], list[str]]:
    images, labels, skipped = [], [], []
    for name, label, content in _letters_in_folder(place) if place.is_dir() else _letters_in_archive(place):
        try:
            images.append(decode_letter(content, name))
            labels.append(label)
        except DataError:
            skipped.append(name)
    if not images:
        raise DataError(f"{place}: no readable letter images (A/*.png ... J/*.png): run 'afaf data get notmnist'")
    return np.stack(images)[..., None], np.array(labels, np.uint8), skipped


def decode_letter(content: bytes, name: str) -> NDArray[np.uint8]:
    """Decode a 28x28 grey PNG; its size is checked before its pixels are decoded."""
    with reading(name), Image.open(io.BytesIO(content), formats=("PNG",)) as image:
        if image.size != (SIDE, SIDE):
            raise DataError(f"{name}: {image.size[0]}x{image.size[1]} pixels, not {SIDE}x{SIDE}")
        return np.asarray(image.convert("L"))


def _letters_in_archive(path: Path) -> Iterator[Letter]:
    for member, tar in plain_members(path, LIMITS):
        label = _letter(PurePosixPath(member.name))
        if label is not None:
            yield member.name, label, b"".join(member_blocks(tar, member, path))


def _letters_in_folder(folder: Path) -> Iterator[Letter]:
    number = 0
    for label, letter in enumerate(LETTERS):
        if not (folder / letter).is_dir():
            continue
        for path in sorted((folder / letter).glob("*.png")):
            number += 1
            if number > LIMITS.members:
                raise DataError(f"{folder}: more than {LIMITS.members} files, not the published set: replace it")
            with reading(path):
                content = read_bytes(path, LIMITS.member)
            yield f"{letter}/{path.name}", label, content


def _letter(path: PurePosixPath) -> int | None:
    """Return the class of .../A/name.png, None for any other file of the archive."""
    is_letter = path.suffix == ".png" and path.parent.name in tuple(LETTERS) and not path.name.startswith(".")
    return LETTERS.index(path.parent.name) if is_letter else None


def _open(folder: Path) -> dict[Part, Records]:
    archive = folder / ARCHIVE
    return notmnist_records(archive if archive.exists() else folder / UNPACKED)


NOTMNIST = dataset("notmnist", _open, {"resize": partial(fit, size=32, name="notMNIST")})
