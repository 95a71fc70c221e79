"""The file format of models and checkpoints: safetensors, with a description and a checksum in its metadata.

A safetensors file is the length of a header (8 bytes), the header (JSON: each tensor's dtype, shape and place) and the tensors' bytes.
`__metadata__.afaf` is the description, as JSON; `__metadata__.sha256` is the checksum of the whole file with that checksum's own 64 digits
at 0. Any safetensors reader opens it. Nothing in a file is believed before it was checked, and no memory is asked for before that: what a
header promises must be there, byte for byte.

Written and read here, not by the safetensors package: that maps files into memory (one that is cut short meanwhile ends the process), knows
no checksum of the header, and reports a full disk without the system's reason.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from afaf.errors import ConfigError, FileError
from afaf.files import open_regular

HEADER_LIMIT = 16 << 20  # bytes; ten thousand tensors need less than one million
DIMENSIONS = 8
NO_SUM = "0" * 64
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

About = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """What the header says of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def numel(self) -> int:
        return (self.end - self.begin) // self.dtype.itemsize


Entries = dict[str, Entry]
Check = Callable[[About, Entries], None]


@dataclass(frozen=True)
class Contents:
    about: About
    tensors: dict[str, Tensor]
    checksum: str | None  # None: of a format that had none


def encode(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> tuple[list[bytes | memoryview], str]:
    """The parts of a file, in order, and its checksum. The tensors are in host memory and contiguous; they are not copied."""
    ordered = sorted(tensors, key=lambda name: -tensors[name].element_size())  # large numbers first: all begin at multiples of their size
    header: dict[str, Any] = {"__metadata__": {"afaf": json.dumps(about, allow_nan=False), "sha256": NO_SUM}}
    place = 0
    for name in ordered:
        tensor = tensors[name]
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [place, place + tensor.nbytes]}
        place += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    length = len(text).to_bytes(8, "little")
    parts = [_bytes(tensors[name]) for name in ordered if tensors[name].nbytes]
    digest = hashlib.sha256(length + text)
    for part in parts:
        digest.update(part)
    checksum = digest.hexdigest()
    signed = text.replace(f'"sha256":"{NO_SUM}"'.encode(), f'"sha256":"{checksum}"'.encode(), 1)
    return [length + signed, *parts], checksum


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


@contextlib.contextmanager
def readable(name: str) -> Iterator[None]:
    """Whatever goes wrong while a file's contents are made sense of is one kind of error, which names the file."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{name} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError, RuntimeError, ConfigError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise FileError(f"{name} cannot be used: {what[:300]}") from None


def read_file(path: Path, check: Check) -> Contents:
    """Read a file; `check` sees the description and the header before any memory is asked for, and raises if they make no sense."""
    with readable(str(path)), open_regular(path) as file:
        return read(file, str(path), check)


def read(file: BinaryIO, name: str, check: Check) -> Contents:
    """The same from an open file."""
    with readable(name):
        size = file.seek(0, os.SEEK_END)
        about, entries, checksum, start = _header(file, size)
        if checksum is not None and _sum(file, start, checksum) != checksum:
            raise FileError(f"{name} is damaged: its checksum does not fit its contents")
        check(about, entries)
        file.seek(start)
        return Contents(about, {key: _tensor(file, key, entry) for key, entry in entries.items()}, checksum)


def description(path: Path) -> tuple[About, str | None]:
    """What a file says of itself, and the checksum it claims, from its header alone: quick, and not verified."""
    with readable(str(path)), open_regular(path) as file:
        about, _, checksum, _ = _header(file, file.seek(0, os.SEEK_END))
        return about, checksum


def _header(file: BinaryIO, size: int) -> tuple[About, Entries, str | None, int]:
    """Description, tensors in the order of their places, checksum, and where the first tensor begins."""
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8:
        file.seek(0)
        if file.read(4) == b"PK\x03\x04":
            raise ValueError("it is a zip file, as torch.save and NumPy write them, no model of afaf")
        raise ValueError("it is cut short, or no safetensors file")
    if length > HEADER_LIMIT:
        raise ValueError(f"its header claims {length:,} bytes; no header of ours has more than {HEADER_LIMIT:,}")
    header = _json(file.read(length).decode())
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or "afaf" not in metadata:
        raise ValueError("it is a safetensors file of another program: it holds nothing of afaf")
    about = _json(metadata["afaf"])
    checksum = metadata.get("sha256")
    if checksum is not None and (not isinstance(checksum, str) or len(checksum) != 64 or not checksum.isalnum()):
        raise ValueError("its checksum is none")
    if checksum is None and about.get("format") != 1:
        raise ValueError("its checksum is missing")
    entries = dict(sorted(((name, _entry(name, told)) for name, told in header.items()), key=lambda item: item[1].begin))
    place = 0
    for name, entry in entries.items():
        if entry.begin != place:
            raise ValueError(f"tensor {name[:80]!r} overlaps another one, or leaves a gap")
        place = entry.end
    if place != size - 8 - length:
        raise ValueError(f"its tensors take {place:,} bytes, but it has {size - 8 - length:,} for them")
    return about, entries, checksum, 8 + length


def _entry(name: str, told: Any) -> Entry:
    dtype, shape, (begin, end) = DTYPES[told["dtype"]], told["shape"], told["data_offsets"]
    numbers = [*shape, begin, end]
    if not all(type(number) is int and 0 <= number < 1 << 48 for number in numbers) or len(shape) > DIMENSIONS:
        raise ValueError(f"tensor {name[:80]!r} has an impossible shape or place")
    bytes_needed = dtype.itemsize
    for extent in shape:
        bytes_needed *= extent
    if end - begin != bytes_needed:
        raise ValueError(f"tensor {name[:80]!r} has {end - begin:,} bytes; its shape needs {bytes_needed:,}")
    return Entry(dtype, tuple(shape), begin, end)


def _json(text: Any) -> dict[str, Any]:
    try:
        found = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise ValueError("its header is damaged") from None
    if not isinstance(found, dict):
        raise ValueError("its header is no table")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("its header names something twice")
    return table


def _no_constant(name: str) -> None:
    raise ValueError(f"its header holds {name}, which is no number")


def _sum(file: BinaryIO, start: int, claimed: str) -> str:
    """The checksum of an open file whose tensors begin at `start`, taken piece by piece."""
    file.seek(0)
    head = file.read(start)
    place = head.rfind(claimed.encode())
    digest = hashlib.sha256(head[:place] + NO_SUM.encode() + head[place + 64 :])
    while piece := file.read(1 << 20):
        digest.update(piece)
    return digest.hexdigest()


def _tensor(file: BinaryIO, name: str, entry: Entry) -> Tensor:
    tensor = torch.empty(entry.shape, dtype=torch.uint8 if entry.dtype == torch.bool else entry.dtype)
    if entry.end > entry.begin and file.readinto(_bytes(tensor)) != entry.end - entry.begin:  # type: ignore[attr-defined]
        raise ValueError(f"tensor {name[:80]!r} is cut short")
    if entry.dtype == torch.bool:
        if tensor.numel() and int(tensor.max()) > 1:
            raise ValueError(f"tensor {name[:80]!r} holds truth values that are neither true nor false")
        return tensor.bool()
    return tensor
