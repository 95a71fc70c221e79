"""Read arrays from an .npz file, without pickle and without trusting its headers."""

from __future__ import annotations

import math
import os
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from afaf.errors import DataError
from afaf.files import open_regular
from afaf.streams.sources.source import reading

SPELLINGS = {
    "x_train": ("x_train", "train_images", "x", "images"),
    "y_train": ("y_train", "train_labels", "y", "labels"),
    "x_test": ("x_test", "test_images"),
    "y_test": ("y_test", "test_labels"),
}
BLOCK = 1 << 20
UNPACKED = 256 << 20  # bytes that any file may decompress to
RATIO = 100  # above that, bytes per byte of the file; images stay below ten


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read `x_train`, `y_train` and, if present, `x_test` and `y_test`; other arrays are ignored."""
    advice = "write it with numpy.savez(path, x_train=..., y_train=..., x_test=..., y_test=...)"
    with reading(path, advice), open_regular(path) as packed, zipfile.ZipFile(packed) as archive:
        bytes_left = max(UNPACKED, RATIO * os.fstat(packed.fileno()).st_size)
        members = {info.filename.removesuffix(".npy").lower(): info for info in archive.infolist()}
        arrays = {}
        for name, spellings in SPELLINGS.items():
            spelling = next((s for s in spellings if s in members), None)
            if spelling is not None:
                bytes_left -= members[spelling].file_size
                if bytes_left < 0:
                    raise DataError(f"{path}: decompresses to over {RATIO} times its size: if that is intended, write it with numpy.savez")
                with archive.open(members[spelling]) as file:
                    arrays[name] = _read_array(file, members[spelling], path)
    for name in ("x_train", "y_train"):
        if name not in arrays:
            present = ", ".join(sorted(members)[:20]) or "nothing"
            raise DataError(f"{path}: no array '{name}' (or {', '.join(SPELLINGS[name][1:])}); it has {present}: {advice}")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise DataError(f"{path}: x_test and y_test belong together: give both or neither")
    return arrays


def _read_array(file: IO[bytes], info: zipfile.ZipInfo, path: Path) -> NDArray[Any]:
    where = f"{path}, {info.filename}"
    shape, fortran, dtype = _read_header(file, where)
    if dtype.hasobject:
        raise DataError(f"{where}: holds Python objects, which are never loaded: save arrays of numbers or strings")
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size > info.file_size:
        raise DataError(f"{where}: the header promises {shape} {dtype}, the file holds {info.file_size} bytes: replace it")
    array = np.empty(math.prod(shape), dtype)
    view = array.view(np.uint8).data if size else memoryview(b"")
    for start in range(0, size, BLOCK):
        block = file.read(min(BLOCK, size - start))
        if len(block) != min(BLOCK, size - start):
            raise DataError(f"{where}: the array is truncated: replace the file")
        view[start : start + len(block)] = block
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)


def _read_header(file: IO[bytes], where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise DataError(f"{where}: an array file of version {version}, not 1.0 or 2.0: save it again")
    shape, fortran, dtype = readers[version](file)
    return shape, fortran, dtype
