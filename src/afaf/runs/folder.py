"""A run folder: config.json, log.jsonl, checkpoints, results.json, model.safetensors and two pictures. docs/runs.md describes them.

Files appear whole or not at all, and one process at a time writes them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from afaf.errors import RunError, UnfinishedLine
from afaf.files import append_line, is_part, make_folders, read_bytes, reason, remove_parts, sync, write_whole, writing
from afaf.files.lock import NAME as LOCK
from afaf.files.lock import FolderLock, in_use, is_locked
from afaf.files.read import RECORD_LIMIT
from afaf.runs.results import Results

CHECKPOINTS = "checkpoints"
TENSORBOARD = "tensorboard"
CHECKPOINT_NAME = re.compile(r"\d{6,}-task-\d+-(end|phase-\d+-epoch-\d+)\.safetensors")
FILES = ("config.json", "log.jsonl", "results.json", "model.safetensors", "ledger.png", "r-matrix.png", "report.html")
FORMAT = 1  # of config.json, results.json and the lines of log.jsonl
FREE = {"run.checkpoint", "run.chunk", "evaluate.batch_size"}  # settings that a resume may change: no result depends on them
MAY_CHANGE = {*FREE, "stream.order"}  # stream.order may be a file, which may be moved; data_digest depends on the order


class RunFolder:
    """The folder of one run, new or empty before the run. Use it in a `with` block, which locks it."""

    def __init__(self, path: Path):
        self.path, self.log_path = path, path / "log.jsonl"
        self._lock = FolderLock(path)

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """A new run folder; one that already holds a run, or anything else, is refused."""
        cls.refuse_taken(path)
        make_folders(path, "choose another with --out")
        folder = cls(path)
        folder._lock.take()
        try:
            cls.refuse_taken(path, locked=True)  # another process may have created it first
        except RunError:
            folder._lock.release()
            raise
        remove_parts(path)
        return folder

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """The folder of an interrupted or finished run."""
        if not (path / "config.json").exists():
            if any(path.glob("*/config.json")) or any(path.glob("*/*/config.json")):
                raise RunError(f"{path} holds several runs: the command that began them goes on with all; or resume one of them")
            raise RunError(f"{path} holds no run: there is no config.json in it; start one with afaf run STREAM METHOD --out {path}")
        check_links(path)
        about = read_json(path / "config.json")
        if not (isinstance(about.get("config"), dict) and {"format", "method", "stream", "seed"} <= set(about)):  # another program's file
            raise RunError(f"{path} holds no run: its config.json is not one of afaf; start a run in another folder with --out")
        folder = cls(path)
        folder._lock.take()
        remove_parts(path)
        return folder

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._lock.release()

    @staticmethod
    def refuse_taken(path: Path, *, locked: bool = False) -> None:
        """Raise RunError unless the folder is new or empty; a lock and temporary files of a killed start do not count."""
        if path.exists() and not path.is_dir():
            raise RunError(f"{path} is a file, not a folder: choose another place with --out")
        try:
            names = os.listdir(path) if path.exists() else []  # read once: another process may be starting there
        except OSError as error:
            raise RunError(f"cannot use the folder {path}: {reason(error)}; choose another with --out") from None
        if "config.json" in names:
            raise RunError(in_use(path) if not locked and is_locked(path) else _taken(path))
        others = sorted(name for name in names if name != LOCK and not is_part(name))
        if others:
            shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
            raise RunError(f"{path} is not empty ({shown}), and holds no run of afaf: choose a new or empty folder with --out")

    def write_json(self, name: str, data: dict[str, Any]) -> None:
        text = json.dumps({"format": FORMAT, **data}, indent=1, allow_nan=False) + "\n"
        write_whole(self.path / name, text.encode())

    def log(self, record: dict[str, Any]) -> None:
        """Append one line to log.jsonl, a JSON object."""
        append_line(self.log_path, json.dumps(record, allow_nan=False))

    def log_bytes(self) -> int:
        return self.log_path.lstat().st_size if self.log_path.exists() else 0

    def sync_log(self) -> None:
        """Flush the log to the disk, before a checkpoint that refers to its length."""
        with writing(self.log_path):
            if self.log_path.exists():
                sync(self.log_path)

    def cut_log(self, size: int) -> None:
        """Remove the lines after the first `size` bytes: those epochs will be learned again."""
        if self.log_bytes() > size:
            write_whole(self.log_path, _read(self.log_path)[:size])


def check_links(path: Path) -> None:
    """Refuse a run folder with a link out of it: nothing outside the folder is read or written."""
    home = path.resolve()
    for name in (LOCK, *FILES, CHECKPOINTS, TENSORBOARD):
        place = path / name
        if place.is_symlink() and not place.resolve().is_relative_to(home):
            raise RunError(f"{place} is a link that leads out of the run folder: replace it by what it leads to, or remove it")


def checkpoints_in(path: Path) -> list[Path]:
    """The checkpoints of a run folder, recognised by name, oldest first; other files are ignored."""
    folder = path / CHECKPOINTS
    try:
        names = [] if folder.is_symlink() else sorted(os.listdir(folder))
    except OSError:
        return []
    return [folder / name for name in names if CHECKPOINT_NAME.fullmatch(name) and not (folder / name).is_symlink()]


def _read(path: Path) -> bytes:
    """Read a file of a run folder; a link that leads out of it is refused."""
    try:
        return read_bytes(path, RECORD_LIMIT, path.parent)
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from None


def read_epochs(path: Path) -> dict[tuple[int, int, int], dict[str, Any]]:
    """The epochs of a log by (task, phase, epoch); the last line of an epoch counts."""
    epochs = {}
    try:
        for line in read_log(path) if path.exists() else ():
            if line.get("event") == "epoch":
                epochs[line["task"], line["phase"], line["epoch"]] = line
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise RunError(
            f"{path} is damaged: it has a line that no run writes ({error}); `afaf doctor {path.parent}` checks the run"
        ) from None
    return epochs


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log. An unfinished line is skipped if others follow; at the end it is an error."""
    texts = _read(path).decode().splitlines()
    for number, text in enumerate(texts, 1):
        try:
            line = json.loads(text)
        except RecursionError:
            raise ValueError(f"line {number} is nested too deeply") from None
        except json.JSONDecodeError:
            if number == len(texts):
                raise
            warnings.warn(f"{path}, line {number}, is unfinished and was skipped", UnfinishedLine, stacklevel=2)
            continue
        yield line


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file of a run folder; RunError if it is damaged or of a newer format."""
    try:
        data = json.loads(_read(path))
    except (ValueError, RecursionError):
        raise _damaged(path, "it is not JSON in UTF-8") from None
    if not isinstance(data, dict):
        raise _damaged(path, "it holds no table")
    if isinstance(data.get("format"), int) and data["format"] > FORMAT:
        raise RunError(f"{path} was written by a newer afaf (format {data['format']}): update afaf to read it")
    return data


def read_results(folder: Path) -> Results:
    """The results of a finished run; RunError if they are damaged, impossible or of a newer format."""
    path = folder / "results.json"
    table = read_json(path)
    try:
        return Results.from_dict(table)
    except RunError as error:
        raise _damaged(path, str(error)) from None


def _damaged(path: Path, why: str) -> RunError:
    return RunError(f"{path} is damaged: {why}; `afaf doctor {path.parent}` says what can be recovered")


def began_with(about: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of config.json that results depend on, by name; checkpoints store them. Device, versions and paths may change."""
    entries = flat({name: about[name] for name in ("method", "seed", "data_digest", "config") if name in about})
    return {short: value for name, value in entries.items() if (short := name.removeprefix("config.")) not in MAY_CHANGE}


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables into one, with names such as `learn.lr`."""
    entries: dict[str, Any] = {}
    for name, value in table.items():
        entries |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return entries


def resume_command(path: Path) -> str:
    return f"afaf run --resume {shlex.quote(str(path))}"


def report_command(path: Path) -> str:
    return f"afaf report {shlex.quote(str(path))}"


def _taken(path: Path) -> str:
    """The message for a folder that already holds a run."""
    if (path / "results.json").exists():
        return f"{path} already holds a finished run: choose another folder with --out, or remove that one"
    advice = f"go on with it with `{resume_command(path)}`, or choose another folder with --out"
    saved = checkpoints_in(path)
    newest = f"newest checkpoint {saved[-1].stem}" if saved else "before its first checkpoint"
    return f"{path} already holds a run that was interrupted ({newest}): {advice}"
