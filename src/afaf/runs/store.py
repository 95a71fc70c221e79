"""results/: what every run found, a line of JSON each, small enough for git. Tables and figures are made from it alone."""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from afaf.errors import DataError
from afaf.files import append_line, make_folders, sync, writing

Line = dict[str, Any]
Key = tuple[str, str, str, int]


def key_of(stream: str, method: str, settings: Mapping[str, Any], seed: int) -> Key:
    """What tells one run from another: stream, method, the settings that differ from the preset, seed."""
    return stream, method, json.dumps(settings, sort_keys=True), seed


class UnfinishedLine(UserWarning):
    """A line that a killed process left behind."""


class Store:
    """A folder of JSON lines. A later line of the same run takes the place of an earlier one."""

    def __init__(self, folder: Path):
        self.folder = folder

    def read(self) -> dict[Key, Line]:
        """Every run's line, from all files."""
        found = [line for path in sorted(self.folder.glob("*.jsonl")) for line in read_lines(path)]
        found.sort(key=lambda line: str(line.get("ended", "")))  # stable: lines of one file keep their order where no time is told
        return {key_of(line["stream"], line["method"], line["settings"], line["seed"]): line for line in found}

    def prepare(self) -> None:
        """Make the folder, before anything is computed that could not be kept."""
        advice = "choose another folder with --results"
        make_folders(self.folder, advice)
        with writing(self.folder, advice):
            if not os.access(self.folder, os.W_OK):
                raise PermissionError(errno.EACCES, "no permission")

    def append(self, name: str, line: Mapping[str, Any]) -> None:
        """Add one line to NAME.jsonl, and wait until it is on the disk."""
        make_folders(self.folder)
        path = self.folder / f"{name}.jsonl"
        append_line(path, json.dumps(line, allow_nan=False, separators=(",", ":")))
        with writing(path):
            sync(path)


def read_lines(path: Path) -> Iterable[Line]:
    """The lines of a file; one that a killed process left unfinished is passed over with a warning."""
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            warnings.warn(f"{path}, line {number}, is unfinished and was passed over", UnfinishedLine, stacklevel=2)
            continue
        missing = {"stream", "method", "settings", "seed"} - set(line) if isinstance(line, dict) else {"everything"}
        if missing:
            raise DataError(f"{path}, line {number}, is no result of a run: it lacks {', '.join(sorted(missing))}")
        yield line
