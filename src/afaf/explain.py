"""Errors of Python, PyTorch and the system as messages for people, for the command line and the estimator."""

from __future__ import annotations

import errno
import re

from afaf.errors import AfafError, ConfigError, DataError, DeviceError, WriteError
from afaf.files import reason
from afaf.text import printable_name

_NOT_WRITTEN = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG}
_ALLOCATION = re.compile(r"out of memory|not enough memory|can't allocate memory|cannot allocate memory|invalid buffer size", re.IGNORECASE)
_LIMITS = re.compile(r"integer string conversion|null (byte|character)")  # input that Python refuses: long numbers, "\0" in paths


def explained(error: BaseException) -> AfafError | None:
    """Convert an error to one that says what to do; None if it must be a bug in this program."""
    if isinstance(error, AfafError):
        return error
    if is_out_of_memory(error):
        return DeviceError(f"there is not enough memory for this ({printable_name(error)}): use smaller data, batches or a smaller network")
    if isinstance(error, OSError):
        kind = WriteError if error.errno in _NOT_WRITTEN else DataError
        return kind(reason(error) if error.filename is None else f"cannot use {_name(error.filename)}: {reason(error)}")
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):  # from Path.resolve before Python 3.13
        return DataError(f"a path leads in a circle: {printable_name(error)}")
    if isinstance(error, RecursionError):
        return DataError("something that was read is nested too deeply")
    if isinstance(error, OverflowError):
        return ConfigError(f"a number that was given is too large: {error}")
    if isinstance(error, UnicodeError):
        return DataError(f"a text that was read or given cannot be used: {error}")
    if isinstance(error, ValueError) and _LIMITS.search(str(error)):
        return ConfigError(f"a value that was given cannot be used: {error}")
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether host or device memory could not be allocated; PyTorch reports this as a RuntimeError."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _ALLOCATION.search(str(error)) is not None)


def _name(path: object) -> str:
    """A path for a message; names of thousands of letters are shortened."""
    text = printable_name(path.decode(errors="surrogateescape") if isinstance(path, bytes) else path)
    return text if len(text) <= 400 else f"{text[:150]}...{text[-150:]}"
