"""The runs of one `afaf run` command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from afaf.cli.progress import ProgressDisplay, RunBars
from afaf.errors import StoppedError
from afaf.report.pictures import draw_run
from afaf.report.tensorboard import TensorBoard, check_installed
from afaf.runs.events import Event, JobFinished, JobStarted, OnEvent, Warned, raise_failure, to_all
from afaf.runs.folder import RunFolder
from afaf.runs.job import Job
from afaf.runs.results import Results
from afaf.runs.stop import StopToken
from afaf.sweeps.executor import LocalExecutor


def run_all(jobs: Sequence[Job], display: ProgressDisplay, stop: StopToken, *, tensorboard: bool = False) -> list[Results]:
    """Carry out jobs that differ in their seed; the first failure ends them all."""
    if tensorboard:
        check_installed()
    for job in jobs:
        job.check()
    executor = LocalExecutor(jobs[0].device, jobs_at_once=1 if len(jobs) == 1 else None, stop=stop)
    for job in jobs:
        if job.folder is not None and not job.resume:
            RunFolder.refuse_taken(job.folder)  # before the data is read
    collected = _Collector(tensorboard)
    shown = display.on_event if executor.jobs_at_once == 1 else _side_by_side(display)
    executor.carry_out(jobs, to_all(shown, collected.on_event, raise_failure))
    if stop.asked and len(collected.results) < len(jobs):  # between two runs
        raise StoppedError(f"stopped by {stop.cause}; the runs so far are complete", stop.exit_code)
    return [collected.results[job.seed] for job in jobs]


class _Collector:
    """Collects results by seed; draws each run's pictures and writes its TensorBoard file."""

    def __init__(self, tensorboard: bool):
        self.tensorboard = tensorboard
        self.results: dict[int, Results] = {}
        self.boards: dict[int, TensorBoard] = {}

    def on_event(self, event: Event) -> None:
        seed = event.job.seed
        if isinstance(event, JobStarted) and self.tensorboard and event.job.folder is not None:
            self.boards[seed] = TensorBoard(event.job.folder)
        if seed in self.boards:
            self.boards[seed].on_event(event)
        if not isinstance(event, JobFinished):
            return
        results = self.results[seed] = event.results
        results.model = None  # it is in the folder: several at once would fill a GPU
        if results.run is not None:
            draw_run(Path(results.run))
        if seed in self.boards:
            self.boards[seed].finish(results)


def _side_by_side(display: ProgressDisplay) -> OnEvent:
    bars = RunBars(display.progress)

    def on_event(event: Event) -> None:
        bars.on_event(event)
        if isinstance(event, Warned):
            display.on_event(event)

    return on_event
