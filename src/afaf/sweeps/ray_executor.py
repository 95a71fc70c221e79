"""Runs on a Ray cluster: warm worker processes, one run at a time each; the driver alone records results."""

from __future__ import annotations

import contextlib
import itertools
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from afaf.cluster import FIRST_WORKER, connect, has_gpus, room, share, warn_of_no_worker
from afaf.errors import ConfigError, DataError, LockedError, RunError, StoppedError
from afaf.files.urls import is_url
from afaf.runs.events import Event, JobFailed, JobFinished, JobStopped, OnEvent, Warned
from afaf.runs.job import Job
from afaf.runs.runner import data_digest
from afaf.runs.stop import StopToken
from afaf.streams.tasks import Stream
from afaf.sweeps.executor import LocalExecutor, Measure, OpenStreams, in_threads, stream_key
from afaf.version import __version__

LIVES = 4  # workers that a job may lose before it counts as failed
LOCK_PATIENCE = 60.0  # seconds that a job waits for a lock held by a dying worker elsewhere
EVENTS_EVERY = 0.25  # seconds between two messages of a worker, with few workers
MESSAGES_PER_SECOND = 200  # that the driver has to handle from all workers
MOST_WORKERS = 1 << 12


class WorkerDied(Exception):
    """The worker of a job died; another may carry it out."""


class Worker:
    """A process of the cluster. It stays between runs, with the streams that it has seen."""

    def __init__(self, device: str):
        self.device = device
        self.streams: dict[str, Stream] = {}
        self.attempt, self.stop_token = -1, StopToken()

    def ready(self, version: str) -> None:
        if version != __version__:
            where = f"{socket.gethostname()} has afaf {__version__}, the driver {version}"
            raise ConfigError(f"{where}: install the same version on all machines of the cluster")

    def stop(self, attempt: int) -> None:
        if attempt == self.attempt:
            self.stop_token.ask()

    def do(self, attempt: int, job: Job, stream: SharedStream, measure: Measure | None, every: float) -> Iterator[list[Event]]:
        """Carry out a job; yield its events in batches, without the job."""
        self.attempt, self.stop_token = attempt, StopToken()
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        thread = threading.Thread(target=self._do, args=(job, stream, measure, events.put), daemon=True)
        thread.start()
        over = False
        while not over:
            thread.join(every)
            over = not thread.is_alive()  # checked before the queue is emptied, so no event is missed
            batch = [replace(events.get(), job=None) for _ in range(events.qsize())]  # type: ignore[arg-type]
            if batch:
                yield batch

    def _do(self, job: Job, stream: SharedStream, measure: Measure | None, put: Callable[[Event], None]) -> None:
        def emit(event: Event) -> None:
            if isinstance(event, JobFinished):
                event.results.model = None  # it is in the folder
            put(event)

        try:
            executor = LocalExecutor(self.device, jobs_at_once=1, stop=self.stop_token)
            if not stream.named:
                job = replace(job, stream=self._stream(stream))
            executor.stream_of = lambda job: self._stream(stream)
            executor.carry_out([job], emit, measure)
        except StoppedError:  # JobStopped says so
            pass
        except Exception as error:
            put(JobFailed(job, error))

    def _stream(self, shared: SharedStream) -> Stream:
        """The stream, mapped from the node's memory, where Ray stores it once; each process verifies its checksum once."""
        if shared.key not in self.streams:
            import ray

            stream = ray.get(shared.reference[0])
            if data_digest(stream) != shared.digest:
                raise DataError(f"the data of {stream.name} arrived damaged on {socket.gethostname()}: its checksum is another")
            self.streams[shared.key] = stream
        return self.streams[shared.key]


@dataclass(frozen=True)
class SharedStream:
    """A stream in the memory of the cluster; the reference is in a list so that Ray does not follow it before the worker asks."""

    key: str
    reference: list[Any]
    digest: str
    named: bool  # False: only the driver has it


class RayExecutor:
    """A Ray cluster, started on this machine (`ray`) or joined (`ray:HOST:PORT`); a worker has one CPU, or a part of a GPU.

    A thread of this process handles each job: it waits for a worker, and gives the job to another one if that worker dies.
    """

    shares_memory = False

    def __init__(
        self,
        on: str = "ray",
        device: str = "auto",
        *,
        jobs_at_once: int | None = None,
        deadline: float | None = None,
        stop: StopToken | None = None,
    ):
        self._ray, self._ours = connect(on, jobs_at_once)
        self._most = jobs_at_once
        self.device = torch.device("cuda" if has_gpus(self._ray, device) else "cpu")
        self.device_name = self.device.type
        self.deadline, self.stop = deadline, stop or StopToken()
        self.stream_of = OpenStreams().of
        self._shared: dict[str, SharedStream] = {}
        self._idle: list[Any] = []  # workers
        self._starting: list[tuple[Any, Any]] = []  # workers that no thread waits for any more
        self._working: dict[int, StopToken] = {}  # by the id of the job in progress
        self._busy, self._waiting = 0, 0  # threads with a worker, and without
        self._no_worker_since = 0.0
        self._warned = False
        self._numbers = itertools.count()
        self._lock, self._sharing, self._events = threading.Lock(), threading.Lock(), threading.Lock()

    @property
    def jobs_at_once(self) -> int:
        """Workers for which the cluster has room now."""
        return min(room(self._ray, self.device.type == "cuda"), self._most or MOST_WORKERS)

    def close(self) -> None:
        for worker in (*self._idle, *(worker for worker, _ in self._starting)):
            self._ray.kill(worker)
        if self._ours:
            self._ray.shutdown()

    def cancel(self, job: Job) -> None:
        self._working.get(id(job), StopToken()).ask()

    def carry_out(self, jobs: Iterable[Job | None], on_event: OnEvent, measure: Measure | None = None) -> None:
        stop = StopToken(self.stop, self.deadline)
        in_threads(jobs, lambda job: self._do(job, on_event, measure, StopToken(stop)), MOST_WORKERS, lambda: self.jobs_at_once, stop)
        if self.stop.asked:
            raise StoppedError(f"stopped by {self.stop.cause}; everything up to here is saved", self.stop.exit_code)

    def _do(self, job: Job, on_event: OnEvent, measure: Measure | None, stop: StopToken) -> None:
        def emit(event: Event) -> None:
            with self._events:
                on_event(replace(event, job=job))

        self._working[id(job)] = stop
        try:
            self._use_workers(job, emit, measure, stop)
        finally:
            self._working.pop(id(job), None)

    def _use_workers(self, job: Job, emit: OnEvent, measure: Measure | None, stop: StopToken) -> None:
        """Give a job to one worker after the other until it ends."""
        try:
            stream = self._share(job)
        except Exception as error:  # its data cannot be opened
            emit(JobFailed(job, error))
            return
        here, lost, locked_until = _elsewhere(job, str(self.device)), 0, 0.0
        while (worker := self._take_worker(stop)) is not None:
            started = ended = False
            events = self._events_of(worker, here, stream, measure, stop)
            with self._lock:
                self._busy += 1
            try:
                for event in events:
                    if isinstance(event, JobFailed) and isinstance(event.error, LockedError):
                        locked_until = locked_until or time.monotonic() + LOCK_PATIENCE
                        if time.monotonic() < locked_until:
                            time.sleep(1)  # a dying worker elsewhere, or one of an earlier driver, still holds the lock
                            continue
                    started, ended = True, ended or isinstance(event, (JobFinished, JobFailed, JobStopped))
                    emit(event)
                self._idle.append(worker)
            except WorkerDied as error:
                self._ray.kill(worker)
                lost += started  # an idle worker may have died with its node long before
                if not ended and lost >= LIVES:
                    emit(JobFailed(job, RunError(f"{LIVES} workers died with this run, the last: {error}")))
                    return
                if started and not ended:
                    emit(Warned(job, "its worker died: it goes on from its newest checkpoint with another"))
            except BaseException:  # raised by `on_event`
                stop.ask()
                with contextlib.suppress(WorkerDied):
                    deque(events, maxlen=0)  # until the run is saved
                self._idle.append(worker)
                raise
            finally:
                with self._lock:
                    self._busy -= 1
            if ended:
                return
            here = replace(here, resume=True)
        emit(JobStopped(job))

    def _events_of(self, worker: Any, job: Job, stream: SharedStream, measure: Measure | None, stop: StopToken) -> Iterator[Event]:
        """The events of a job while a worker carries it out, until it ends."""
        number = next(self._numbers)
        every = max(EVENTS_EVERY, self._busy / MESSAGES_PER_SECOND)
        try:
            batches = worker.do.remote(number, job, stream, measure, every)
            while True:
                if stop.asked:
                    worker.stop.remote(number)  # repeated: a worker that has not begun the job ignores it
                if self._ray.wait([batches], timeout=every)[0]:
                    try:
                        batch = self._ray.get(next(batches))
                    except StopIteration:
                        return
                    yield from batch
        except self._ray.exceptions.RayError as error:
            raise WorkerDied((str(error).strip() or type(error).__name__).splitlines()[0]) from error

    def _take_worker(self, stop: StopToken) -> Any:
        """An idle worker, or a new one once it has started; None if asked to stop before."""
        starting = None  # a worker, and a reference that resolves when it is ready
        with self._lock:
            self._no_worker_since = self._no_worker_since if self._waiting else time.monotonic()
            self._waiting += 1
        try:
            while not stop.asked:
                with self._lock:  # an idle worker may hold the resources that a new one waits for
                    if self._idle:
                        return self._idle.pop()
                    starting = starting or (self._starting.pop() if self._starting else self._start_worker())
                worker, ready = starting
                if self._ray.wait([ready], timeout=0.2)[0]:
                    starting = None
                    with contextlib.suppress(self._ray.exceptions.RayActorError):  # it died with its node: another is started
                        self._ray.get(ready)
                        return worker
                self._warn_if_no_worker()
            return None
        finally:
            with self._lock:
                self._waiting -= 1
                self._starting += [] if starting is None else [starting]

    def _start_worker(self) -> tuple[Any, Any]:
        kind = self._ray.remote(max_concurrency=2, **share(self.device.type == "cuda"))(Worker)
        worker = kind.remote(str(self.device))
        return worker, worker.ready.remote(__version__)

    def _warn_if_no_worker(self) -> None:
        """Warn once if threads wait for workers and there has been none for a while."""
        with self._lock:
            if self._busy or self._idle:
                self._no_worker_since = time.monotonic()
            if self._warned or time.monotonic() < self._no_worker_since + FIRST_WORKER:
                return
            self._warned = True
        warn_of_no_worker(self._ray, self.device.type == "cuda", self._waiting)

    def _share(self, job: Job) -> SharedStream:
        """Put the job's stream into the memory of the cluster, once."""
        key = stream_key(job)
        with self._sharing:  # opening a stream may take long
            if key not in self._shared:
                stream = self.stream_of(job)
                self._shared[key] = SharedStream(key, [self._ray.put(stream)], data_digest(stream), isinstance(job.stream, str))
            return self._shared[key]


def _elsewhere(job: Job, device: str) -> Job:
    """The job for a process on another machine: with absolute paths and without data."""
    stream = job.source if isinstance(job.stream, str) else job.stream.name

    def absolute(path: str | Path | None) -> str | Path | None:
        return path if path is None or is_url(path) else Path(path).absolute()

    return replace(job, stream=stream or "", device=device, config=absolute(job.config), data=absolute(job.data), out=absolute(job.out))
