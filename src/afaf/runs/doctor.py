"""Looking a run folder or a model file over: checksums, shapes, the ledger's promises, and what can be recovered."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from afaf.errors import AfafError, FileError, RunError
from afaf.files import PART
from afaf.learning.learner import Learner
from afaf.model import container
from afaf.model.file import Model
from afaf.model.invariants import broken_promises, changed_since
from afaf.runs.checkpoint import FOLDER, Restored, load_checkpoint
from afaf.runs.folder import read_json, resume_command
from afaf.runs.keeping import from_backup
from afaf.runs.lock import holder_of, is_locked

CPU = torch.device("cpu")


@dataclass
class Diagnosis:
    """What was looked at, what is wrong with it, and what to do."""

    path: str
    sound: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)

    @property
    def well(self) -> bool:
        return not self.wrong

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "well": self.well}

    def add(self, name: str, wrong: list[str], sound: str) -> None:
        self.wrong += [f"{name}: {what}" for what in wrong]
        if not wrong:
            self.sound.append(f"{name}: {sound}")


def examine(path: Path) -> Diagnosis:
    """Look over a run folder, or a model or checkpoint file; nothing is changed."""
    if not path.exists():
        raise RunError(f"{path} does not exist")
    diagnosis = Diagnosis(str(path))
    if path.is_dir():
        _examine_run(path, diagnosis)
    else:
        _examine_file(path, diagnosis)
    return diagnosis


def _examine_file(path: Path, diagnosis: Diagnosis) -> None:
    try:
        if container.description(path)[0].get("kind") == "checkpoint":
            learner = load_checkpoint(path, sorted(path.parent.glob("*.safetensors")), CPU).learner
        else:
            learner = Model.load(path).learner
    except FileError as error:
        diagnosis.wrong.append(str(error))
        lost = "a file that is damaged cannot be mended: take a copy of it, or look at its run folder with afaf doctor RUN"
        diagnosis.advice.append(from_backup(path) or lost)
        return
    diagnosis.add(path.name, broken_promises(learner), _words(learner))


def _words(learner: Learner) -> str:
    return f"whole, {learner.tasks_learned} tasks learned, {learner.params:,} weights owned"


def _examine_run(path: Path, diagnosis: Diagnosis) -> None:
    if not any((path / name).exists() for name in ("config.json", "model.safetensors", FOLDER)):
        raise RunError(f"{path} is no run folder: there is neither a config.json nor a model nor a checkpoint in it")
    for name in ("config.json", "results.json"):
        if name == "config.json" or (path / name).exists():
            _examine_json(path / name, diagnosis)
    _examine_log(path / "log.jsonl", diagnosis)
    states = _examine_checkpoints(path, diagnosis)
    model = _examine_model(path, diagnosis, states)
    _compare(states, diagnosis)
    for left in [*path.glob(f".*{PART}*"), *(path / FOLDER).glob(f".*{PART}*")]:
        diagnosis.sound.append(f"{left.name}: left by a writer that died; the next resume removes it")
    _advise(path, diagnosis, states, model)


def _examine_json(path: Path, diagnosis: Diagnosis) -> None:
    try:
        read_json(path)
        diagnosis.sound.append(f"{path.name}: whole")
    except AfafError as error:
        diagnosis.wrong.append(str(error).partition("; `afaf doctor")[0])  # whom the reader is asking already


def _can_read(path: Path) -> bool:
    try:
        read_json(path)
    except AfafError:
        return False
    return True


def _examine_log(path: Path, diagnosis: Diagnosis) -> None:
    if not path.exists():
        return
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        diagnosis.wrong.append(f"{path.name}: cannot be read ({error.strerror})")
        return
    bad = []
    for number, line in enumerate(lines, 1):
        try:
            json.loads(line)
        except ValueError:
            bad.append(f"line {number} is not JSON")
    diagnosis.add(path.name, bad[:3], "every line whole")


def _examine_checkpoints(path: Path, diagnosis: Diagnosis) -> list[tuple[str, Learner]]:
    """The good ones, oldest first."""
    states = []
    paths = sorted((path / FOLDER).glob("*.safetensors"))
    for file in paths:
        try:
            restored: Restored = load_checkpoint(file, paths, CPU)
        except FileError as error:
            diagnosis.wrong.append(str(error))
            continue
        diagnosis.add(file.name, broken_promises(restored.learner), f"whole, {restored.position}")
        states.append((file.name, restored.learner))
    return states


def _examine_model(path: Path, diagnosis: Diagnosis, states: list[tuple[str, Learner]]) -> Learner | None:
    file = path / "model.safetensors"
    if not file.exists():
        if (path / "results.json").exists():
            diagnosis.wrong.append("model.safetensors is missing, though the run is finished")
        return None
    try:
        learner = Model.load(file).learner
    except FileError as error:
        diagnosis.wrong.append(str(error))
        return None
    diagnosis.add(file.name, broken_promises(learner), _words(learner))
    try:
        told = read_json(path / "results.json").get("params", learner.params)
        diagnosis.add("results.json", [] if told == learner.params else ["it counts other weights than the model has"], "fits the model")
    except AfafError:
        pass  # said before, or the run is not finished
    states.append((file.name, learner))
    return learner


def _compare(states: list[tuple[str, Learner]], diagnosis: Diagnosis) -> None:
    """What each recorded task owned and fixed must be untouched in the next state that was recorded."""
    for (name, before), (later_name, after) in itertools.pairwise(states):
        if before.tasks_learned and after.ledger.keeps_past:  # dense methods promise nothing of the kind
            diagnosis.add(f"from {name} to {later_name}", changed_since(before, after), "what tasks own and fixed is untouched")


def _advise(path: Path, diagnosis: Diagnosis, states: list[tuple[str, Learner]], model: Learner | None) -> None:
    checkpoints = [name for name, _ in states if name != "model.safetensors"]
    newest = f"from {checkpoints[-1]}" if checkpoints else "from the beginning, for no checkpoint is good"
    command = resume_command(path)
    if is_locked(path):
        diagnosis.advice.append(f"the run is going on: {holder_of(path)} writes to the folder")
    elif not (path / "results.json").exists():
        if (path / "config.json").exists():
            diagnosis.advice.append(f"the run is not finished: {command} goes on {newest}")
    elif not diagnosis.well and not _can_read(path / "config.json"):
        state = "whole, and holds the settings too" if model is not None else "lost"
        diagnosis.advice.append(f"without its config.json the run cannot go on; its model is {state}")
    elif not diagnosis.well and model is not None and _can_read(path / "results.json"):
        diagnosis.advice.append("results and model are whole: nothing needs doing; damaged checkpoints can be removed")
        if any(words.startswith("log.jsonl: line") for words in diagnosis.wrong):
            diagnosis.advice.append("remove the lines of log.jsonl that are not JSON: afaf report draws its curves from the rest")
    elif not diagnosis.well and checkpoints:
        diagnosis.advice.append(f"remove results.json and model.safetensors, then {command} makes them anew {newest}")
    elif not diagnosis.well:
        state = "good" if model is not None else "lost"
        diagnosis.advice.append(f"the model is {state}; to repeat the run in another folder: --config {path / 'config.json'}")
