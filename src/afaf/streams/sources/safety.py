"""Read archives that may be malicious: everything is checked before use, and nothing is written outside the target folder."""

from __future__ import annotations

import gzip
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from afaf.errors import DataError
from afaf.files import open_regular
from afaf.streams.sources.source import reading

BLOCK = 64 * 1024
READ_AT_MOST = 1024 * 1024  # bytes per read; a malicious header asks for gigabytes


@dataclass(frozen=True)
class Limits:
    """The largest archive that is accepted: well above the published one, far below a decompression bomb."""

    members: int
    member: int  # bytes of one
    total: int  # bytes unpacked


def plain_members(path: Path, limits: Limits) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
    """Yield the files of a tar.gz; links, devices and paths outside the archive's folder are errors."""
    with reading(path), open_regular(path) as packed, gzip.GzipFile(fileobj=packed) as unzipped:
        forward = _Forward(unzipped, path, limits.total)
        with tarfile.open(fileobj=forward, mode="r:") as tar:  # type: ignore[call-overload]
            for number, member in enumerate(tar):
                if number >= limits.members:
                    raise DataError(f"{path}: more than {limits.members} files, not the published archive: replace it")
                _check_member(member, path, limits.member)
                if member.isfile():
                    yield member, tar


def member_blocks(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> Iterator[bytes]:
    """Yield the content of a file of the archive in blocks."""
    with reading(path):
        file = tar.extractfile(member)
        while file is not None and (block := file.read(BLOCK)):
            yield block


def _check_member(member: tarfile.TarInfo, path: Path, largest: int) -> None:
    """Refuse members that tarfile's data filter refuses or renames, and all that are neither regular file nor folder."""
    shown = member.name if len(member.name) < 100 else member.name[:97] + "..."
    try:
        accepted = tarfile.data_filter(member, os.fspath(path.parent)).name == member.name
    except (tarfile.FilterError, ValueError):
        accepted = False
    if not (accepted and (member.isdir() or (member.isfile() and not member.issparse()))):
        raise DataError(f"{path}: the member '{shown}' is a link, a device or outside the data folder: do not trust this archive")
    if not 0 <= member.size <= largest:
        raise DataError(f"{path}: the member '{shown}' promises {member.size} bytes, at most {largest} are expected: replace it")


class _Forward:
    """A forward-only reader of a decompressed archive, with a size limit.

    `tarfile` reads the size a header declares at once (which can fill the memory), follows offsets backwards (which can loop for ever),
    and seeks one byte back between members (which makes `gzip` restart from the beginning).
    """

    def __init__(self, file: gzip.GzipFile, path: Path, total: int):
        self._file, self._path, self._total = file, path, total
        self._position = 0
        self._last = b""  # the bytes just before the position, for seeking back a little
        self._pushed_back = b""  # bytes to read again

    def read(self, size: int) -> bytes:
        if not 0 <= size <= READ_AT_MOST:
            raise DataError(f"{self._path}: a header declares {size} bytes of names: do not trust this archive, replace it")
        content = self._pushed_back[:size]
        self._pushed_back = self._pushed_back[size:]
        if len(content) < size:
            content += self._file.read(size - len(content))
        self._position += len(content)
        if self._position > self._total:
            raise DataError(f"{self._path}: decompresses to more than {self._total} bytes, not the published archive: replace it")
        self._last = (self._last + content)[-tarfile.BLOCKSIZE :]
        return content

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> int:
        back = self._position - position
        if back > len(self._last):
            raise DataError(f"{self._path}: the archive refers back to itself: replace it")
        if back > 0:
            self._pushed_back = self._last[-back:] + self._pushed_back
            self._last = self._last[:-back]
            self._position = position
        while self._position < position and self.read(min(BLOCK, position - self._position)):
            pass
        return self._position
