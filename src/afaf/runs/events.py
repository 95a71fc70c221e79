"""The events of runs, as data. Progress bars, TensorBoard and the results store are functions of an event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from afaf.runs.job import Job
from afaf.runs.progress import Row, RunState
from afaf.runs.results import Results
from afaf.streams.tasks import Outline
from afaf.training.report import EpochReport


@dataclass(frozen=True)
class Event:
    job: Job


@dataclass(frozen=True)
class RunStarted(Event):
    outline: Outline
    method: str
    seed: int
    epochs: int  # of the whole run


@dataclass(frozen=True)
class RunResumed(Event):
    position: str
    epochs_done: int


@dataclass(frozen=True)
class TaskStarted(Event):
    """`tasks` holds one number, or those of all tasks for joint training."""

    tasks: tuple[int, ...]
    class_names: tuple[str, ...]


@dataclass(frozen=True)
class EpochEnded(Event):
    report: EpochReport


@dataclass(frozen=True)
class TaskEnded(Event):
    """Accuracies on all tasks so far: class-IL and task-IL."""

    tasks: tuple[int, ...]
    row: Row
    row_task_il: Row


@dataclass(frozen=True)
class StateReached(Event):
    """The run has learned the tasks of `job.snapshot_after`."""

    state: RunState


@dataclass(frozen=True)
class Warned(Event):
    message: str


@dataclass(frozen=True)
class JobStarted(Event):
    """An executor begins a job; its data may still have to be loaded."""


@dataclass(frozen=True)
class JobFinished(Event):
    """`measured` is the value of the executor's `measure` function."""

    results: Results
    measured: Any = None


@dataclass(frozen=True)
class JobFailed(Event):
    error: Exception


@dataclass(frozen=True)
class JobStopped(Event):
    """The job ended early because of `job.until`, a deadline, a stop request or another job's error."""


OnEvent = Callable[[Event], None]


def ignore(event: Event) -> None:
    """An `on_event` that does nothing."""


def raise_failure(event: Event) -> None:
    """An `on_event` that ends all jobs at the first failure."""
    if isinstance(event, JobFailed):
        raise event.error


def to_all(*consumers: OnEvent) -> OnEvent:
    """Pass each event to several consumers, in order."""

    def on_event(event: Event) -> None:
        for consumer in consumers:
            consumer(event)

    return on_event
