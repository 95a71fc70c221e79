"""Reading archives that may mean harm: nothing is believed before it is checked, and nothing leaves the folder it is put in."""

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
READ_AT_MOST = 1024 * 1024  # bytes in one piece; a hostile header asks for gigabytes


@dataclass(frozen=True)
class Limits:
    """How large an archive may be before it is refused; well above the published one, far below a bomb."""

    members: int
    member: int  # bytes of one
    total: int  # bytes unpacked


def plain_members(path: Path, limits: Limits) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
    """The files of a tar.gz, one after another; a member that is not a plain file inside the archive's folder is an error."""
    with reading(path), open_regular(path) as packed, gzip.GzipFile(fileobj=packed) as unzipped:
        forward = _Forward(unzipped, path, limits.total)
        with tarfile.open(fileobj=forward, mode="r:") as tar:  # type: ignore[call-overload]
            for number, member in enumerate(tar):
                if number >= limits.members:
                    raise DataError(f"{path}: more than {limits.members} files, not the published archive: replace it")
                _check_member(member, path, limits.member)
                if member.isfile():
                    yield member, tar


def read_member(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> bytes:
    """What is in a small file of the archive."""
    return b"".join(member_blocks(tar, member, path))


def member_blocks(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> Iterator[bytes]:
    """What is in a file of the archive, piece by piece."""
    with reading(path):
        file = tar.extractfile(member)
        while file is not None and (block := file.read(BLOCK)):
            yield block


def _check_member(member: tarfile.TarInfo, path: Path, largest: int) -> None:
    """Refuse what tarfile's own filter for data refuses or would rename, and all that is no plain file."""
    shown = member.name if len(member.name) < 100 else member.name[:97] + "..."
    try:
        outside = tarfile.data_filter(member, os.fspath(path.parent)).name != member.name
    except (tarfile.FilterError, ValueError):
        outside = True
    if outside:
        raise DataError(f"{path}: the member '{shown}' is a link, a device or outside the data folder: do not trust this archive")
    if not (member.isdir() or (member.isfile() and not member.issparse())):
        raise DataError(f"{path}: the member '{shown}' is a link or device, not a plain file: do not trust this archive")
    if not 0 <= member.size <= largest:
        raise DataError(f"{path}: the member '{shown}' promises {member.size} bytes, at most {largest} are expected: replace it")


class _Forward:
    """An unzipped archive that is read forward, in pieces, and ends at a limit.

    `tarfile` reads what a header promises in one piece, follows offsets that lead backwards, and steps one byte back between
    members: the first fills the memory, the second never ends, and the third makes `gzip` start again from the beginning.
    """

    def __init__(self, file: gzip.GzipFile, path: Path, total: int):
        self._file, self._path, self._total = file, path, total
        self._position = 0
        self._last = b""  # the bytes just before the position, for the small step back
        self._again = b""  # bytes stepped back over

    def read(self, size: int) -> bytes:
        if not 0 <= size <= READ_AT_MOST:
            raise DataError(f"{self._path}: a header promises {size} bytes of names, not an archive to trust: replace it")
        content = self._again[:size]
        self._again = self._again[size:]
        if len(content) < size:
            content += self._file.read(size - len(content))
        self._position += len(content)
        if self._position > self._total:
            raise DataError(f"{self._path}: unpacks to more than {self._total} bytes, not the published archive: replace it")
        self._last = (self._last + content)[-tarfile.BLOCKSIZE :]
        return content

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> int:
        back = self._position - position
        if back > len(self._last):
            raise DataError(f"{self._path}: the archive leads back into itself: replace it")
        if back > 0:
            self._again = self._last[-back:] + self._again
            self._last = self._last[:-back]
            self._position = position
        while self._position < position and self.read(min(BLOCK, position - self._position)):
            pass
        return self._position
