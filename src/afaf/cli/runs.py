"""Several runs of one command: carried out by the executor, pictures added to each folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.progress import TaskID

from afaf.cli.progress import ProgressDisplay
from afaf.errors import StoppedError
from afaf.report.pictures import draw_run
from afaf.report.tensorboard import TensorBoard, check_installed
from afaf.runs.folder import RunFolder
from afaf.runs.results import Results
from afaf.runs.runner import Listener, check_typed
from afaf.runs.stop import Stop
from afaf.streams.tasks import Outline
from afaf.sweeps.executor import Job, LocalExecutor, Watch
from afaf.training.report import EpochReport


class Gather(Watch):
    """Collects the results by seed and shows what happens."""

    def __init__(self, display: ProgressDisplay, tensorboard: bool, side_by_side: bool):
        self.display, self.side_by_side = display, side_by_side
        self.results: dict[int, Results] = {}
        self.boards: dict[int, TensorBoard] = {}
        self.tensorboard = tensorboard

    def started(self, job: Job) -> Listener:
        shown = OneBar(self.display) if self.side_by_side else self.display
        if not self.tensorboard or job.out is None:
            return shown
        self.boards[job.seed] = TensorBoard(job.out)
        return Both(shown, self.boards[job.seed])

    def finished(self, job: Job, results: Results) -> None:
        self.results[job.seed] = results
        results.model = None  # it lies in the folder: several at once would fill a GPU
        if results.run is not None:
            draw_run(Path(results.run))
        if job.seed in self.boards:
            self.boards[job.seed].finish(results)


class OneBar(Listener):
    """One of several runs side by side: a single bar over all its epochs."""

    def __init__(self, display: ProgressDisplay):
        self.display = display
        self.bar: TaskID | None = None

    def run_started(self, outline: Outline, method: str, seed: int, epochs: int) -> None:
        name = f"{outline.name} {method}, seed {seed}"
        self.bar = self.display.progress.add_task(name, total=epochs, note="epochs")

    def epoch_ended(self, report: EpochReport) -> None:
        if self.bar is not None:
            note = f"task {report.task}  loss {report.loss:.3f}"
            self.display.progress.update(self.bar, advance=1, note=note)

    def run_resumed(self, where: str, epochs_done: int) -> None:
        if self.bar is not None:
            self.display.progress.update(self.bar, advance=epochs_done, note=where)

    def warned(self, message: str) -> None:
        self.display.warned(message)


class Both(Listener):
    """Tells two listeners what happens."""

    def __init__(self, first: Listener, second: Listener):
        self.listeners = (first, second)

    def run_started(self, outline: Outline, method: str, seed: int, epochs: int) -> None:
        for listener in self.listeners:
            listener.run_started(outline, method, seed, epochs)

    def run_resumed(self, where: str, epochs_done: int) -> None:
        for listener in self.listeners:
            listener.run_resumed(where, epochs_done)

    def lesson_started(self, tasks: tuple[int, ...], class_names: tuple[str, ...]) -> None:
        for listener in self.listeners:
            listener.lesson_started(tasks, class_names)

    def epoch_ended(self, report: EpochReport) -> None:
        for listener in self.listeners:
            listener.epoch_ended(report)

    def lesson_ended(self, tasks: tuple[int, ...], row: list[float | None], row_task_il: list[float | None]) -> None:
        for listener in self.listeners:
            listener.lesson_ended(tasks, row, row_task_il)

    def warned(self, message: str) -> None:
        for listener in self.listeners:
            listener.warned(message)


def learn_all(
    jobs: Sequence[Job], device: str, data: Path | None, display: ProgressDisplay, stop: Stop, *, tensorboard: bool = False
) -> list[Results]:
    """Carry out the jobs; the first that cannot be done ends them all, with its error."""
    if tensorboard:
        check_installed()
    for job in jobs:
        check_typed(job.stream, job.method, job.config, job.settings)
    executor = LocalExecutor(device, data=data, jobs_at_once=1 if len(jobs) == 1 else None, stop=stop)
    for job in jobs:
        if job.out is not None and not job.resume:
            RunFolder.refuse_taken(job.out)  # after all that was typed, and before the data is read
    gather = Gather(display, tensorboard, side_by_side=executor.jobs_at_once > 1)
    executor.carry_out(jobs, gather)
    if stop.asked and len(gather.results) < len(jobs):  # between two runs
        raise StoppedError(f"stopped by {stop.cause}; the runs so far are complete", stop.exit_code)
    return [gather.results[job.seed] for job in jobs]
