"""What a terminal shows while a stream is learned; where there is no terminal, nothing."""

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

from afaf.runs.runner import Listener
from afaf.streams.tasks import Outline
from afaf.training.report import EpochReport


class ProgressDisplay(Listener):
    """A bar for the whole stream and one for the task at hand, with loss, accuracy and time left; a line for each task learned."""

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
        self.whole: TaskID | None = None
        self.lesson: TaskID | None = None
        self.names: tuple[str, ...] = ()

    def __enter__(self) -> ProgressDisplay:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.progress.stop()

    def run_started(self, outline: Outline, method: str, seed: int, epochs: int) -> None:
        for bar in (self.whole, self.lesson):
            if bar is not None:
                self.progress.remove_task(bar)
        if self.shown:
            self.console.print(
                f"[bold]{method}[/] learns [bold]{escape(outline.name)}[/], {len(outline)} tasks, seed {seed}", highlight=False
            )
        self.whole = self.progress.add_task("stream", total=epochs, note="epochs")
        self.lesson = None

    def run_resumed(self, where: str, epochs_done: int) -> None:
        if self.shown:
            self.console.print(f"  going on from the last checkpoint: {where}", highlight=False)
        if self.whole is not None:
            self.progress.advance(self.whole, epochs_done)

    def lesson_started(self, tasks: tuple[int, ...], class_names: tuple[str, ...]) -> None:
        if self.lesson is not None:
            self.progress.remove_task(self.lesson)
        self.names = class_names
        name = f"task {tasks[0]}" if len(tasks) == 1 else f"tasks {tasks[0]}-{tasks[-1]}"
        self.lesson = self.progress.add_task(name, total=None, note="preparing")

    def epoch_ended(self, report: EpochReport) -> None:
        note = f"loss {report.loss:.3f}  accuracy {report.accuracy:.1f} %"
        if self.lesson is not None:
            self.progress.update(self.lesson, total=report.epochs, completed=report.epoch + 1, note=note)
        if self.whole is not None:
            self.progress.advance(self.whole)

    def lesson_ended(self, tasks: tuple[int, ...], row: list[float | None], row_task_il: list[float | None]) -> None:
        if not self.shown:
            return
        seen = "  ".join("  -" if value is None else f"{value:5.1f}" for value in row)
        names = ", ".join(self.names[:4]) + (" ..." if len(self.names) > 4 else "")
        label = f"{tasks[0]}" if len(tasks) == 1 else f"{tasks[0]}-{tasks[-1]}"
        self.console.print(f"  after task {label:<4} [dim]{escape(f'{names:<24.24}')}[/] accuracy on tasks so far: {seen}", highlight=False)

    def warned(self, message: str) -> None:
        self.console.print(f"  [yellow]warning:[/] {escape(message)}", highlight=False)
