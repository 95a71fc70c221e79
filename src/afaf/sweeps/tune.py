"""The search for the strongest trade-off of a method, without later tasks and never on test images.

The protocol is FACIL's (Masana et al., *Class-incremental learning: survey and performance evaluation*, 2020), the continual
hyper-parameter framework of De Lange et al.:

1. *Highest plasticity first*: the current task is learned with a trade-off of 0 and each learning rate; the best accuracy is the reference.
2. *Then the strongest stability that keeps it*: from the strongest trade-off downwards, each a `decay` of the one before, the task is
   learned again from the same start, until its accuracy is within a `tolerance` of the reference.

Accuracy is task-IL on the validation part of the current task. The second task is the first with a past to protect. A trial is a run of one
more task, from the checkpoint of the trial that was chosen for the task before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, repeat
from operator import mul
from pathlib import Path
from typing import Annotated, Any

import torch

from afaf.bounds import Count, Portion, Positive, Within
from afaf.checked import build
from afaf.errors import ConfigError, DivergedError, RunError, StoppedError
from afaf.methods import find_method, method_names
from afaf.runs.checkpoint import Restored, load_checkpoint
from afaf.runs.config import build_config
from afaf.runs.events import Event, JobFailed, JobFinished, JobStarted, JobStopped, OnEvent, ignore
from afaf.runs.folder import checkpoints_in
from afaf.runs.job import Job
from afaf.runs.presets import with_presets
from afaf.runs.progress import Position, RunState
from afaf.sweeps.executor import Executor
from afaf.sweeps.outcome import (
    TRIALS,
    Outcome,
    TrialEnded,
    TrialRecord,
    describe_search,
    discard_weights,
    judged_on,
    read_outcome,
    write_outcome,
)
from afaf.sweeps.space import Range

OBJECTIVE = "task-IL accuracy on a task's own validation images; the strongest trade-off that keeps it is chosen"


@dataclass(frozen=True)
class Trial:
    """One task learned once: learning rate, trade-off and accuracy (None: it diverged)."""

    task: int
    lr: float
    value: float
    accuracy: float | None = None  # task-IL, percent, on the task's validation part

    def __str__(self) -> str:
        return f"task {self.task}: learn.lr={self.lr:g}, trade-off {self.value:g}"


@dataclass(frozen=True)
class Tuned:
    """The result: `values[i]` is the trade-off of task i + 2, and `value` is the last one."""

    stream: str
    method: str
    option: str
    value: float
    lr: float
    within: bool  # whether `value` keeps the accuracy within the tolerance; if not, no tried value does
    values: list[float]
    tolerance: float
    trials: list[Trial]
    settings: dict[str, Any] = field(default_factory=dict)  # to add to the settings of the search: `value` and related ones

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Search:
    """The tasks and learning rates, the strengths tried, strongest first, and how far below the best a task's accuracy may fall."""

    start: Positive | None = None  # None: the method's own
    decay: Annotated[float, Within(0, 1, above=True, below=True)] = 0.5
    searches: Count = 12
    tolerance: Portion = 0.2  # of the best accuracy: 0.2 of 95 % lets it fall to 76 %
    tasks: Count = 2
    learning_rates: list[Positive] = field(default_factory=list)  # none: that of the settings

    @property
    def values(self) -> list[float]:
        return list(accumulate(repeat(self.decay, self.searches - 1), mul, initial=self.start or 0.0))

    @property
    def most_trials(self) -> int:
        return self.tasks * max(1, len(self.learning_rates)) + (self.tasks - 1) * self.searches

    def keeps(self, accuracy: float | None, best: float) -> bool:
        return accuracy is not None and accuracy >= (1 - self.tolerance) * best

    def strongest(self, accuracies: Sequence[float | None], best: float) -> int | None:
        """The index of the first accuracy within the tolerance of the best, or of the last value; None if more must be tried."""
        for place, accuracy in enumerate(accuracies):
            if self.keeps(accuracy, best):
                return place
        return self.searches - 1 if len(accuracies) == self.searches else None


class Stability:
    """The search in a folder with sweep.json, best.toml and trials/, as in other searches."""

    def __init__(self, job: Job, search: Search, folder: Path):
        job.check()
        kind, n_tasks = job.method_class, len(job.outline())
        if kind.tradeoff is None:
            tunable = [name for name in method_names() if find_method(name).tradeoff is not None]
            raise ConfigError(f"method '{kind.name}' has no trade-off to tune; those that have: {', '.join(tunable)}")
        self.search: Search = build(Search, {**asdict(search), "start": kind.tradeoff_from if search.start is None else search.start})
        if not 2 <= search.tasks <= n_tasks:
            raise ConfigError(f"tasks = {search.tasks}: from 2, the first with earlier tasks to protect, to the {n_tasks} of the stream")
        self.job, self.option, self.folder = job, f"method.{kind.tradeoff}", folder.absolute()
        space = {self.option: Range(0.0, self.search.start)}
        space |= {"learn.lr": Range(choices=search.learning_rates)} if search.learning_rates else {}
        more = {"decay": search.decay, "tolerance": search.tolerance}
        self.about = describe_search(self.folder, job, OBJECTIVE, space, search.tasks, **more)
        self.stream = job.open()
        given = build_config(kind.Options, *with_presets(self.stream.outline, kind, job.tables))  # the preset of the whole stream
        self.lr = given.learn.lr
        self.belonging = {f"method.{name}": value for name, value in kind(given.method, given.settings).tuned_with().items()}
        self.settings = {**given.to_dict(), **judged_on(given.run.validation), **self.belonging}
        stored = read_outcome(self.folder)[1].trials  # of an earlier call
        self.known = {Trial(len(one.steps), one.settings["learn.lr"], one.settings[self.option]): one.value for one in stored}
        self.running: dict[Trial, Job] = {}
        self.emit: OnEvent = ignore
        self.within = True

    def carry_out(self, executor: Executor, on_event: OnEvent = ignore) -> Tuned:
        """Run the trials not known from an earlier call; several strengths at once if the executor has room."""
        self.emit, path, chosen = on_event, list[Trial](), list[Trial]()
        executor.carry_out(self._next_jobs(executor, path, chosen), self._handle)
        if len(chosen) < self.search.tasks:  # stopped between two trials
            raise StoppedError(f"stopped by {executor.stop.cause}; the trials so far are kept", executor.stop.exit_code)
        return self._result(path, chosen)

    def _next_jobs(self, executor: Executor, path: list[Trial], chosen: list[Trial]) -> Iterator[Job | None]:
        """Add the trials that count to `path`, and for each task the trial that the next task starts from to `chosen`."""
        search = self.search
        for task in range(1, search.tasks + 1):
            plastic = [Trial(task, lr, 0.0) for lr in search.learning_rates or [self.lr]]
            yield from self._try(plastic, chosen)
            best = max(plastic, key=lambda trial: (self.known[trial] is not None, self.known[trial] or 0.0))
            reference = self.known[best]
            if reference is None:
                raise DivergedError(f"task {task} diverges with learn.lr = {', '.join(str(t.lr) for t in plastic)}: try smaller ones")
            path += plastic
            if task > 1:
                tried = [Trial(task, best.lr, value) for value in search.values]
                yield from self._try(tried, chosen, reference)
                for job in list(self.running.values()):  # trials of weaker values
                    executor.cancel(job)
                path += tried[: (search.strongest(self._accuracies(tried), reference) or 0) + 1]
                self.within = self.within and search.keeps(self.known[path[-1]], reference)
            chosen.append(path[-1] if task > 1 else best)

    def _try(self, tried: Sequence[Trial], chosen: Sequence[Trial], best: float | None = None) -> Iterator[Job | None]:
        """Jobs for trials of unknown accuracy, until one is near the best; None while that depends on a trial in progress."""

        def decided() -> bool:
            accuracies = self._accuracies(tried)
            return len(accuracies) == len(tried) if best is None else self.search.strongest(accuracies, best) is not None

        for trial in tried:
            if trial not in self.known and not decided():
                yield self._job(trial, chosen)
        while not decided():
            yield None

    def _accuracies(self, tried: Sequence[Trial]) -> list[float | None]:
        """The accuracies of the trials before the first unknown one."""
        unknown = next((place for place, trial in enumerate(tried) if trial not in self.known), len(tried))
        return [self.known[trial] for trial in tried[:unknown]]

    def _job(self, trial: Trial, chosen: Sequence[Trial]) -> Job:
        settings = {**self.settings, "learn.lr": trial.lr, self.option: trial.value}
        start = None
        if chosen:
            restored = self._reached(chosen[-1])
            if restored is None:
                raise RunError(f"{self._folder(chosen[-1])} has lost its checkpoints: choose another folder with --out")
            start = RunState.of(restored.position.tasks, restored.learner, restored.progress)
        how: dict[str, Any] = {"stream": self.stream[: self.search.tasks], "settings": settings, "config": None, "out": self._folder(trial)}
        return replace(self.job, **how, resume=True, start=start, until=trial.task, tag=trial)

    def _folder(self, trial: Trial) -> Path:
        return self.folder / TRIALS / f"{trial.task}-{trial.lr!r}-{trial.value!r}"

    def _reached(self, trial: Trial) -> Restored | None:
        """The state after the trial's task, if it got there."""
        paths = checkpoints_in(self._folder(trial))
        restored = load_checkpoint(paths[-1], torch.device("cpu")) if paths else None
        return restored if restored is not None and restored.position == Position(trial.task) else None

    def _handle(self, event: Event) -> None:
        trial = event.job.tag
        if isinstance(event, JobStarted):
            self.running[trial] = event.job
        if not isinstance(event, (JobFinished, JobStopped, JobFailed)):
            self.emit(event)
            return
        self.running.pop(trial, None)
        if isinstance(event, JobFailed) and not isinstance(event.error, DivergedError):
            raise event.error
        restored = self._reached(trial)
        if restored is None and not isinstance(event, JobFailed):
            self.emit(event)
            return
        self.known[trial] = None if restored is None else restored.progress.R_task_il[trial.task - 1][trial.task - 1]
        outcome = self._outcome(list(self.known))
        write_outcome(self.folder, self.about, outcome)
        self.emit(TrialEnded(event.job, outcome.trials[-1]))

    def _outcome(self, path: Sequence[Trial], chosen: Mapping[str, Any] | None = None) -> Outcome:
        """Trials in the form of other searches; the last one is the best, with the chosen settings."""
        records = []
        for number, trial in enumerate(path):
            accuracy, settings = self.known[trial], {self.option: trial.value, "learn.lr": trial.lr}
            state, why = ("fail", "diverged") if accuracy is None else ("complete", "")
            records.append(TrialRecord(number, state, accuracy, settings, [*[None] * (trial.task - 1), accuracy], why=why))
        records[-1].settings.update(chosen or {})
        return Outcome(records, chosen=None if chosen is None else len(records) - 1)

    def _result(self, path: Sequence[Trial], chosen: Sequence[Trial]) -> Tuned:
        last, values = chosen[-1], [trial.value for trial in chosen[1:]]
        settings = {self.option: last.value, **self.belonging, **({} if last.lr == self.lr else {"learn.lr": last.lr})}
        write_outcome(self.folder, self.about, self._outcome(path, settings))
        for folder in (self.folder / TRIALS).glob("*"):
            if folder not in map(self._folder, chosen):  # the chosen ones allow more values to be tried
                discard_weights(folder)
        trials = [replace(trial, accuracy=self.known[trial]) for trial in path]
        names = self.stream.name, self.job.method_class.name, self.option
        return Tuned(*names, last.value, last.lr, self.within, values, self.search.tolerance, trials, settings)
