"""Checkpoints: when one is written, which are kept, and which one a run continues from.

A checkpoint is the whole learner, copied to host memory at once; a background thread hashes and writes it and removes old ones. The two
newest stay.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from afaf import checked
from afaf.bounds import Whole
from afaf.errors import FileError, RunError
from afaf.files import make_folder, remove_parts, write_whole
from afaf.files.marks import is_ours
from afaf.runs.folder import CHECKPOINTS, RunFolder, began_with, checkpoints_in, read_json
from afaf.runs.progress import Position, RunProgress
from afaf.storage import container
from afaf.storage.container import About, Tensors, readable
from afaf.storage.description import Description, check_tensors, describe
from afaf.storage.model_file import check_format
from afaf.storage.state import build, stored_tensors, training_tensors
from afaf.training.learner import Learner
from afaf.version import __version__

FORMAT = 4  # 1: within a task, only the changes since it began; 2: sources and targets of every task; 3: all owners
KEPT = 2


@dataclass(frozen=True)
class Restored:
    """The contents of a checkpoint."""

    learner: Learner
    position: Position
    progress: RunProgress
    log_bytes: int


class Checkpoints:
    """The checkpoints of one run folder."""

    def __init__(self, folder: RunFolder, every: float | None):
        self.folder, self.every = folder, every
        self.path = folder.path / CHECKPOINTS
        self._began_with = began_with(read_json(folder.path / "config.json"))  # read now: the file may be edited during the run
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None
        self._good: list[Path] = []  # oldest first
        self._unusable: list[Path] = []  # checkpoints of this run that a resume skipped
        self._number = 0
        self._last = self._epoch_began = time.monotonic()

    @property
    def newest(self) -> Path | None:
        return self._good[-1] if self._good else None

    def due(self) -> bool:
        """Whether to checkpoint at the end of this epoch, because the next one would end too late."""
        now = time.monotonic()
        epoch, self._epoch_began = now - self._epoch_began, now
        if self._writing is not None and self._writing.done():
            self.wait()
        return self.every is not None and now - self._last + epoch >= self.every

    def save(self, learner: Learner, position: Position, progress: RunProgress) -> None:
        """Checkpoint a run within a task, or between two tasks."""
        self.wait()
        self._number += 1
        task = max(learner.classes_of)
        where = f"phase-{position.phase}-epoch-{position.epochs}" if position.begun else "end"
        path = self.path / f"{self._number:06d}-task-{task}-{where}.safetensors"
        tensors = stored_tensors(learner) | (training_tensors(learner) if position.begun else {})
        about = {
            "format": FORMAT,
            "kind": "checkpoint",
            "afaf": __version__,
            "learner": describe(learner),
            "position": asdict(position),
            "progress": asdict(progress),
            "log_bytes": self.folder.log_bytes(),
            "began_with": self._began_with,
        }

        def write() -> None:
            make_folder(self.path)
            self.folder.sync_log()
            write_whole(path, container.encode(tensors, about))
            self._good.append(path)
            for old in (*self._good[:-KEPT], *self._unusable):
                with contextlib.suppress(OSError):
                    old.unlink()
            self._good, self._unusable = self._good[-KEPT:], []

        self._writing = self._pool.submit(write)
        self._last = time.monotonic()

    def wait(self) -> None:
        """Wait until everything is on the disk; an error of the background thread is raised here."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Wait for the background thread, also after an error: nothing may be written once the folder is unlocked."""
        self._pool.shutdown()

    def restore(self, device: torch.device, n_tasks: int, warn: Callable[[str], None]) -> Restored | None:
        """The newest valid checkpoint; invalid ones are skipped with a warning. None if there is no valid one."""
        remove_parts(self.path)
        paths = checkpoints_in(self.folder.path)[::-1]
        self._number = max((int(path.name.split("-")[0]) for path in paths), default=0)
        for place, path in enumerate(paths):
            try:
                restored = load_checkpoint(path, device, n_tasks)
            except FileError as error:
                if is_newer(path):
                    raise RunError(str(error)) from None
                warn(f"{error}; an older checkpoint is tried")
                if _is_marked(path):
                    self._unusable.append(path)
                continue
            self._good = [good for good in paths[place:][::-1] if _is_marked(good)]
            return restored
        return None


def load_checkpoint(path: Path, device: torch.device, n_tasks: int | None = None) -> Restored:
    """Read a checkpoint; raises `FileError` if it cannot be used."""
    contents = container.read_file(path, check)
    about = contents.about
    with readable(str(path)):
        progress = RunProgress.parse(about["progress"], len(about["progress"]["R"]) if n_tasks is None else n_tasks)
        log_bytes = checked.build(Whole, about["log_bytes"], "log_bytes")
        learner = build(Description.parse(about["learner"]), contents.tensors, device)
        return Restored(learner, Position.parse(about["position"]), progress, log_bytes)


def check(about: About, tensors: Tensors) -> None:
    """Refuse contents that cannot be a checkpoint."""
    check_format(about, "checkpoint", FORMAT)
    if about["format"] == 1 and about["whole"] is not True:
        raise ValueError("an earlier afaf wrote it within a task, when checkpoints held changes only")
    checked.build(dict[str, Any], about.get("began_with", {}), "began_with")
    check_tensors(Description.parse(about["learner"]), tensors, within_task=True)


def changed_settings(folder: Path, config: Mapping[str, Any]) -> list[str]:
    """Settings in config.json that differ from those stored in the newest valid checkpoint, if it stores them."""
    for path in checkpoints_in(folder)[::-1]:
        with contextlib.suppress(FileError):
            now = began_with(config)
            then = container.read_file(path, check).about.get("began_with", now)
            changed = [name for name in {**then, **now} if then.get(name) != now.get(name)]
            return [f"{name} is {now.get(name, 'not set')}, but the run began with {then.get(name, 'none')}" for name in changed]
    return []


def is_newer(path: Path) -> bool:
    """Whether it is an undamaged file of a newer afaf, which must not be treated as missing."""
    with contextlib.suppress(FileError):
        about = container.read_file(path, lambda about, tensors: None).about
        return type(about.get("format")) is int and about["format"] > FORMAT
    return False


def _is_marked(path: Path) -> bool:
    """Whether its header marks it as a file of afaf."""
    try:
        return is_ours(path, "safetensors")
    except OSError:
        return False
