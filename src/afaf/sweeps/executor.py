"""Many runs. An executor carries out jobs and emits events about them; `LocalExecutor` uses this process, `RayExecutor` a cluster."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, Protocol

import torch

from afaf.cluster import is_cluster
from afaf.errors import StoppedError
from afaf.runs.device import device_name, find_device
from afaf.runs.events import Event, JobFailed, JobFinished, JobStarted, JobStopped, OnEvent
from afaf.runs.job import Job
from afaf.runs.results import Results
from afaf.runs.resume import run_or_resume
from afaf.runs.stop import StopToken
from afaf.streams.tasks import Stream
from afaf.training.cuda.streams import CAPTURE_LOCK

UNUSED = 0.2  # largest share of a GPU's memory that may be reserved but unallocated when a run begins
SIDE_BY_SIDE = {"cuda": 4}  # default number of runs at once on a device; elsewhere 1, since one run uses all cores of a CPU

Measure = Callable[[Job, Results, Stream, torch.device], Any]  # a module-level function, since other processes call it, too


class Executor(Protocol):
    """Carries out jobs and emits events, one at a time.

    `jobs` is asked for the next job whenever there is room, so it may decide late. None means that the next job depends on one in
    progress; it is asked again a little later. `measure` runs where the job ran; its value is part of JobFinished. At `deadline` (seconds
    of time.monotonic) runs in progress are stopped; once `stop` is asked, they are saved and `carry_out` raises StoppedError.
    """

    device: torch.device
    device_name: str
    deadline: float | None
    stop: StopToken
    shares_memory: bool  # whether a state that one run has reached can be handed to another

    @property
    def jobs_at_once(self) -> int: ...

    def carry_out(self, jobs: Iterable[Job | None], on_event: OnEvent, measure: Measure | None = None) -> None: ...

    def cancel(self, job: Job) -> None:
        """Stop the job of an event; it ends with JobStopped after its epoch, or with JobFinished if that was its last."""

    def stream_of(self, job: Job) -> Stream: ...

    def close(self) -> None: ...


def find_executor(
    on: str, device: str, *, jobs_at_once: int | None = None, deadline: float | None = None, stop: StopToken | None = None
) -> Executor:
    """`local`, `ray` (a cluster on this machine) or `ray:HOST:PORT` (an existing cluster)."""
    if not is_cluster(on):
        return LocalExecutor(device, jobs_at_once=jobs_at_once, deadline=deadline, stop=stop)
    from afaf.sweeps.ray_executor import RayExecutor

    return RayExecutor(on, device, jobs_at_once=jobs_at_once, deadline=deadline, stop=stop)


class OpenStreams:
    """The streams of jobs, each opened once. Safe to use from several threads."""

    def __init__(self) -> None:
        self._streams: dict[str, Stream] = {}
        self._lock = threading.Lock()

    def of(self, job: Job) -> Stream:
        if isinstance(job.stream, Stream):
            return job.stream
        key = stream_key(job)
        with self._lock:
            if key not in self._streams:
                self._streams[key] = job.open()
            return self._streams[key]


def stream_key(job: Job) -> str:
    """A key that is equal for jobs with the same stream, split in the same way."""
    if isinstance(job.stream, Stream):
        return f"{id(job.stream)}"
    return json.dumps([job.stream, job.data, [table["stream"] for table in job.tables if "stream" in table]], default=str)


def in_threads(jobs: Iterable[Job | None], do: Callable[[Job], None], threads: int, room: Callable[[], int], stop: StopToken) -> None:
    """Do each job in a thread, as many at once as there is `room` for. An error ends them all; those in progress finish their epoch."""
    left, running = iter(jobs), set[Future[None]]()
    with ThreadPoolExecutor(threads, thread_name_prefix="run") as pool:
        try:
            while True:
                while not stop.asked and len(running) < room() and (job := next(left, None)) is not None:
                    running.add(pool.submit(do, job))
                if not running:
                    return
                done, running = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
        except BaseException:  # also KeyboardInterrupt
            if not stop.asked:
                stop.ask()
            raise


class LocalExecutor:
    """This machine: several runs at once on a GPU, each in a thread with its own CUDA stream; one after the other on a CPU.

    `device` replaces that of the jobs.
    """

    shares_memory = True

    def __init__(
        self, device: str = "auto", *, jobs_at_once: int | None = None, deadline: float | None = None, stop: StopToken | None = None
    ):
        self.device = find_device(device)
        self.device_name = device_name(self.device)
        self.jobs_at_once = jobs_at_once or SIDE_BY_SIDE.get(self.device.type, 1)
        self.deadline, self.stop = deadline, stop or StopToken()
        self.stream_of = OpenStreams().of
        self._events = threading.Lock()
        self._cancelled: dict[int, StopToken] = {}  # by the id of the job in progress
        self._thread = threading.local()

    def carry_out(self, jobs: Iterable[Job | None], on_event: OnEvent, measure: Measure | None = None) -> None:
        stop = StopToken(self.stop, self.deadline)

        def do(job: Job) -> None:
            self._do(replace(job, device=str(self.device)), on_event, measure, StopToken(stop))

        if self.jobs_at_once > 1:
            in_threads(jobs, do, self.jobs_at_once, lambda: self.jobs_at_once, stop)
            return
        for job in filter(None, jobs):
            if stop.asked:
                return
            do(job)

    def cancel(self, job: Job) -> None:
        self._cancelled.get(id(job), StopToken()).ask()  # it may have ended already

    def close(self) -> None: ...

    def _do(self, job: Job, on_event: OnEvent, measure: Measure | None, stop: StopToken) -> None:
        def emit(event: Event) -> None:
            with self._events:
                on_event(replace(event, job=job))  # a resumed run has a job of its own

        self._cancelled[id(job)] = stop
        emit(JobStarted(job))
        try:
            with self._own_stream():
                self._free_memory()
                job.method_class  # noqa: B018  (an unknown name is reported before any data is read)
                stream = self.stream_of(job)
                results = run_or_resume(job, on_event=emit, stop=stop, stream=stream)
                measured = None if measure is None else measure(job, results, stream, self.device)
        except StoppedError:
            emit(JobStopped(job))
            if self.stop.asked:
                raise
        except Exception as error:
            emit(JobFailed(job, error))
        else:
            emit(JobFinished(job, results, measured))
        finally:
            del self._cancelled[id(job)]

    def _free_memory(self) -> None:
        """Release unallocated GPU memory: PyTorch reserves it for one CUDA stream, and other threads use others."""
        if self.device.type != "cuda":
            return
        unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        if unused > torch.cuda.get_device_properties(self.device).total_memory * UNUSED:
            with CAPTURE_LOCK.shared(), CAPTURE_LOCK.exclusive():
                torch.cuda.empty_cache()

    @contextlib.contextmanager
    def _own_stream(self) -> Iterator[None]:
        """A CUDA stream of this thread's own, so that its work does not wait for other threads'."""
        if self.device.type != "cuda" or self.jobs_at_once == 1:
            yield
            return
        if not hasattr(self._thread, "stream"):  # one for each thread, not for each job: freed memory stays with its stream
            self._thread.stream = torch.cuda.Stream(self.device)
        with torch.cuda.device(self.device), torch.cuda.stream(self._thread.stream):
            yield
