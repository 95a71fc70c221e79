"""How strongly to hold on to the past, chosen the way a continual learner may: without later tasks, and never on test images.

The protocol is FACIL's (Masana et al., *Class-incremental learning: survey and performance evaluation*, 2020), the continual
hyper-parameter framework of De Lange et al.:

1. *Highest plasticity first*: the task at hand is learned with nothing held (the trade-off at 0), with each learning rate offered; the best
   accuracy on its own validation part is what the network could reach.
2. *Then the strongest stability that keeps it*: from the strongest trade-off worth trying downwards, each a `decay` of the one before, the
   task is learned again from the same start, until its accuracy is within a `tolerance` of the best.

Accuracy is task-IL, on the task's own classes. Only what is there when the task is learned is looked at: its own images, and what earlier
tasks left. The second task is the first with something to hold on to.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from afaf.errors import ConfigError, DivergedError
from afaf.files import make_folders
from afaf.methods import find_method, method_names
from afaf.methods.base import Method
from afaf.runs.config import Config, Table, build_config
from afaf.runs.device import suitable_threads
from afaf.runs.events import OnEvent, ignore
from afaf.runs.job import Job
from afaf.runs.presets import with_presets
from afaf.runs.runner import Run
from afaf.runs.setup import restrict, set_up
from afaf.streams.tasks import Stream
from afaf.sweeps.outcome import Outcome, TrialRecord, base_settings, refuse_another, write_outcome
from afaf.sweeps.space import Range, Space
from afaf.training.learner import Learner

OBJECTIVE = "the strongest trade-off that keeps task-IL accuracy on a task's own validation images near the best"
VALIDATION = 0.1  # of each task's training images, unless run.validation says otherwise


@dataclass(frozen=True)
class Trial:
    """One task learned once: learning rate, trade-off and accuracy (None: it diverged)."""

    task: int
    lr: float
    value: float
    accuracy: float | None  # task-IL, percent, on the task's validation part


@dataclass(frozen=True)
class Tuned:
    """The result: `values[i]` for task i + 2, the last of which is `value`."""

    stream: str
    method: str
    option: str
    value: float
    lr: float
    within: bool  # whether it keeps the accuracy within the tolerance; if not, no value tried does
    values: list[float]
    tolerance: float
    trials: list[Trial]
    settings: dict[str, Any] = field(default_factory=dict)  # `value` and what belongs to it, to run with beside those tuned with

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def outcome(self) -> Outcome:
        """As a search leaves it: each task learned once is a trial, and the last one is the best."""
        trials = []
        for number, trial in enumerate(self.trials):
            settings = {self.option: trial.value, "learn.lr": trial.lr}
            state, why = ("fail", "diverged") if trial.accuracy is None else ("complete", "")
            steps: list[float | None] = [*[None] * (trial.task - 1), trial.accuracy]
            trials.append(TrialRecord(number, state, trial.accuracy, settings, steps, why=why))
        trials[-1] = replace(trials[-1], settings={**self.settings, "learn.lr": self.lr})
        return Outcome(trials, chosen=len(trials) - 1)


def search_stability(job: Job, space: Space | None, folder: Path, *, trials: int, tasks: int, on_event: OnEvent = ignore) -> Outcome:
    """`tune_job` as a search: the space gives the strongest trade-off (its `high`) and the learning rates (choices of learn.lr)."""
    kind = job.method_class
    check_tunable(kind)
    space, option = space or {}, f"method.{kind.tradeoff}"
    start = float(space[option].high or 0) if option in space else kind.tradeoff_from
    rates = space["learn.lr"].choices if "learn.lr" in space else []
    tried = {option: Range(low=0.0, high=start), **({"learn.lr": Range(choices=rates)} if rates else {})}
    about = {"stream": str(job.source), "method": kind.name, "seed": job.seed, "settings": base_settings(job), "tasks": tasks}
    about = json.loads(json.dumps({**about, "objective": OBJECTIVE, "space": {name: asdict(one) for name, one in tried.items()}}))
    refuse_another(folder, about)
    tuned = tune_job(job, Search(start=start, searches=trials), tasks=tasks, learning_rates=rates, on_event=on_event)
    make_folders(folder, "choose another folder with --out")
    write_outcome(folder, about, base_settings(job), tuned.outcome())
    return tuned.outcome()


@dataclass(frozen=True)
class Search:
    """The strengths tried, strongest first, and how far below the best a task's accuracy may fall."""

    start: float | None = None  # None: the method's own
    decay: float = 0.5
    searches: int = 12
    tolerance: float = 0.2  # of the best accuracy: 0.2 of 95 % lets it fall to 76 %

    def check(self) -> None:
        start = self.start or 0.0
        for name, value, good in (
            ("start", start, 0 < start < float("inf")),
            ("decay", self.decay, 0 < self.decay < 1),
            ("searches", self.searches, self.searches >= 1),
            ("tolerance", self.tolerance, 0 <= self.tolerance < 1),
        ):
            if not good:
                raise ConfigError(f"{name} = {value}: start must be greater than 0, decay in 0..1, searches at least 1, tolerance in 0..1")

    def strongest(self, best: float, accuracy_of: Callable[[float], float | None]) -> tuple[float, bool]:
        """The strongest value whose accuracy is within the tolerance of the best; else the weakest tried, and False."""
        value = self.start or 0.0
        for _ in range(self.searches):
            accuracy = accuracy_of(value)
            if accuracy is not None and accuracy >= (1 - self.tolerance) * best:
                return value, True
            value *= self.decay
        return value / self.decay, False


def check_tunable(kind: type[Method[Any]]) -> None:
    if kind.tradeoff is None:
        tunable = [name for name in method_names() if find_method(name).tradeoff is not None]
        raise ConfigError(f"method '{kind.name}' has no trade-off to tune; those that have: {', '.join(tunable)}")


def tune_job(job: Job, search: Search, *, tasks: int = 2, learning_rates: Sequence[float] = (), on_event: OnEvent = ignore) -> Tuned:
    """Choose the trade-off of the job's method on the first `tasks` tasks of its stream, task by task."""
    job.check()
    kind = job.method_class
    check_tunable(kind)
    if search.start is None:
        search = replace(search, start=kind.tradeoff_from)
    search.check()
    opened = job.open()
    if not 2 <= tasks <= len(opened):
        raise ConfigError(f"tasks = {tasks}: from 2, the first with something to hold on to, to the {len(opened)} of the stream")
    tables = with_presets(opened.outline, kind, job.tables)  # the preset of the whole stream, as in the run
    given = build_config(kind.Options, *tables)
    belonging = _belonging(kind, given)
    validated = replace(given.run, validation=given.run.validation or VALIDATION, evaluate_on="validation")
    part = restrict(opened[:tasks], replace(given, run=validated))
    tables += [{"run": asdict(validated)}, {"method": belonging}]
    tuned = _Tuner(job, part, tables, on_event).carry_out(search, learning_rates or (given.learn.lr,))
    return replace(tuned, settings=_settings(tuned, belonging, given))


def _belonging(kind: type[Method[Any]], given: Config) -> Table:
    """Options that the value is tuned with and belongs to."""
    method = kind(given.method, given.settings)
    return method.tuned_with()


def _settings(tuned: Tuned, belonging: Table, given: Config) -> dict[str, Any]:
    """The settings that a run needs, beside those given, to learn as the chosen trial did."""
    lr = {} if tuned.lr == given.learn.lr else {"learn.lr": tuned.lr}
    return {tuned.option: tuned.value, **{f"method.{name}": value for name, value in belonging.items()}, **lr}


class _Tuner:
    """Learns tasks of a stream repeatedly from the same start."""

    def __init__(self, job: Job, stream: Stream, tables: list[Table], on_event: OnEvent = ignore):
        self.job, self.stream, self.kind, self.tables, self.on_event = job, stream, job.method_class, tables, on_event
        self.option = str(self.kind.tradeoff)
        self.trials: list[Trial] = []

    def carry_out(self, search: Search, learning_rates: Sequence[float]) -> Tuned:
        lr, _, learner = self._most_plastic(1, None, learning_rates)
        values, within = [], True
        for task in range(2, len(self.stream) + 1):
            lr, best, _ = self._most_plastic(task, learner, learning_rates)
            attempts: list[Learner] = []

            def accuracy_of(value: float, task: int = task, start: Learner = learner, lr: float = lr) -> float | None:
                accuracy, learned = self._learn(task, start, lr, value)
                attempts[:] = [learned]  # noqa: B023  (called before the loop goes on)
                return accuracy

            value, kept = search.strongest(best, accuracy_of)
            learner = attempts[0]
            values.append(value)
            within = within and kept
        option = f"method.{self.option}"
        return Tuned(self.stream.name, self.kind.name, option, values[-1], lr, within, values, search.tolerance, self.trials)

    def _most_plastic(self, task: int, start: Learner | None, learning_rates: Sequence[float]) -> tuple[float, float, Learner]:
        """The best learning rate when nothing is held, the accuracy reached, and the learner."""
        best: tuple[float, float, Learner] | None = None
        for lr in learning_rates:
            accuracy, learner = self._learn(task, start, lr, 0.0)
            if accuracy is not None and (best is None or accuracy > best[1]):
                best = (lr, accuracy, learner)
        if best is None:
            raise DivergedError(f"task {task} diverges with learn.lr = {', '.join(map(str, learning_rates))}: try smaller ones")
        return best

    def _learn(self, task: int, start: Learner | None, lr: float, value: float) -> tuple[float | None, Learner]:
        """Learn one task from a given learner; return its accuracy, or None if it diverges."""
        setup = set_up(self.stream.outline, self.kind, *self.tables, {"learn": {"lr": lr}, "method": {self.option: value}})
        run = Run(self.job, self.stream, setup, on_event=self.on_event)
        if start is not None:
            run.learner = copy.deepcopy(start)
        accuracy: float | None = None
        with suitable_threads(setup.spec, setup.config.learn.batch_size), contextlib.suppress(DivergedError):
            accuracy = run.learn_task(task)
        self.trials.append(Trial(task, lr, value, accuracy))
        return accuracy, run.learner
