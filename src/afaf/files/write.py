"""Write files: each appears whole or not at all, and replaces only files of this program.

A file is filled under a temporary name, flushed to the disk, then renamed. `write_output` is for the files that a user names: it replaces
only outputs of this program (`marks.py`), never a file that the same command reads, and writes *to* a device or a pipe. Temporary files
are locked while they are written, so that the next writer recognises and removes those of a dead process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from filelock import lock_descriptor

from afaf.errors import OverwriteError, WriteError
from afaf.files.marks import Format, is_ours
from afaf.files.read import kind_of

PART = re.compile(r"\.afaf-part-[0-9a-f]{8}(\.\w{1,16})?")  # names of files that are being written
A_DAY = 86400.0
CAN_HOLD = os.name == "posix"  # elsewhere an open file can be neither renamed nor removed

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_NO_PERMISSION = {errno.EACCES, errno.EPERM, errno.EROFS}
REFUSED = _NO_ROOM | _NO_PERMISSION  # errors of a disk that refuses a write, not of a network
_BINARY = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_AT_ONCE = getattr(os, "O_NONBLOCK", 0)

Write = Callable[[Path], None] | bytes  # a function that fills the file of this name, or its contents


# Whole files.


def write_whole(path: Path, write: Write) -> None:
    """Fill a temporary file beside `path`, then put it in place: a reader never sees half a file, nor does a power cut leave one.

    Only a regular file is replaced: a link, a folder or a device at `path` is an error.
    """
    with writing(path), _part_beside(path) as part:
        fill(part, write)
        sync(part)
        check_replaceable(path)
        os.replace(part, path)
        sync(path.parent)  # the new name is on the disk too


def check_replaceable(path: Path) -> None:
    """Raise OSError if anything but a regular file is at `path`."""
    with contextlib.suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EEXIST, f"{kind_of(mode)} is in its place and is not replaced; remove it or choose another place")


@contextlib.contextmanager
def _part_beside(path: Path) -> Iterator[Path]:
    """A new, empty file, locked; removed at the end unless it was renamed."""
    while True:
        suffix = path.suffix if re.fullmatch(r"\.\w{1,16}", path.suffix) else ""
        part = path.with_name(f".afaf-part-{secrets.token_hex(4)}{suffix}")
        handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINK | _BINARY, 0o666)
        if not CAN_HOLD:
            os.close(handle)
            break
        if _locked(handle) and os.fstat(handle).st_nlink:  # else another process took it for a dead writer's before it was locked
            break
        os.close(handle)
    try:
        yield part
    finally:
        if CAN_HOLD:
            os.close(handle)
        with contextlib.suppress(OSError):
            part.unlink()


def _locked(handle: int) -> bool:
    """Lock a temporary file. Some network disks have no locks; temporary files there are never removed by others."""
    try:
        return lock_descriptor(handle, blocking=False)
    except OSError:
        return True


def is_part(name: str) -> bool:
    """Whether this is the name of a temporary file, of a living writer or a dead one."""
    return PART.fullmatch(name) is not None


def remove_parts(folder: Path) -> None:
    """Remove the temporary files of dead writers: those that are not locked."""
    with contextlib.suppress(OSError):
        for name in filter(is_part, os.listdir(folder)):
            with contextlib.suppress(OSError):
                _remove_if_dead(folder / name)


def _remove_if_dead(path: Path) -> None:
    if not CAN_HOLD:
        if time.time() - path.stat().st_mtime > A_DAY:
            path.unlink()
        return
    with opened(path, os.O_RDWR | _NO_LINK | _AT_ONCE | _BINARY) as handle:
        if stat.S_ISREG(os.fstat(handle).st_mode) and lock_descriptor(handle, blocking=False):
            path.unlink()


# Files that a user names.


def check_output(path: Path, kind: Format, inputs: Sequence[Path] = (), *, force: bool = False) -> None:
    """Check that a command may write its output there, before anything is computed. Nothing is written.

    `inputs` are the files, or folders of files, that the command reads. `force`: any other file may be replaced.
    """
    if any(_is_of(path, given) for given in inputs):
        raise OverwriteError(f"{path} is among the files that this command reads: name another file to write to")
    with writing(path):
        try:
            mode = os.stat(path).st_mode
        except FileNotFoundError:
            return
        if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):  # it is written to, not replaced
            return
        if not stat.S_ISREG(mode):
            raise OSError(errno.EEXIST, f"it is {kind_of(mode)}; name a file to write to")
        if not force and not is_ours(path, kind):
            raise OverwriteError(
                f"{path} exists and was not written by this command: give --force to replace it, move it, or name another file"
            )


def _is_of(path: Path, given: Path) -> bool:
    try:
        if given.is_dir():
            return path.resolve().is_relative_to(given.resolve())
        return os.path.samefile(path, given)
    except OSError:
        return False


def write_output(path: Path, kind: Format, write: Write, inputs: Sequence[Path] = (), *, force: bool = False) -> None:
    """Write a file that a user named, if `check_output` allows it. A link is followed, and stays a link."""
    check_output(path, kind, inputs, force=force)
    if path.exists() and not path.is_file():
        _write_to(path, write)
        return
    target = path.resolve()
    make_folders(target.parent, "choose another place")
    remove_parts(target.parent)

    def checked(part: Path) -> None:
        fill(part, write)
        check_output(path, kind, inputs, force=force)  # another program may have put something there meanwhile

    write_whole(target, checked)


def _write_to(path: Path, write: Write) -> None:
    """Write to a device, or to a pipe with a reader."""
    with tempfile.TemporaryDirectory() as place, writing(path):
        made = Path(place) / f"output{path.suffix}"
        fill(made, write)
        try:
            with opened(path, os.O_WRONLY | _AT_ONCE | getattr(os, "O_NOCTTY", 0) | _BINARY) as handle:
                os.set_blocking(handle, True)
                _write_all(handle, made.read_bytes())
        except OSError as error:
            if error.errno == errno.ENXIO:
                raise OSError(errno.ENXIO, "no process reads from this pipe") from error
            raise


# Parts of files.


def fill(path: Path, write: Write) -> None:
    """Write the contents of a new file."""
    if callable(write):
        write(path)
        return
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NO_LINK | _BINARY) as handle:
        _write_all(handle, write)


def append_line(path: Path, line: str) -> None:
    """Append a line, in one write unless the disk takes less. After an unfinished line, begin a new one."""
    with writing(path), opened(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | _NO_LINK | _AT_ONCE | _BINARY) as handle:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, f"it is {kind_of(mode)}, not a file")
        _write_all(handle, (("\n" if _ends_within_line(handle) else "") + line + "\n").encode())


def _ends_within_line(handle: int) -> bool:
    """Whether the last line has no line break: its writer was killed, or the disk was full."""
    if os.fstat(handle).st_size == 0:
        return False
    os.lseek(handle, -1, os.SEEK_END)
    return os.read(handle, 1) != b"\n"


def _write_all(handle: int, data: bytes) -> None:
    """Write all bytes. A disk may take fewer at a time; the next write then raises the reason."""
    rest = memoryview(data)
    while len(rest):
        rest = rest[os.write(handle, rest) :]


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if os.name != "posix" and path.is_dir():  # elsewhere a folder cannot be opened
        return
    with opened(path, os.O_RDONLY | _AT_ONCE) as handle:
        os.fsync(handle)


@contextlib.contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """A file descriptor, closed at the end of the block."""
    handle = os.open(path, flags, 0o666)
    try:
        yield handle
    finally:
        os.close(handle)


# Folders and errors.


def make_folder(path: Path) -> None:
    """Make a folder and sync its name to the disk; a link in its place is an error."""
    with writing(path):
        if path.is_symlink():
            raise OSError(errno.EEXIST, "a link is in its place and is not followed; remove it or choose another place")
        path.mkdir(exist_ok=True)
        sync(path.parent)


def make_folders(path: Path, advice: str = "") -> None:
    """Make a folder and those above it, unless they exist; `advice` says where else to write."""
    with writing(path, advice):
        path.mkdir(parents=True, exist_ok=True)
        sync(path.parent)


@contextlib.contextmanager
def writing(path: Path, advice: str = "") -> Iterator[None]:
    """Turn an OSError of the block into a WriteError about `path`, so that all commands end with the same exit code."""
    try:
        yield
    except OSError as error:
        raise WriteError(f"cannot write {path}: {reason(error)}{advice and '; ' + advice}") from error


def reason(error: OSError) -> str:
    """Say why a file cannot be used, and what to do."""
    if error.errno in _NO_ROOM:
        return "the disk is full; free some space"
    if error.errno in _NO_PERMISSION:
        return "no permission; change the folder's permissions or choose another one"
    return error.strerror or str(error)
