"""Checks of a run folder or a model file: checksums, shapes, the ledger's invariants, and how to recover."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from afaf.errors import AfafError, RunError
from afaf.files import is_part, read_bytes
from afaf.files.lock import holder_of, is_locked
from afaf.files.read import RECORD_LIMIT
from afaf.lifelong.encoded import EncodedModel
from afaf.lifelong.model_store import has_encoder
from afaf.lifelong.soundness import TAKEN_OUT
from afaf.runs.checkpoint import changed_settings, load_checkpoint
from afaf.runs.folder import CHECKPOINTS, check_links, checkpoints_in, read_json, read_results, resume_command
from afaf.runs.progress import RunProgress
from afaf.runs.results import Results
from afaf.storage import container
from afaf.storage.invariants import broken_invariants, changed_since
from afaf.storage.model_file import Model
from afaf.training.learner import Learner

CPU = torch.device("cpu")
Table = dict[str, Any]
T = TypeVar("T")


@dataclass
class Diagnosis:
    """The sound files, the problems, and advice."""

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

    def read(self, load: Callable[[Path], T], path: Path, sound: str = "") -> T | None:
        """The contents of a file, which is then listed as `sound`; if it cannot be used, None and a line in `wrong`."""
        try:
            contents = load(path)
        except AfafError as error:
            self.wrong.append(str(error).partition("; `afaf doctor")[0])  # the user is already running it
            return None
        self.sound += [f"{path.name}: {sound}"] if sound else []
        return contents

    def blames(self, name: str) -> bool:
        """Whether this file of the folder has a problem."""
        return any(line.startswith(f"{name}: ") or str(Path(self.path) / name) in line for line in self.wrong)


@dataclass
class Recorded:
    """The contents of a good checkpoint, or of the model."""

    name: str
    learner: Learner
    progress: RunProgress | None = None  # of a checkpoint


def examine(path: Path) -> Diagnosis:
    """Check a run folder, or a model or checkpoint file; nothing is changed."""
    if not path.exists():
        raise RunError(f"{path} does not exist")
    diagnosis = Diagnosis(str(path))
    (_examine_run if path.is_dir() else _examine_file)(path, diagnosis)
    return diagnosis


def _examine_file(path: Path, diagnosis: Diagnosis) -> None:
    if has_encoder(path):
        if (model := diagnosis.read(EncodedModel.load, path)) is not None:
            wrong = model.problems()
            diagnosis.add(path.name, wrong, f"whole, {len(model.life.known)} classes of {model.sums.images} images")
            diagnosis.advice += [TAKEN_OUT] if wrong else []
    elif (learner := diagnosis.read(_learner_in, path)) is not None:
        diagnosis.add(path.name, broken_invariants(learner), _words(learner))
    if not diagnosis.sound and not diagnosis.blames(path.name):
        advice = "a file that is damaged cannot be mended: use a backup of it, or look at its run folder with afaf doctor RUN"
        diagnosis.advice.append(advice)


def _learner_in(path: Path) -> Learner:
    if container.description(path)[0].get("kind") == "checkpoint":
        return load_checkpoint(path, CPU).learner
    return Model.load(path).learner


def _words(learner: Learner) -> str:
    return f"whole, {learner.tasks_learned} tasks learned, {learner.params:,} weights owned"


def _examine_run(path: Path, diagnosis: Diagnosis) -> None:
    if not any((path / name).exists() for name in ("config.json", "model.safetensors", CHECKPOINTS)):
        raise RunError(f"{path} is no run folder: there is neither a config.json nor a model nor a checkpoint in it")
    check_links(path)
    about = diagnosis.read(read_json, path / "config.json", "whole")
    results = diagnosis.read(lambda file: read_results(path), path / "results.json", "whole") if (path / "results.json").exists() else None
    _examine_log(path / "log.jsonl", diagnosis)
    checkpoints = _examine_checkpoints(path, diagnosis)
    model = _examine_model(path, diagnosis)
    if about is not None:
        diagnosis.wrong += [f"config.json: {what}" for what in changed_settings(path, about)]
    if results is not None:
        _examine_results(results, None if diagnosis.blames("config.json") else about, checkpoints, model, diagnosis)
    _compare([*checkpoints, *([] if model is None else [model])], diagnosis)
    for left in [*path.glob(".*"), *(path / CHECKPOINTS).glob(".*")]:
        if is_part(left.name):
            diagnosis.sound.append(f"{left.name}: left by a writer that died; the next resume removes it")
    _advise(path, diagnosis, checkpoints, model)


def _examine_log(path: Path, diagnosis: Diagnosis) -> None:
    if not path.exists():
        return
    try:
        lines = read_bytes(path, RECORD_LIMIT, path.parent).splitlines()
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


def _examine_checkpoints(path: Path, diagnosis: Diagnosis) -> list[Recorded]:
    """Check the checkpoints, and return the good ones, oldest first."""
    good = []
    for file in checkpoints_in(path):
        about = diagnosis.read(container.description, file)
        if about is None:
            continue
        if about[0].get("whole") is False:
            diagnosis.sound.append(f"{file.name}: written within a task by an earlier afaf; a resume uses the one before it")
        elif (restored := diagnosis.read(lambda file: load_checkpoint(file, CPU), file)) is not None:
            diagnosis.add(file.name, broken_invariants(restored.learner), f"whole, {restored.position}")
            good.append(Recorded(file.name, restored.learner, restored.progress))
    return good


def _examine_model(path: Path, diagnosis: Diagnosis) -> Recorded | None:
    file = path / "model.safetensors"
    if not file.exists():
        if (path / "results.json").exists():
            diagnosis.wrong.append("model.safetensors is missing, though the run is finished")
        return None
    if (model := diagnosis.read(Model.load, file)) is None:
        return None
    diagnosis.add(file.name, broken_invariants(model.learner), _words(model.learner))
    return Recorded(file.name, model.learner)


def _examine_results(
    results: Results, about: Table | None, checkpoints: list[Recorded], model: Recorded | None, diagnosis: Diagnosis
) -> None:
    """Check that the results match the folder: its settings, its newest good checkpoint and its model."""
    if about is not None:
        stored = {"method": results.method, "seed": results.seed}
        wrong = [f"its {name} is {value}, not {about.get(name)}" for name, value in stored.items() if value != about.get(name)]
        diagnosis.add("results.json", wrong, "fits config.json")
    for newest in checkpoints[-1:]:
        if newest.progress is not None:
            diagnosis.add("results.json", _not_as_recorded(results, newest.name, newest.progress), f"fits {newest.name}")
    if model is not None:
        other = results.params != model.learner.params
        diagnosis.add("results.json", ["it counts other weights than the model has"] if other else [], "fits the model")


def _not_as_recorded(results: Results, name: str, progress: RunProgress) -> list[str]:
    """A message for each field that differs from a checkpoint. A checkpoint taken before the end lacks some numbers."""
    finished = bool(progress.R) and progress.R[-1][-1] is not None
    fields = ("R", "R_task_il", "R_task_il_unmasked", "task_id", "before", *(("confusion",) if finished else ()))
    stored = {**vars(results), "R_task_il_unmasked": results.R_task_il_unmasked or results.R_task_il}
    others = [field for field in fields if not _same(stored[field], getattr(progress, field), finished)]
    return [f"{field} is not what {name} holds" for field in others]


def _same(stored: Any, held: Any, finished: bool) -> bool:
    """Whether two lists of numbers are equal; in an unfinished run, None is a number not known yet."""
    if isinstance(stored, list) and isinstance(held, list):
        return len(stored) == len(held) and all(_same(a, b, finished) for a, b in zip(stored, held, strict=True))
    return bool(stored == held) or (held is None and not finished)


def _compare(states: list[Recorded], diagnosis: Diagnosis) -> None:
    """Compare each checkpoint with the next: connections owned and neurons fixed by learned tasks must be the same."""
    for before, after in itertools.pairwise(states):
        if before.learner.tasks_learned and after.learner.ledger.keeps_past:  # dense methods change all connections
            changed = changed_since(before.learner, after.learner)
            diagnosis.add(f"from {before.name} to {after.name}", changed, "connections and fixed neurons of learned tasks are the same")


def _advise(path: Path, diagnosis: Diagnosis, checkpoints: list[Recorded], model: Recorded | None) -> None:
    newest = f"from {checkpoints[-1].name}" if checkpoints else "from the beginning, for no checkpoint is good"
    command = resume_command(path)
    if is_locked(path):
        diagnosis.advice.append(f"the run is going on: {holder_of(path)} writes to the folder")
    elif any(words.startswith("config.json: ") for words in diagnosis.wrong):
        then = "results and model are of that" if (path / "results.json").exists() else f"{command} goes on {newest}"
        diagnosis.advice.append(f"set config.json back to what the run began with: {then}")
    elif not (path / "results.json").exists():
        if (path / "config.json").exists():
            diagnosis.advice.append(f"the run is not finished: {command} goes on {newest}")
    elif diagnosis.blames("config.json"):
        state = "whole, and holds the settings too" if model is not None else "lost"
        diagnosis.advice.append(f"without its config.json the run cannot go on; its model is {state}")
    elif not diagnosis.well and model is not None and not diagnosis.blames("results.json"):
        diagnosis.advice.append("results and model are whole: nothing needs doing; damaged checkpoints can be removed")
        if any(words.startswith("log.jsonl: line") for words in diagnosis.wrong):
            diagnosis.advice.append("remove the lines of log.jsonl that are not JSON: afaf report draws its curves from the rest")
    elif not diagnosis.well and checkpoints:
        diagnosis.advice.append(f"remove results.json and model.safetensors, then {command} computes them again {newest}")
    elif not diagnosis.well:
        state = "good" if model is not None else "lost"
        diagnosis.advice.append(f"the model is {state}; to repeat the run in another folder: --config {path / 'config.json'}")
