"""The file format of models and checkpoints: safetensors, with a description and a checksum in its metadata.

`__metadata__.afaf` is the description, as JSON. Its `sha256` is the checksum of the whole file with these 64 digits set to 0; earlier
versions had it beside the description. Files are read, not mapped: if a mapped file is truncated meanwhile, the process crashes.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from afaf.errors import ConfigError, FileError
from afaf.files import open_regular

HEADER_LIMIT = 16 << 20  # bytes; ten thousand tensors need less than one million
NO_SUM = "0" * 64

About = dict[str, Any]
Tensors = Mapping[str, Tensor]
Check = Callable[[About, Tensors], None]


@dataclass(frozen=True)
class Contents:
    about: About
    tensors: Tensors  # in the order of the file


def encode(tensors: Tensors, about: Mapping[str, Any]) -> bytes:
    """The bytes of a file. The tensors are in host memory and contiguous."""
    # One entry of metadata: safetensors writes several in any order, and the same model should give the same bytes.
    data = save(dict(tensors), {"afaf": json.dumps({"sha256": NO_SUM, **about}, allow_nan=False)})
    checksum = hashlib.sha256(data).hexdigest()
    return data.replace(NO_SUM.encode(), checksum.encode(), 1)


@contextlib.contextmanager
def readable(name: str) -> Iterator[None]:
    """Turn any error while a file's contents are interpreted into a FileError that names the file."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{name} cannot be read: {error.strerror or error}") from None
    except (
        *(ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError, RuntimeError),
        *(ConfigError, SafetensorError),
    ) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise FileError(f"{name} cannot be used: {what[:300]}") from None


def read_file(path: Path, check: Check) -> Contents:
    """Read a file; `check` raises if description and tensors make no sense."""
    with readable(str(path)), open_regular(path) as file:
        _header(file)  # another program's file may be too large for memory
        file.seek(0)
        return read(file.read(), str(path), check)


def read(data: bytes, name: str, check: Check) -> Contents:
    """As `read_file`, from the bytes of a file."""
    with readable(name):
        about, checksum, names = _header(io.BytesIO(data))
        if checksum is not None and _sum(data, checksum) != checksum:
            raise FileError(f"{name} is damaged: its checksum does not fit its contents")
        tensors = load(data)
        for key, tensor in tensors.items():
            if tensor.dtype == torch.bool and tensor.numel() and int(tensor.view(torch.uint8).max()) > 1:
                raise ValueError(f"tensor {key[:80]!r} holds truth values that are neither true nor false")
        check(about, tensors)
        return Contents(about, {key: tensors[key] for key in names})


def description(path: Path) -> tuple[About, str | None]:
    """A file's description and stated checksum, from its header alone: quick, and not verified."""
    with readable(str(path)), open_regular(path) as file:
        return _header(file)[:2]


def _header(file: BinaryIO) -> tuple[About, str | None, list[str]]:
    """The description, the stated checksum, and the names of the tensors in order."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    start = file.read(8)
    if start.startswith(b"PK\x03\x04"):
        raise ValueError("it is a zip file, as torch.save and NumPy write them, not a model of afaf")
    length = int.from_bytes(start, "little")
    if size < 8 or length > min(size - 8, HEADER_LIMIT):
        raise ValueError("it is truncated, or not a safetensors file")
    header = _json(file.read(length))
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or "afaf" not in metadata:
        raise ValueError("it is a safetensors file of another program: it holds nothing of afaf")
    about = _json(metadata["afaf"])
    checksum = about.pop("sha256", metadata.get("sha256"))
    if (checksum is None and about.get("format") != 1) or (checksum is not None and not re.fullmatch("[0-9a-f]{64}", checksum)):
        raise ValueError("its checksum is missing")
    return about, checksum, list(header)


def _json(text: str | bytes) -> dict[str, Any]:
    try:
        table = json.loads(text, parse_constant=_no_constant)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise ValueError("its header is damaged") from None
    if not isinstance(table, dict):
        raise ValueError("its header is not a table")
    return table


def _no_constant(name: str) -> None:
    raise ValueError(f"its header holds {name}, which is not a number")


def _sum(data: bytes, stated: str) -> str:
    """The checksum of a file, with the digits of its stated checksum set to 0."""
    at, view = data.find(stated.encode()), memoryview(data)
    digest = hashlib.sha256(view[:at])
    digest.update(NO_SUM.encode())
    digest.update(view[at + len(NO_SUM) :])
    return digest.hexdigest()
