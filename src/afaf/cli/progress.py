"""Progress bars of runs on a terminal; without one, only warnings are printed."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from afaf.runs.events import EpochEnded, Event, JobStarted, RunResumed, RunStarted, TaskEnded, TaskStarted, Warned
from afaf.runs.job import Job


class ProgressDisplay:
    """A bar for the stream and one for the current task, with loss, accuracy and time left; a line for each task learned."""

    def __init__(self, console: Console):
        self.console = console
        self.shown = console.is_terminal
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not self.shown,
        )
        self.stream_bar: TaskID | None = None
        self.task_bar: TaskID | None = None
        self.class_names: tuple[str, ...] = ()

    def __enter__(self) -> ProgressDisplay:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.progress.stop()

    def on_event(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._start_run(event)
            case RunResumed(position=position, epochs_done=epochs):
                self._print(f"  resumed from the last checkpoint: {position}")
                if self.stream_bar is not None:
                    self.progress.advance(self.stream_bar, epochs)
            case TaskStarted(tasks=tasks, class_names=names):
                self.task_bar, self.class_names = self._replace(self.task_bar, f"task {_span(tasks)}", None, "preparing"), names
            case EpochEnded(report=report):
                note = f"loss {report.loss:.3f}  accuracy {report.accuracy:.1f} %"
                if self.task_bar is not None:
                    self.progress.update(self.task_bar, total=report.epochs, completed=report.epoch + 1, note=note)
                if self.stream_bar is not None:
                    self.progress.advance(self.stream_bar)
            case TaskEnded(tasks=tasks, row=row):
                accuracies = "  ".join("  -" if value is None else f"{value:5.1f}" for value in row)
                classes = ", ".join(self.class_names[:4]) + (" ..." if len(self.class_names) > 4 else "")
                label = f"[dim]{escape(f'{classes:<24.24}')}[/]"
                self._print(f"  after task {_span(tasks):<4} {label} accuracy on tasks so far: {accuracies}")
            case Warned(message=message):
                self.console.print(f"  [yellow]warning:[/] {escape(message)}", highlight=False)

    def _start_run(self, event: RunStarted) -> None:
        stream = f"[bold]{escape(event.outline.name)}[/], {len(event.outline)} tasks"
        self._print(f"[bold]{event.method}[/] learns {stream}, seed {event.seed}")
        if self.task_bar is not None:
            self.progress.remove_task(self.task_bar)
        self.stream_bar, self.task_bar = self._replace(self.stream_bar, "stream", event.epochs, "epochs"), None

    def _replace(self, bar: TaskID | None, name: str, total: int | None, note: str) -> TaskID:
        if bar is not None:
            self.progress.remove_task(bar)
        return self.progress.add_task(name, total=total, note=note)

    def _print(self, text: str) -> None:
        if self.shown:
            self.console.print(text, highlight=False)


class RunBars:
    """A bar for each of several runs at once, over the epochs of all its tasks."""

    def __init__(self, progress: Progress):
        self.progress = progress
        self.bars: dict[str, TaskID] = {}

    def on_event(self, event: Event) -> None:
        name = run_name(event.job)
        if isinstance(event, JobStarted):
            self.bars[name] = self.progress.add_task(escape(name), total=None, note="loading")
        if name not in self.bars:
            return
        bar = self.bars[name]
        match event:
            case RunStarted(epochs=epochs):
                self.progress.update(bar, total=epochs, note="epochs")
            case RunResumed(position=position, epochs_done=epochs):
                self.progress.update(bar, advance=epochs, note=position)
            case EpochEnded(report=report):
                self.progress.update(bar, advance=1, note=f"task {report.task}  loss {report.loss:.3f}")

    def remove(self, job: Job) -> None:
        if (bar := self.bars.pop(run_name(job), None)) is not None:
            self.progress.remove_task(bar)


def run_name(job: Job) -> str:
    return str(job.tag or job)


def _span(tasks: tuple[int, ...]) -> str:
    return f"{tasks[0]}" if len(tasks) == 1 else f"{tasks[0]}-{tasks[-1]}"
