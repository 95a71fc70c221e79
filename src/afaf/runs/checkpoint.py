"""Checkpoints: when one is taken, what is kept, and which one a run goes on from.

At the end of a task the whole learner is written; within a task only what can have changed since (`model.change`), with the checksum of the
whole file it belongs to. Copies are taken at once, in host memory; hashing, writing and removing old ones is a background thread's work,
of which there is never more than one. The two newest stay, with the whole files they belong to, and so do the two newest whole ones.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from afaf.errors import FileError, RunError
from afaf.files import fill, make_folder, remove_parts, write_whole
from afaf.files.marks import is_ours
from afaf.runs.folder import CHECKPOINTS, RunFolder, began_with, checkpoints_in
from afaf.runs.progress import Position, RunProgress
from afaf.storage import container
from afaf.storage.change import Marks, apply_change, changed_tensors, check_fits, fresh, weight_sums
from afaf.storage.container import About, Contents, Entries, readable
from afaf.storage.model_file import check_format
from afaf.storage.state import Description, build, check_entries, check_size, describe, stored_tensors, whole
from afaf.training.learner import Learner
from afaf.training.plan import LearningPlan
from afaf.version import __version__

FORMAT = 1
KEPT = 2


@dataclass(frozen=True)
class Saved:
    """A checkpoint on the disk."""

    path: Path
    checksum: str
    base: str | None  # the checksum of the whole one it belongs to; None: it is whole, or belongs to the learner before its first task
    whole: bool


@dataclass
class Restored:
    """A run as a checkpoint has it."""

    learner: Learner
    position: Position
    progress: RunProgress
    log_bytes: int
    saved: Saved
    marks: Marks  # how the learner stood before the task


class Checkpoints:
    """The checkpoints of one run folder."""

    def __init__(self, folder: RunFolder, every: float | None):
        self.folder, self.every = folder, every
        self.path = folder.path / CHECKPOINTS
        self._began_with = began_with(folder.read_json("config.json"))  # read now: somebody may change the file later on
        self._writer = Writer()
        self._known: list[Saved] = []  # good ones, oldest first
        self._unusable: list[Path] = []  # checkpoints of this run that a resume passed over
        self._base: Saved | None = None  # the whole one that the present task began from
        self._marks: Marks | None = None
        self._number = 0
        self._last = self._epoch_began = time.monotonic()

    @property
    def newest(self) -> Saved | None:
        return self._known[-1] if self._known else None

    # Taking them.

    def begin(self, learner: Learner) -> None:
        """A run begins with this learner, before its first task; nothing has to be written for that."""
        make_folder(self.path)
        self._marks = Marks(learner)

    def due(self) -> bool:
        """At the end of an epoch: whether waiting for the end of the next one would be too long."""
        now = time.monotonic()
        epoch, self._epoch_began = now - self._epoch_began, now
        self._writer.check()
        return self.every is not None and now - self._last + epoch >= self.every

    def save_within(self, learner: Learner, plan: LearningPlan, position: Position, progress: RunProgress) -> None:
        """Checkpoint a lesson that is being learned."""
        assert self._marks is not None, "begin comes before save_within"
        self._writer.wait()  # for the whole one it belongs to
        tensors = changed_tensors(learner, plan, self._marks)
        about = {"task": plan.task, "base": self._base.checksum if self._base else None, "sums": weight_sums(learner)}
        self._save(f"task-{plan.task}-phase-{position.phase}-epoch-{position.epochs}", tensors, about, learner, position, progress)

    def save_whole(self, learner: Learner, position: Position, progress: RunProgress) -> None:
        """Checkpoint a run between two lessons."""
        self._save(f"task-{learner.tasks_learned}-end", stored_tensors(learner), {}, learner, position, progress)
        self._marks = Marks(learner)

    def _save(self, name: str, tensors: Any, more: About, learner: Learner, position: Position, progress: RunProgress) -> None:
        self._writer.wait()
        self._number += 1
        path, complete = self.path / f"{self._number:06d}-{name}.safetensors", "base" not in more
        about = {
            "format": FORMAT,
            "kind": "checkpoint",
            "afaf": __version__,
            "whole": complete,
            **more,
            "learner": describe(learner),
            "position": position.to_dict(),
            "progress": progress.to_dict(),
            "log_bytes": self.folder.log_bytes(),
            "began_with": self._began_with,
        }

        def write() -> None:
            self.folder.sync_log()
            parts, checksum = container.encode(tensors, about)
            write_whole(path, lambda temporary: fill(temporary, parts))
            saved = Saved(path, checksum, more.get("base"), complete)
            self._known.append(saved)
            if complete:
                self._base = saved
            self._remove_old()

        self._writer.start(write)
        self._last = time.monotonic()

    def _remove_old(self) -> None:
        """Keep the two newest and the whole ones they belong to; and the two newest whole ones, should one of them be damaged."""
        newest, wholes = self._known[-KEPT:], [saved for saved in self._known if saved.whole]
        needed = {saved.base for saved in newest}
        before = self._known
        self._known = [saved for saved in before if saved in newest or saved in wholes[-KEPT:] or saved.checksum in needed]
        for path in [*(saved.path for saved in before if saved not in self._known), *self._unusable]:  # and no file of the user's
            with contextlib.suppress(OSError):
                path.unlink()
        self._unusable = []

    def wait(self) -> None:
        """Until all is on the disk; an error of the background thread surfaces here."""
        self._writer.wait()

    def close(self) -> None:
        """The run ends before its time: let what is being written end, too, before anybody else may use the folder."""
        with contextlib.suppress(Exception):
            self._writer.wait()

    # Going on from one.

    def restore(self, device: torch.device, n_tasks: int, warn: Callable[[str], None]) -> Restored | None:
        """The newest good checkpoint; damaged ones are passed over with a warning. None: there is none, and the run begins anew."""
        make_folder(self.path)
        remove_parts(self.path)
        paths = checkpoints_in(self.folder.path)[::-1]
        self._number = max((number_of(path) for path in paths), default=0)
        self._unusable = [path for path in paths if _is_marked(path)]
        for place, path in enumerate(paths):
            try:
                restored = load_checkpoint(path, paths, device, n_tasks)
            except FileError as error:
                if is_newer(path):
                    raise RunError(str(error)) from None
                warn(f"{error}; an older checkpoint is tried")
                continue
            self._known = known(paths[place:])
            usable = {saved.path for saved in self._known}
            self._unusable = [path for path in self._unusable if path not in usable]
            base = restored.saved.checksum if restored.saved.whole else restored.saved.base
            self._base = next((saved for saved in self._known if saved.checksum == base), None)
            self._marks = restored.marks
            return restored
        return None


class Writer:
    """At most one job at a time, in the background. What goes wrong there is raised here, at the next occasion."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, job: Callable[[], None]) -> None:
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(job,), name="checkpoint", daemon=True)
        self._thread.start()

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            self._error = error

    def check(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()


def load_checkpoint(path: Path, among: list[Path], device: torch.device, n_tasks: int | None = None) -> Restored:
    """One checkpoint of those in a folder; any that cannot be used is a `FileError`."""
    contents = container.read_file(path, check)
    about, name = contents.about, str(path)
    with readable(name):
        description = Description.parse(about["learner"])
        progress = RunProgress.from_dict(about["progress"], len(about["progress"]["R"]) if n_tasks is None else n_tasks)
        position, log_bytes = Position.from_dict(about["position"]), whole(about["log_bytes"])
        learner = build(description, contents.tensors, device) if about["whole"] else _base_of(about, path, among, device)
        marks = Marks(learner)
        if not about["whole"]:
            check_fits(learner, description, contents.tensors)
            learner = apply_change(learner, description, contents.tensors, about["task"], about["sums"])
        saved = Saved(path, str(contents.checksum), about.get("base"), about["whole"])
        return Restored(learner, position, progress, log_bytes, saved, marks)


def check(about: About, entries: Entries) -> None:
    """Refuse what cannot be a checkpoint, before any memory is asked for."""
    check_format(about, "checkpoint", FORMAT)
    if type(about["whole"]) is not bool:
        raise ValueError("it does not say whether it is whole")
    if not isinstance(about.get("began_with", {}), dict):
        raise ValueError("it does not say what the run began with")
    description = Description.parse(about["learner"])
    check_entries(description, entries, part=not about["whole"])
    if about.get("base") is None:
        check_size(description, entries)


def _base_of(about: About, path: Path, among: list[Path], device: torch.device) -> Learner:
    """The learner before the task in which a checkpoint was taken."""
    if about["base"] is None:
        return fresh(Description.parse(about["learner"]), device)
    for other in among:
        with contextlib.suppress(FileError):
            if other != path and container.description(other)[1] == about["base"]:
                contents: Contents = container.read_file(other, check)
                return build(Description.parse(contents.about["learner"]), contents.tensors, device)
    raise FileError(f"{path} belongs to a checkpoint that is damaged or not there")


def changed_settings(folder: Path, config: Mapping[str, Any]) -> list[str]:
    """Where config.json is not what the newest checkpoint was learned with. Those of an older afaf do not say what that was."""
    for path in checkpoints_in(folder)[::-1]:
        with contextlib.suppress(FileError):
            now = began_with(config)
            then = container.read_file(path, check).about.get("began_with", now)
            changed = [name for name in {**then, **now} if then.get(name) != now.get(name)]
            return [f"{name} is {now.get(name, 'not set')}, but the run began with {then.get(name, 'none')}" for name in changed]
    return []


def is_newer(path: Path) -> bool:
    """Whether it is a whole file that only a newer afaf can make sense of: no damage, and no reason to begin anew."""
    with contextlib.suppress(FileError):
        about = container.read_file(path, lambda about, entries: None).about
        return type(about.get("format")) is int and about["format"] > FORMAT
    return False


def known(paths: list[Path]) -> list[Saved]:
    """What the headers of checkpoints say, oldest first; those that cannot be read are left out."""
    found = []
    for path in sorted(paths):
        with contextlib.suppress(FileError, KeyError):
            about, checksum = container.description(path)
            found.append(Saved(path, str(checksum), about.get("base"), about["whole"]))
    return found


def _is_marked(path: Path) -> bool:
    """Whether its header, which damage seldom hits, says that this program wrote it."""
    try:
        return is_ours(path, "safetensors")
    except OSError:
        return False


def number_of(path: Path) -> int:
    """Checkpoints are numbered in the order they were taken."""
    number = path.name.split("-")[0]
    return int(number) if number.isdecimal() else 0
