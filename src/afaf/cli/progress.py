"""The progress of one run, and of many at once."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from afaf.cli.consoles import say
from afaf.runs.events import (
    EpochEnded,
    Event,
    JobFailed,
    JobFinished,
    JobStarted,
    JobStopped,
    OnEvent,
    RunResumed,
    RunStarted,
    TaskEnded,
    TaskStarted,
    Warned,
)
from afaf.runs.job import Job
from afaf.sweeps.outcome import TrialEnded
from afaf.text import duration

NAME, NOTE, LEFT = "{task.description}", "{task.fields[note]}", "left"  # columns of text
WIDE = 104  # characters of a line that can show all numbers of an epoch


class ProgressDisplay(Progress):
    """One run. On a terminal a bar of its epochs and a line for each task; elsewhere only warnings."""

    def __init__(self, console: Console):
        spinner, count, elapsed, left = (
            kind(table_column=Column(no_wrap=True)) for kind in (SpinnerColumn, MofNCompleteColumn, TimeElapsedColumn, TimeRemainingColumn)
        )  # never wrapped: the bar shrinks if there is little room
        columns = (spinner, NAME, BarColumn(28), count, NOTE, elapsed, LEFT, left)
        super().__init__(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.bar = self.add_task("", total=None, note="")
        self.class_names: tuple[str, ...] = ()

    def on_event(self, event: Event) -> None:
        match event:
            case RunStarted(outline=outline, method=method, seed=seed, epochs=epochs):
                self._print(f"[bold]{method}[/] learns [bold]{escape(outline.name)}[/], {len(outline)} tasks, seed {seed}")
                self.reset(self.bar, total=epochs, note="epochs")
            case RunResumed(position=position, epochs_done=epochs):
                self._print(f"  resumed from the last checkpoint: {position}")
                self.advance(self.bar, epochs)
            case TaskStarted(tasks=tasks, class_names=names):
                self.class_names = names
                self.update(self.bar, description=f"task {_span(tasks)}")
            case EpochEnded(report=report):
                epoch = f"epoch {report.epoch + 1} of {report.epochs}  " if self.console.width >= WIDE else ""
                self.update(self.bar, advance=1, note=f"{epoch}loss {report.loss:.3f}  accuracy {report.accuracy:.1f} %")
            case TaskEnded(tasks=tasks, row=row):
                accuracies = "  ".join("  -" if value is None else f"{value:5.1f}" for value in row)
                classes = ", ".join(self.class_names[:4]) + (" ..." if len(self.class_names) > 4 else "")
                label = f"[dim]{escape(f'{classes:<24.24}')}[/]"
                self._print(f"  after task {_span(tasks):<4} {label} accuracy on tasks so far: {accuracies}")
            case Warned(message=message):
                self.console.print(f"  [yellow]warning:[/] {escape(message)}", highlight=False)

    def _print(self, text: str) -> None:
        if self.console.is_terminal:
            self.console.print(text, highlight=False)


class GridDisplay(Progress):
    """Many runs. On a terminal a bar for all of them and one for each in progress; everywhere a line for each run that ends."""

    def __init__(
        self,
        console: Console,
        total: int,
        *,
        already: int = 0,
        jobs_at_once: int = 1,
        seconds_left: Callable[[], float | None] | None = None,
    ):
        columns = (NAME, BarColumn(24), MofNCompleteColumn(), NOTE, TimeElapsedColumn())
        super().__init__(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.total, self.done, self.failed, self.jobs_at_once = total, already, 0, jobs_at_once
        self.seconds_left = seconds_left or self._from_those_done
        self.whole = self.add_task("[bold]all runs[/]", total=total, completed=already, note="")
        self.bars: dict[str, TaskID] = {}
        self.began: dict[str, float] = {}
        self.seconds: list[float] = []  # of runs that ended
        self.messages: set[str] = set()

    def on_event(self, event: Event) -> None:
        name = run_name(event.job)
        match event:
            case JobStarted():
                if name not in self.bars:  # it may start again, after its worker died
                    self.bars[name] = self.add_task(escape(name), total=None, note="loading")
                self.began[name] = time.monotonic()
                self._show_counts()
            case JobFinished(results=results):
                metrics = {"ACC": results.acc, "BWT": results.bwt, "task-IL": results.acc_task_il}
                self.ended(event.job, headline(metrics, results.seconds, len(results.warnings)))
            case JobFailed(error=error):
                self._remove(event.job)
                self.failed += 1
                self._show_counts()
                if str(error) not in self.messages:  # one cause often stops all runs of a stream
                    say(f"not done: {name}: {error}", self.console)
                self.messages.add(str(error))
            case JobStopped():
                self._remove(event.job)
                say(f"stopped before its end: {name}", self.console)
            case Warned(message=message):
                say(f"warning: {name}: {message}", self.console)
            case RunStarted() | RunResumed() | EpochEnded() if name in self.bars:
                self._advance(self.bars[name], event)

    def ended(self, job: Job, outcome: str) -> None:
        """Count a run that ended and print its outcome."""
        self._remove(job)
        self.done += 1
        self._show_counts()
        say(f"[{self.done}/{self.total}] {run_name(job)}: {outcome}; {_time_left(self.seconds_left())}", self.console)

    def _advance(self, bar: TaskID, event: Event) -> None:
        match event:
            case RunStarted(epochs=epochs):
                self.update(bar, total=epochs, completed=0, note="epochs")
            case RunResumed(position=position, epochs_done=epochs):
                self.update(bar, advance=epochs, note=position)
            case EpochEnded(report=report):
                self.update(bar, advance=1, note=f"task {report.task}  loss {report.loss:.3f}")
                self._show_counts()

    def _remove(self, job: Job) -> None:
        name = run_name(job)
        if (bar := self.bars.pop(name, None)) is not None:
            self.remove_task(bar)
        if name in self.began:
            self.seconds.append(time.monotonic() - self.began.pop(name))

    def _show_counts(self) -> None:
        failed = f", {self.failed} failed" if self.failed else ""
        note = f"{len(self.bars)} running, {self.done} done{failed}, {_time_left(self.seconds_left())}"
        self.update(self.whole, completed=self.done, note=note)

    def _from_those_done(self) -> float | None:
        if not self.seconds:
            return None
        left = self.total - self.done - self.failed
        expected = left * statistics.fmean(self.seconds) - sum(time.monotonic() - since for since in self.began.values())
        return max(0.0, expected) / self.jobs_at_once


@contextlib.contextmanager
def trial_display(console: Console, total: int, *, already: int, jobs_at_once: int) -> Iterator[OnEvent]:
    """Many trials of a search; warnings are left out, since poor trials warn."""

    def show(event: Event) -> None:
        if isinstance(event, TrialEnded):
            trial = event.record
            value = "-" if trial.value is None else f"{trial.value:.2f} %"
            stopped = f", stopped after task {len(trial.steps)}" if trial.state == "pruned" else ""
            display.ended(event.job, trial.why if trial.state == "fail" else value + stopped)
        elif not isinstance(event, Warned):
            display.on_event(event)

    with GridDisplay(console, total, already=already, jobs_at_once=jobs_at_once) as display:
        yield show


def headline(metrics: dict[str, float | None], seconds: float, warnings: int) -> str:
    """The numbers of a run in one line."""
    parts = [f"{name} {value:.2f}" for name, value in metrics.items() if value is not None]
    noted = f", {warnings} warning{'s' if warnings > 1 else ''}" if warnings else ""
    return f"{', '.join(parts)}, {seconds:.0f} s{noted}"


def run_name(job: Job) -> str:
    return str(job.tag or job)


def _time_left(seconds: float | None) -> str:
    return "time left unknown" if seconds is None else f"{duration(seconds)} left"


def _span(tasks: tuple[int, ...]) -> str:
    return f"{tasks[0]}" if len(tasks) == 1 else f"{tasks[0]}-{tasks[-1]}"
