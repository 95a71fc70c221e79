"""The files of a search for settings: all trials (sweep.json), and the settings of the best as a preset (best.toml)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from afaf.checked import build
from afaf.errors import ConfigError, RunError
from afaf.files import write_whole
from afaf.runs.config import Table, merge, nested
from afaf.runs.events import Event
from afaf.runs.folder import CHECKPOINTS, flat, read_json
from afaf.runs.job import Job
from afaf.sweeps.space import Space

FILE, PRESET, TRIALS = "sweep.json", "best.toml", "trials"
STATES = {"complete": "complete", "pruned": "stopped early", "fail": "without room or diverged", "running": "running"}
VALIDATION = 0.1  # of each task's training images, unless run.validation says otherwise


@dataclass(frozen=True)
class TrialRecord:
    number: int
    state: str  # complete, pruned, fail or running
    value: float | None
    settings: dict[str, Any]
    steps: list[float | None] = field(default_factory=list)  # the objective after each task
    seconds: float | None = None
    why: str = ""

    def __str__(self) -> str:
        return f"trial {self.number}: {' '.join(f'{name}={shown(value)}' for name, value in self.settings.items())}"


@dataclass(frozen=True)
class TrialEnded(Event):
    """A trial ended and is stored."""

    record: TrialRecord


@dataclass(frozen=True)
class AboutFields:
    """The fields of every description of a search."""

    stream: str
    method: str
    seed: int
    objective: str
    space: Space


@dataclass(frozen=True)
class Outcome:
    """All trials, and the importance of each setting (none if too few trials are complete)."""

    trials: list[TrialRecord]
    importance: dict[str, float] = field(default_factory=dict)
    chosen: int | None = None  # the number of the best trial, if it is not the one with the highest objective

    @property
    def complete(self) -> list[TrialRecord]:
        return [trial for trial in self.trials if trial.state == "complete" and trial.value is not None]

    @property
    def best(self) -> TrialRecord | None:
        chosen = next((trial for trial in self.trials if trial.number == self.chosen), None)
        return chosen or max(self.complete, key=lambda trial: (trial.value or 0.0, -trial.number), default=None)

    @property
    def counts(self) -> str:
        """The number of trials in each state, in words."""
        states = [trial.state for trial in self.trials]
        return ", ".join(f"{states.count(state)} {words}" for state, words in STATES.items() if state in states)


def describe_search(folder: Path, job: Job, objective: str, space: Space, tasks: int | None, **more: Any) -> dict[str, Any]:
    """Everything that the trials of a search depend on. A folder that holds another search is refused."""
    stream = job.source if isinstance(job.stream, str) else job.stream.name
    settings = merge(*job.tables)  # shared by all trials
    about: dict[str, Any] = {"stream": stream, "method": job.method_class.name, "seed": job.seed, "settings": settings, "tasks": tasks}
    ranges = {name: asdict(one) for name, one in space.items()}
    about = json.loads(json.dumps({**about, "objective": objective, "space": ranges, **more}))
    stored, _ = read_outcome(folder)
    for name, value in about.items():
        if stored and stored.get(name) != value:
            raise ConfigError(f"{folder} holds another sweep ({name} is {stored.get(name)} there, {value} here): choose another with --out")
    return about


def judged_on(validation: float | None) -> dict[str, Any]:
    """The settings of a trial that is judged on validation images."""
    return {"run.validation": validation or VALIDATION, "run.evaluate_on": "validation"}


def sweep_of(trial: Path) -> Path | None:
    """The folder of the search that this run folder is a trial of."""
    folder = trial.absolute().parent
    return folder.parent if folder.name == TRIALS and (folder.parent / FILE).exists() else None


def discard_weights(folder: Path) -> None:
    """Remove the model and the checkpoints of a trial; configuration, log and results stay."""
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    (folder / "model.safetensors").unlink(missing_ok=True)


def read_outcome(folder: Path) -> tuple[dict[str, Any], Outcome]:
    """The description of a search, and its outcome so far, empty in a new folder; RunError if sweep.json is damaged."""
    if not (folder / FILE).exists():
        return {}, Outcome([])
    table = read_json(folder / FILE)
    try:
        about = build(dict[str, Any], table.get("about"), "about")
        build(AboutFields, {one.name: about[one.name] for one in fields(AboutFields) if one.name in about}, "about")
        return about, build(Outcome, {name: value for name, value in table.items() if name in ("trials", "importance", "chosen")})
    except ConfigError as error:
        raise RunError(f"{folder / FILE} is damaged: {error}") from None


def shown(value: object) -> str:
    """The value of a setting in a table."""
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def write_outcome(folder: Path, about: Mapping[str, Any], outcome: Outcome) -> None:
    """Write both files; a trial that diverged gets no preset."""
    trials = [asdict(trial) for trial in outcome.trials]
    table = {"format": 1, "about": about, "trials": trials, "importance": outcome.importance, "chosen": outcome.chosen}
    write_whole(folder / FILE, f"{json.dumps(table, indent=1)}\n".encode())
    if outcome.best is not None and outcome.best.value is not None:
        settings = merge(about["settings"], *(nested(name, value) for name, value in outcome.best.settings.items()))
        write_whole(folder / PRESET, preset(about, settings, outcome.best).encode())


def preset(about: Mapping[str, Any], settings: Table, best: TrialRecord) -> str:
    """A TOML file that `afaf run --config` takes."""
    lines = [
        f"# Trial {best.number} of a sweep of {about['method']} on {about['stream']}: {best.value:.2f} % ({about['objective']}).",
        *(f"{name} = {_toml(value)}" for name, value in flat(settings).items()),
    ]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    return '"none"' if value is None else json.dumps(value)
