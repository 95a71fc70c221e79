"""Files that appear whole or not at all: filled under a temporary name, brought to the disk, then renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from afaf.errors import WriteError

PART = ".part"  # in the names of files that are still being written; whoever finds one without a writer may remove it
SMALL = 1 << 16  # bytes up to which a part is not worth a write of its own

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_NO_PERMISSION = {errno.EACCES, errno.EPERM, errno.EROFS}
REFUSED = _NO_ROOM | _NO_PERMISSION  # errors with which a disk, and no network, refuses what is written


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file beside `path`, then put it in place: a reader never sees half a file, nor does a power cut."""
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{PART}{path.suffix}")
    try:
        write(temporary)
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)  # the new name is on the disk too
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        with writing(path):
            raise


def fill(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write the parts one after the other into a new file; small ones together."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o644)
    try:
        for part in _joined(parts):
            _write_all(handle, part)
    finally:
        os.close(handle)


def append_line(path: Path, line: str) -> None:
    """Add a line to a file, in one write unless the disk takes less; after a line that was left unfinished it starts one of its own."""
    with writing(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o644)
        try:
            _write_all(handle, (("\n" if _ends_within_line(handle) else "") + line + "\n").encode())
        finally:
            os.close(handle)


def _ends_within_line(handle: int) -> bool:
    """Whether the last line lacks its end: a process was killed, or a disk was full, while it was written."""
    if os.fstat(handle).st_size == 0:
        return False
    os.lseek(handle, -1, os.SEEK_END)
    return os.read(handle, 1) != b"\n"


def _write_all(handle: int, data: bytes | memoryview) -> None:
    """A disk may take less than it was given; what it refuses is asked for again, so that the reason comes out as an error."""
    rest = memoryview(data)
    while len(rest):
        rest = rest[os.write(handle, rest) :]


def _joined(parts: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Neighbouring small parts made one, large ones as they are."""
    small: list[bytes | memoryview] = []
    for part in parts:
        if len(part) < SMALL:
            small.append(part)
            continue
        yield b"".join(small)
        small = []
        yield part
    yield b"".join(small)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if os.name != "posix" and path.is_dir():  # elsewhere a folder cannot be opened
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Make a folder, and its name last."""
    with writing(path):
        path.mkdir(exist_ok=True)
        sync(path.parent)


def make_folders(path: Path, advice: str = "") -> None:
    """Make a folder and those above it, unless they are there; `advice` says where else to write."""
    with writing(path, advice):
        path.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def writing(path: Path, advice: str = "") -> Iterator[None]:
    """What fails in the block failed to write `path`: one kind of error, and so one exit code, whichever command it was."""
    try:
        yield
    except OSError as error:
        raise WriteError(f"cannot write {path}: {reason(error)}{advice and '; ' + advice}") from error


def remove_parts(folder: Path) -> None:
    """Remove what writers that died left behind; only for whoever holds the folder's lock."""
    for path in folder.glob(f".*{PART}*"):
        with contextlib.suppress(OSError):
            path.unlink()


def reason(error: OSError) -> str:
    """What went wrong with a file, and what to do about it."""
    if error.errno in _NO_ROOM:
        return "the disk is full; free some space"
    if error.errno in _NO_PERMISSION:
        return "no permission; change the folder's permissions or choose another one"
    return error.strerror or str(error)
