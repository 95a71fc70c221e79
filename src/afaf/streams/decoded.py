"""Decoded images in a memory-mapped file: a folder may be larger than memory, and is decoded once.

The files lie in the folder `images` of the cache folder, named by the paths, sizes and times of the images; they may be deleted.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from afaf.errors import DataError
from afaf.files import make_folders, read_text, remove_parts, write_whole
from afaf.streams.sources.images import read_image
from afaf.streams.sources.source import cache_folder
from afaf.streams.tasks import StoredImages

CHANNELS = 3
VERSION = 1  # of the way from a file to its pixels
LARGEST_LIST = 1 << 26  # bytes of the list of images that cannot be read
ELSEWHERE = "decoded images need room; set XDG_CACHE_HOME to a folder that has it"


def decode(paths: Sequence[Path], size: int, report: Callable[[list[str]], None]) -> tuple[StoredImages, list[int]]:
    """Return the images of these files, `size` x `size` in three channels, and the indices of the files that could be read.

    `report` gets the problems of the others. If it raises, nothing is stored.
    """
    folder = cache_folder() / "images"
    place = folder / f"{_key(paths, size)}.npy"
    shape = (len(paths), size, size, CHANNELS)
    images, unreadable = _opened(place, shape)
    if images is None:
        make_folders(folder, ELSEWHERE)
        remove_parts(folder)
        _check_room(folder, int(np.prod(shape, dtype=np.int64)))
        write_whole(place, lambda temporary: _decode_into(temporary, place, paths, shape, report))
        images, unreadable = _opened(place, shape)
        assert images is not None
    else:
        report(list(unreadable.values()))
    readable = [number for number in range(len(paths)) if str(number) not in unreadable]
    return StoredImages(images, np.array(readable, dtype=np.int64)), readable


def _key(paths: Sequence[Path], size: int) -> str:
    digest = hashlib.blake2b(f"{VERSION} {size}".encode(), digest_size=16)
    for path in paths:
        status = path.stat()
        digest.update(f"{path.resolve()} {status.st_size} {status.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _opened(place: Path, shape: tuple[int, ...]) -> tuple[NDArray[np.uint8] | None, dict[str, str]]:
    """Return the stored images and the problems of unreadable files; None if the file is missing or incomplete."""
    try:
        images = np.load(place, mmap_mode="c", allow_pickle=False)  # copy on write: torch expects writable memory
        unreadable = json.loads(read_text(place.with_suffix(".json"), LARGEST_LIST))
    except (OSError, ValueError):
        return None, {}
    return (images, unreadable) if images.shape == shape and images.dtype == np.uint8 else (None, {})


def _decode_into(temporary: Path, place: Path, paths: Sequence[Path], shape: tuple[int, ...], report: Callable[[list[str]], None]) -> None:
    images = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=shape)
    unreadable: dict[int, str] = {}
    for number, path in enumerate(paths):
        try:
            images[number] = read_image(path, shape[1])  # one channel is repeated
        except DataError as error:
            unreadable[number] = str(error)
    report(list(unreadable.values()))
    images.flush()
    write_whole(place.with_suffix(".json"), json.dumps(unreadable).encode())


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"{folder}: {needed >> 20:,} MiB of decoded images do not fit into the {free >> 20:,} MiB that are free: {ELSEWHERE}"
        )
