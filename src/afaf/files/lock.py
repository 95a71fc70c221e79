"""Locks that give a folder one writer; the system's (filelock), they end with the process that holds them, however it dies."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from filelock import lock_descriptor

from afaf.errors import LockedError, RunError, WriteError
from afaf.files.write import opened, reason

NAME = ".lock"
ATTEMPTS = 6
HOLDER_BYTES = 4096  # far more than the holder's name and number take
_SAFE = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)


class FolderLock:
    """Held from `take` to `release`, which leaves the file, or to `remove`.

    A file may be removed only by the process that holds it, and one that locks a file looks whether it is still the one of that name:
    otherwise two processes could hold two files of one name.
    """

    def __init__(self, folder: Path):
        self.path = folder / NAME
        self._handle: int | None = None

    def take(self) -> None:
        """Take the lock, also one that a dead process left behind; if another process holds it, the error names that process."""
        for _ in range(ATTEMPTS):
            if self._take():
                return
        raise LockedError(in_use(self.path.parent))

    def _take(self) -> bool:
        """False: the file was removed by its holder while this process waited for it."""
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | _SAFE, 0o666)
        except OSError as error:
            words = "its .lock is a link, which is not followed" if error.errno == errno.ELOOP else reason(error)
            raise WriteError(f"cannot use the folder {self.path.parent}: {words}") from None
        try:
            if not is_lock(handle):
                raise RunError(f"{self.path} is not a lock of afaf: move it away, or choose another folder")
            if not _lock(handle):
                raise LockedError(in_use(self.path.parent))
            if not _is_at(handle, self.path):
                os.close(handle)
                return False
            holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
            os.ftruncate(handle, 0)
            os.lseek(handle, 0, os.SEEK_SET)
            os.write(handle, json.dumps(holder).encode())
        except BaseException as error:
            os.close(handle)
            if isinstance(error, OSError):
                raise WriteError(f"cannot lock the folder {self.path.parent}: {reason(error)}") from None
            raise
        self._handle = handle
        return True

    def release(self) -> None:
        if self._handle is not None:
            os.ftruncate(self._handle, 0)
            os.close(self._handle)  # which unlocks
            self._handle = None

    def remove(self) -> None:
        """Release the lock, and remove its file: while it is held, because afterwards it may be another's."""
        if self._handle is None:
            return
        with contextlib.suppress(OSError):
            if os.name == "posix" and _is_at(self._handle, self.path):
                self.path.unlink()
        self.release()
        with contextlib.suppress(OSError):
            if os.name != "posix":  # Windows removes no open file, neither this process's nor that of the next one
                self.path.unlink()

    def __enter__(self) -> FolderLock:
        self.take()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def is_lock(handle: int) -> bool:
    """Whether an open file is a lock of afaf, held or left behind: empty, or with the name of its holder."""
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_size > HOLDER_BYTES:
        return False
    os.lseek(handle, 0, os.SEEK_SET)
    text = os.read(handle, HOLDER_BYTES)
    return not text or text.startswith(b'{"pid": ')


def _is_at(handle: int, path: Path) -> bool:
    """Whether an open file is still the one of this name."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def _lock(handle: int) -> bool:
    """Try several times: another process may hold the lock for a moment to test it (`is_locked`)."""
    for _ in range(ATTEMPTS):
        if lock_descriptor(handle, blocking=False):
            return True
        time.sleep(0.02)
    return False


def holder_of(folder: Path) -> str:
    """Describe the process that holds the lock, as its file states."""
    try:
        with opened(folder / NAME, os.O_RDONLY | _SAFE) as handle:
            about = json.loads(os.read(handle, HOLDER_BYTES))
        return f"process {about['pid']} on {about['host']}, since {about['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def in_use(folder: Path) -> str:
    return f"{folder} is in use by {holder_of(folder)}: wait for it to end, or choose another folder with --out"


def is_locked(folder: Path) -> bool:
    """Whether a living process holds the lock; False if the file may not be read. Nothing is changed."""
    try:
        with opened(folder / NAME, os.O_RDONLY | _SAFE) as handle:
            return is_lock(handle) and not lock_descriptor(handle, blocking=False)
    except OSError:  # no lock, or another user's
        return False


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Let one process at a time into the block, for files beside `path`. The folder itself is locked: no file is left behind.

    Folders that cannot be locked (Windows, some network disks) are not protected.
    """
    with contextlib.ExitStack() as held:  # its end closes the folder, which unlocks it
        with contextlib.suppress(OSError):
            lock_descriptor(held.enter_context(opened(path.resolve().parent, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))))
        yield
