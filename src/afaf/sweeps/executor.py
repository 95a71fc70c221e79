"""One way to run many runs. An executor is handed jobs and tells what becomes of them; `local` is this machine."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from afaf.errors import StoppedError
from afaf.runs.device import find_device
from afaf.runs.results import Results
from afaf.runs.resume import run_or_resume
from afaf.runs.runner import Listener, method_class, open_with, run, settings_table
from afaf.runs.shared_prefix import Beginning, Beginnings
from afaf.runs.stop import Stop
from afaf.streams.tasks import Outline, Stream
from afaf.training.cuda.streams import CAPTURE_LOCK
from afaf.training.report import EpochReport

UNUSED = 0.2  # of a GPU's memory that may be set aside, yet hold nothing, when a run begins
SIDE_BY_SIDE = {"cuda": 4}  # runs that share a device unless told otherwise; a CPU's cores already share out one run


@dataclass(frozen=True)
class Job:
    """One run to be done."""

    stream: str
    method: str
    seed: int = 0
    settings: Mapping[str, Any] | Sequence[str] | None = None
    config: Path | None = None
    out: Path | None = None  # the run folder, where one is wanted
    resume: bool = False  # go on with what the folder holds already
    beginning: Beginning | None = None  # to go on from, instead of from the first task; only where no folder is wanted
    tag: Hashable = None  # what the asker knows it by


class Watch:
    """Told what becomes of the jobs, one call at a time; a display or a store of results overrides what it wants to know."""

    def started(self, job: Job) -> Listener:
        return Listener()

    def learned(self, job: Job, results: Results) -> None:
        """In the run's own thread, while others go on: for what is still to be computed before its results are told."""

    def finished(self, job: Job, results: Results) -> None: ...

    def failed(self, job: Job, error: Exception) -> None:
        raise error

    def stopped(self, job: Job) -> None:
        """The job was given up before its end, because everything was stopped."""


class Executor(Protocol):
    """Carries out jobs. They are taken from `jobs` one by one as there is room, so that the iterator may decide late what comes next.

    None instead of a job says that the next one needs what a job in progress will give: it is asked for again a little later.
    """

    def carry_out(self, jobs: Iterable[Job | None], watch: Watch) -> None: ...


class Stopped(Exception):
    """Ends a run at the end of an epoch."""


class LocalExecutor:
    """This machine: on a GPU several runs side by side, each a thread with a CUDA stream of its own; on a CPU one after the other.

    A stream's data is loaded once and shared. After `deadline` (in seconds of time.monotonic) runs in progress are given up; once `stop`
    is asked they save themselves and end in a StoppedError, which ends everything.
    """

    def __init__(
        self,
        device: str = "auto",
        *,
        data: str | Path | None = None,
        jobs_at_once: int | None = None,
        deadline: float | None = None,
        stop: Stop | None = None,
    ):
        self.device = find_device(device)
        self.data = data
        self.jobs_at_once = jobs_at_once or SIDE_BY_SIDE.get(self.device.type, 1)
        self.deadline, self.stop = deadline, stop or Stop()
        self.beginnings: Beginnings | None = None  # where runs without a folder leave theirs
        self._stop = threading.Event()
        self._telling, self._opening = threading.Lock(), threading.Lock()
        self._streams: dict[str, Stream] = {}
        self._thread = threading.local()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set() or (self.deadline is not None and time.monotonic() >= self.deadline)

    def carry_out(self, jobs: Iterable[Job | None], watch: Watch) -> None:
        self._stop.clear()
        left = iter(jobs)
        if self.jobs_at_once == 1:
            for job in filter(None, left):
                if self.stopping or self.stop.asked:
                    return
                self._do(job, watch)
            return
        with ThreadPoolExecutor(self.jobs_at_once, thread_name_prefix="run") as threads:
            try:
                self._keep_busy(threads, left, watch)
            except StoppedError:  # the others have been asked, too
                raise
            except BaseException:  # an interrupt too: those in progress end with their epoch
                self._stop.set()
                raise

    def _keep_busy(self, threads: ThreadPoolExecutor, left: Iterator[Job | None], watch: Watch) -> None:
        """As many jobs in progress as there is room for; the next is asked for when one has ended."""
        running: set[Future[None]] = set()
        while True:
            while len(running) < self.jobs_at_once and not self.stopping and not self.stop.asked:
                job = next(left, None)
                if job is None:
                    break
                running.add(threads.submit(self._do, job, watch))
            if not running:
                return
            done, running = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()

    def _do(self, job: Job, watch: Watch) -> None:
        with self._telling:
            listener = watch.started(job)
        try:
            with self._own_stream():
                self._make_room()
                results = self._run(job, _Stoppable(listener, self._telling, lambda: self.stopping))
                watch.learned(job, results)
        except (Stopped, StoppedError) as reason:
            with self._telling:
                watch.stopped(job)
            if isinstance(reason, StoppedError):
                raise
            return
        except Exception as error:
            with self._telling:
                watch.failed(job, error)
            return
        with self._telling:
            watch.finished(job, results)

    def _run(self, job: Job, listener: Listener) -> Results:
        method_class(job.method)  # a name that is none is said before any data is read
        stream = self.stream_of(job)
        given: dict[str, Any] = {"seed": job.seed, "device": str(self.device), "config": job.config, "settings": job.settings}
        given |= {"data": self.data, "listener": listener, "stop": self.stop}
        if job.resume and job.out is not None:
            return run_or_resume(stream, job.method, out=job.out, **given)
        return run(stream, job.method, out=job.out, beginning=job.beginning, beginnings=self.beginnings, **given)

    def stream_of(self, job: Job) -> Stream:
        """The data a job learns from, loaded once."""
        tables = settings_table(job.config, job.settings)
        key = json.dumps([job.stream, [table["stream"] for table in tables if "stream" in table]], default=str)
        with self._opening:
            if key not in self._streams:
                self._streams[key] = open_with(job.stream, tables, self.data)
            return self._streams[key]

    def _make_room(self) -> None:
        """Give back memory of a GPU that no run holds: what the streams of one thread have set aside is of no use to those of another."""
        if self.device.type != "cuda":
            return
        unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        if unused > torch.cuda.get_device_properties(self.device).total_memory * UNUSED:
            with CAPTURE_LOCK.shared(), CAPTURE_LOCK.exclusive():
                torch.cuda.empty_cache()

    @contextlib.contextmanager
    def _own_stream(self) -> Iterator[None]:
        """What this thread puts on the GPU does not wait for what others do."""
        if self.device.type != "cuda" or self.jobs_at_once == 1:
            yield
            return
        if not hasattr(self._thread, "stream"):  # one for each thread, not for each job: memory once freed stays with its stream
            self._thread.stream = torch.cuda.Stream(self.device)
        with torch.cuda.device(self.device), torch.cuda.stream(self._thread.stream):
            yield


class _Stoppable(Listener):
    """Passes on what happens, one thread at a time, and ends the run when everything is to stop."""

    def __init__(self, inner: Listener, lock: threading.Lock, stopping: Callable[[], bool]):
        self.inner, self.lock, self.stopping = inner, lock, stopping

    def run_started(self, outline: Outline, method: str, seed: int, epochs: int) -> None:
        with self.lock:
            self.inner.run_started(outline, method, seed, epochs)

    def run_resumed(self, where: str, epochs_done: int) -> None:
        with self.lock:
            self.inner.run_resumed(where, epochs_done)

    def lesson_started(self, tasks: tuple[int, ...], class_names: tuple[str, ...]) -> None:
        with self.lock:
            self.inner.lesson_started(tasks, class_names)

    def epoch_ended(self, report: EpochReport) -> None:
        with self.lock:
            self.inner.epoch_ended(report)
        if self.stopping():
            raise Stopped

    def lesson_ended(self, tasks: tuple[int, ...], row: list[float | None], row_task_il: list[float | None]) -> None:
        with self.lock:
            self.inner.lesson_ended(tasks, row, row_task_il)

    def warned(self, message: str) -> None:
        with self.lock:
            self.inner.warned(message)
