"""The results folder: one line of JSON a run. Tables and figures are made from it alone."""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, make_dataclass
from pathlib import Path
from typing import Any

from afaf.bounds import Finite, Whole
from afaf.checked import build
from afaf.errors import ConfigError, DataError, UnfinishedLine
from afaf.files import append_line, make_folders, read_bytes, sync, writing
from afaf.files.read import RECORD_LIMIT
from afaf.runs.config import merge
from afaf.runs.results import Results

Line = dict[str, Any]
Key = tuple[str, str, str, int]
DEPTH = 3  # parts of a setting's name: section, key, and the entry of a table such as sparse.density
EXACT = 2.0**53  # below it, a float holds every whole number exactly


WORDS = ("failed", "kind", "network", "device", "engine", "precision", "ended", "commit", "afaf", "torch", "python")
METRICS = ("acc", "bwt", "la", "acc_task_il", "acc_task_il_unmasked", "task_id_accuracy", "forward_transfer")
REQUIRED: dict[str, Any] = {"stream": str, "method": str, "settings": dict[str, Any], "seed": Whole}
OPTIONAL: dict[str, Any] = {
    **dict.fromkeys(WORDS, str),
    **dict.fromkeys(METRICS, Finite | None),
    **dict.fromkeys(("R", "R_task_il", "R_task_il_unmasked"), list[list[Finite | None]]),
    **dict.fromkeys(("params", "dense_params", "width", "shared_tasks", "jobs_at_once"), Whole),
    "task_id": list[Finite | None],
    "confusion": list[list[Whole]],
    "warnings": list[str],
    "kept": dict[str, Any],
    "costs": dict[str, Any] | None,
    "seconds": Finite,
}
LineFields = make_dataclass("LineFields", [*REQUIRED.items(), *((name, kind, field(default=None)) for name, kind in OPTIONAL.items())])


def check_line(line: Any) -> None:
    """Raise ConfigError if this is not a line of results. Further fields are ignored."""
    known = REQUIRED.keys() | OPTIONAL.keys()
    build(LineFields, {name: value for name, value in line.items() if name in known} if isinstance(line, dict) else line)


def key_of(stream: str, method: str, settings: Mapping[str, Any], seed: int) -> Key:
    """The key of a run: stream, method, the settings that differ from the preset, seed."""
    return stream, method, json.dumps(settings, sort_keys=True), seed


def canonical(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in their stored form, sorted: tables as `section.key` or `section.key.entry`, and 1.0 as 1."""
    kept: dict[str, Any] = {}
    for name, value in settings.items():
        for key, one in _spread(name.split("."), value):
            kept = merge(kept, {key: one})
    return {name: _plain(kept[name]) for name in sorted(kept)}


def _spread(parts: list[str], value: Any) -> Iterator[tuple[str, Any]]:
    """A table as settings with names of at most three parts; deeper tables stay tables."""
    if isinstance(value, Mapping) and value and len(parts) < DEPTH and not any("." in name for name in value):
        for name, one in value.items():
            yield from _spread([*parts, name], one)
        return
    for part in reversed(parts[DEPTH:]):
        value = {part: value}
    yield ".".join(parts[:DEPTH]), value


def _plain(value: Any) -> Any:
    """A value as JSON stores it, with whole numbers as ints."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < EXACT else value


def numbers_of(results: Results) -> Line:
    """The accuracies, metrics and sizes of a run as a line stores them."""
    metrics = {name: _rounded(value) for name, value in results.metrics().items()}
    line: Line = {
        **{name: metrics[name] for name in ("acc", "bwt", "la", "acc_task_il", "task_id_accuracy", "forward_transfer")},
        "R": [[_rounded(value) for value in row] for row in results.R],
        "R_task_il": [[_rounded(value) for value in row] for row in results.R_task_il],
        "task_id": [_rounded(value) for value in results.task_id],
        "confusion": results.confusion,
        "params": results.params,
        "dense_params": results.dense_params,
    }
    if results.R_task_il_unmasked is not None:
        line["acc_task_il_unmasked"] = metrics["acc_task_il_unmasked"]
        line["R_task_il_unmasked"] = [[_rounded(value) for value in row] for row in results.R_task_il_unmasked]
    return line | ({"warnings": results.warnings} if results.warnings else {})


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


class Store:
    """A folder of JSON lines. A later line of the same run replaces an earlier one."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._parsed: dict[bytes, Line] = {}  # lines already read: of thousands, few are new

    def read(self) -> dict[Key, Line]:
        """The newest line of every run, from all files."""
        lines = [line for path in sorted(self.folder.glob("*.jsonl")) for line in read_lines(path, self._parsed)]
        lines.sort(key=lambda line: str(line.get("ended", "")))  # stable: lines of one file without a time keep their order
        return {key_of(line["stream"], line["method"], line["settings"], line["seed"]): line for line in lines}

    def prepare(self, names: Iterable[str] | None = None) -> None:
        """Make the folder and raise WriteError unless it and the files of these names (default: all) can be written."""
        advice = "choose another folder with --results"
        make_folders(self.folder, advice)
        files = self.folder.glob("*.jsonl") if names is None else (self.folder / f"{name}.jsonl" for name in names)
        for path in (self.folder, *sorted(file for file in files if file.exists())):
            with writing(path, advice):
                if not os.access(path, os.W_OK):
                    raise PermissionError(errno.EACCES, "no permission")

    def append(self, name: str, line: Mapping[str, Any]) -> None:
        """Add one line to NAME.jsonl, and wait until it is on the disk."""
        make_folders(self.folder)
        path = self.folder / f"{name}.jsonl"
        append_line(path, json.dumps(line, allow_nan=False, separators=(",", ":")))
        with writing(path):
            sync(path)


def read_lines(path: Path, parsed: dict[bytes, Line] | None = None) -> Iterable[Line]:
    """The lines of a file. A line that a killed process left unfinished is skipped with a warning; a damaged one is an error.

    Lines in `parsed` are taken from there, and the others are added.
    """
    parsed = {} if parsed is None else parsed
    try:
        texts = read_bytes(path, RECORD_LIMIT).splitlines()
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}; {path.parent} must hold readable results: repair or move the file"
        ) from None
    for number, text in enumerate(texts, 1):
        if text in parsed:
            yield parsed[text]
        if text in parsed or not text.strip():
            continue
        try:
            line = json.loads(text.decode("utf-8"))
            check_line(line)
        except json.JSONDecodeError:
            warnings.warn(f"{path}, line {number}, is unfinished and was skipped", UnfinishedLine, stacklevel=2)
            continue
        except (ConfigError, ValueError, RecursionError) as error:  # also text that is not UTF-8, too long numbers, too deep nesting
            raise DataError(
                f"{path}, line {number}, is no result of a run: {error}; repair the line, or remove it and repeat its run"
            ) from None
        parsed[text] = {**line, "settings": canonical(line["settings"])}
        yield parsed[text]
