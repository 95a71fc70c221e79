"""Several runs of one command: carried out by the executor, pictures added to each folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from afaf.report.pictures import draw_run
from afaf.runs.executor import Job, LocalExecutor, Watch
from afaf.runs.results import Results
from afaf.runs.runner import Listener


class Gather(Watch):
    """Collects the results by seed and shows what happens."""

    def __init__(self, display: Listener):
        self.display = display
        self.results: dict[int, Results] = {}

    def started(self, job: Job) -> Listener:
        return self.display

    def finished(self, job: Job, results: Results) -> None:
        self.results[job.seed] = results
        results.model = None  # it lies in the folder: several at once would fill a GPU
        if results.run is not None:
            draw_run(Path(results.run))


def learn_all(jobs: Sequence[Job], device: str, data: Path | None, display: Listener) -> list[Results]:
    """Carry out the jobs; the first that cannot be done ends them all, with its error."""
    gather = Gather(display)
    at_once = 1 if len(jobs) == 1 else None
    LocalExecutor(device, data=data, jobs_at_once=at_once).carry_out(jobs, gather)
    return [gather.results[job.seed] for job in jobs]
