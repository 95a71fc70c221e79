"""One writer to a run folder. The lock is the kernel's: it ends with the process that holds it, however that dies."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from afaf.errors import LockedError, WriteError
from afaf.files import reason

try:
    import fcntl
except ImportError:  # no POSIX system: runs are not kept apart there
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"
ATTEMPTS = 6


class FolderLock:
    """Held from `take` to `release`. The file stays, for removing it would let two processes hold two files of one name."""

    def __init__(self, folder: Path):
        self.path = folder / NAME
        self._handle: int | None = None

    def take(self) -> None:
        """Take the lock, also one that a process left behind when it died; if another process holds it, say which."""
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        except OSError as error:
            raise WriteError(f"cannot use the run folder {self.path.parent}: {reason(error)}") from None
        try:
            _lock(handle)
            holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
            os.ftruncate(handle, 0)
            os.write(handle, json.dumps(holder).encode())
        except BlockingIOError:
            os.close(handle)
            raise LockedError(
                f"{self.path.parent} is in use by {holder_of(self.path.parent)}: wait for it to end, or choose another folder with --out"
            ) from None
        except OSError as error:
            os.close(handle)
            raise WriteError(f"cannot lock the run folder {self.path.parent}: {reason(error)}") from None
        self._handle = handle

    def release(self) -> None:
        if self._handle is not None:
            os.ftruncate(self._handle, 0)
            os.close(self._handle)  # which unlocks
            self._handle = None

    def __enter__(self) -> FolderLock:
        self.take()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def _lock(handle: int) -> None:
    """Whoever only looks whether a folder is locked (`is_locked`) is in the way for a moment: it is waited for."""
    for attempt in range(ATTEMPTS):
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if attempt == ATTEMPTS - 1:
                raise
            time.sleep(0.02)


def holder_of(folder: Path) -> str:
    """Who says that it holds the lock, in words."""
    try:
        about = json.loads((folder / NAME).read_text(encoding="utf-8"))
        return f"process {about['pid']} on {about['host']}, since {about['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def is_locked(folder: Path) -> bool:
    """Whether a living process holds the lock, as far as one may look; nothing is changed."""
    if fcntl is None or not (folder / NAME).exists():
        return False
    try:
        handle = os.open(folder / NAME, os.O_RDONLY)
    except OSError:  # another user's
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Only one process is within the block for files beside `path`; another waits. The folder itself is locked: no file is left behind.

    Where a folder cannot be locked (no POSIX system, some network disks), nobody waits.
    """
    handle = None
    try:
        if fcntl is not None:
            with contextlib.suppress(OSError):
                handle = os.open(path.resolve().parent, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        if handle is not None:
            os.close(handle)  # which unlocks
