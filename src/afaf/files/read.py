"""Read regular files only, each up to a size, and through no link that leads out of a run folder."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

TEXT_LIMIT = 1 << 20  # bytes of a text that a person writes: settings, experiments, an order of classes
RECORD_LIMIT = 1 << 28  # bytes of a JSON file or a log that a run writes

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
}


def kind_of(mode: int) -> str:
    """Describe a file that is not a regular one."""
    return KINDS.get(stat.S_IFMT(mode), "a special file")


def open_regular(path: Path, within: Path | None = None) -> BufferedReader:
    """Open a regular file for reading; raise OSError for anything else, without waiting. `within`: a folder that links may not leave."""
    if within is not None and not path.resolve().is_relative_to(within.resolve()):
        raise OSError(errno.ELOOP, f"it is a link that leads out of {within}", str(path))
    _check_regular(path, os.stat(path).st_mode)  # first: opening a device can have effects
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    try:
        _check_regular(path, os.fstat(handle).st_mode)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _check_regular(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file", str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"it is {kind_of(mode)}, not a file", str(path))


def read_bytes(path: Path, limit: int, within: Path | None = None) -> bytes:
    """The contents of a regular file of at most `limit` bytes; raise OSError for anything else."""
    with open_regular(path, within) as file:
        data = file.read(min(limit, os.fstat(file.fileno()).st_size) + 1)  # a larger argument would allocate that much
        while len(data) <= limit and (more := file.read(1 << 16)):  # it has grown, or its size is not known
            data += more
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes, which no such file needs", str(path))
    return data


def read_text(path: Path, limit: int = TEXT_LIMIT, within: Path | None = None) -> str:
    """The same as UTF-8 text, with all line ends as \\n, without the byte-order mark that Excel and Windows editors put first."""
    return read_bytes(path, limit, within).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
