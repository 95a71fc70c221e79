"""Errors for people: what was wrong, where, and what to do about it.

Every error a user can cause is an `AfafError`. The command line prints its message, without a traceback, and exits with its `exit_code`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

NEAR = 0.6  # similarity from which a name may have been meant
LONGEST_NAME = 80  # characters of an unknown name that are shown and compared


class AfafError(Exception):
    """An error that the user can correct; the message says how."""

    exit_code = 2


class ConfigError(AfafError):
    """A setting that does not exist, has the wrong type or is out of range."""


class DataError(AfafError):
    """Data that cannot be used as it is: missing, damaged, or of the wrong shape."""


class FileError(DataError):
    """A model or checkpoint file that cannot be used: damaged, cut short, made by another program or by a newer afaf."""


class CapacityError(AfafError):
    """The network has no room for another task of the requested size."""


class DeviceError(AfafError):
    """The requested device is not available."""


class RunError(AfafError):
    """A run folder that cannot be used, or a run that cannot continue."""


class WriteError(RunError):
    """Something could not be written, by any command: a full disk, no permission, a broken device. The previous file is unchanged."""

    exit_code = 1


class OverwriteError(AfafError):
    """An output would replace a file that this program has not written, or one that the same command reads."""


class LockedError(RunError):
    """Another process is writing to the run folder."""


class StoppedError(RunError):
    """A run was stopped by Ctrl-C or a signal, at the end of an epoch; everything is saved."""

    def __init__(self, message: str, exit_code: int = 130):
        super().__init__(message)
        self.exit_code = exit_code


class DivergedError(RunError):
    """The loss is no longer a finite number."""

    exit_code = 1


class UnfinishedLine(UserWarning):
    """A line of JSON that a killed process left unfinished."""


def unknown(kind: str, name: str, valid: Iterable[str]) -> str:
    """The message for a name that does not exist, with the nearest one that does."""
    valid = sorted(valid)
    by_last_word = {one.rpartition(".")[2]: one for one in valid}  # a common section does not make names similar
    near = difflib.get_close_matches(name.rpartition(".")[2][:LONGEST_NAME], by_last_word, n=1, cutoff=NEAR)
    hint = f"did you mean '{by_last_word[near[0]]}'?" if near else "valid ones: " + ", ".join(valid)
    shown = name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..."
    return f"unknown {kind} '{shown}': {hint}"
