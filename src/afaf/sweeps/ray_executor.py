"""Runs on a Ray cluster: warm worker processes, one run at a time each; the driver alone records results."""

from __future__ import annotations

import contextlib
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
from afaf.sweeps.executor import LocalExecutor, Measure, OpenStreams, stream_key
from afaf.version import __version__

LIVES = 4  # workers that a job may lose before it counts as failed
LOCK_PATIENCE = 60.0  # seconds that a job waits for the lock of a worker that is dying elsewhere
EVENTS_EVERY = 0.25  # seconds between two messages of a worker, with few workers
MESSAGES_PER_SECOND = 200  # that the driver is asked to handle in all


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
            over = not thread.is_alive()  # asked before the queue is emptied: nothing comes later
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
        """The stream, mapped from the node's memory, to which Ray brings it once; its checksum is verified once in each process."""
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
    named: bool  # else only the driver has it


@dataclass
class Attempt:
    """A job that waits for a worker or has one."""

    number: int
    job: Job
    given_up: int = 0  # workers that died with it
    not_before: float = 0.0
    locked_since: float | None = None
    worker: Any = None
    started: bool = False
    ended: bool = False
    again: bool = False  # a worker may have begun it


class RayExecutor:
    """A Ray cluster, started on this machine (`ray`) or joined (`ray:HOST:PORT`); a worker has one CPU, or a part of a GPU."""

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
        self._idle: list[Any] = []
        self._starting: dict[Any, Any] = {}  # worker by the reference that says that it is ready
        self._busy: dict[Any, Attempt] = {}  # by the stream of events
        self._numbers = 0
        self._no_worker_since: float | None = None
        self._warned = False

    @property
    def jobs_at_once(self) -> int:
        """Workers for which the cluster has room now."""
        return min(room(self._ray, self.device.type == "cuda"), self._most or 1 << 30)

    def close(self) -> None:
        for worker in (*self._idle, *self._starting.values(), *(attempt.worker for attempt in self._busy.values())):
            self._ray.kill(worker)
        if self._ours:
            self._ray.shutdown()

    def cancel(self, job: Job) -> None:
        for attempt in self._busy.values():
            if attempt.job is job:
                attempt.worker.stop.remote(attempt.number)

    def carry_out(self, jobs: Iterable[Job | None], on_event: OnEvent, measure: Measure | None = None) -> None:
        stop, left = StopToken(self.stop, self.deadline), iter(jobs)
        waiting: deque[Attempt] = deque()
        try:
            while True:
                if not stop.asked:
                    self._take(left, waiting)
                    self._give_out(waiting, on_event, measure)
                else:
                    while waiting:
                        on_event(JobStopped(waiting.popleft().job))
                    self._stop_all()
                if not self._busy and not waiting:
                    break
                self._listen(on_event, waiting)
        except BaseException:
            self._stop_all()
            while self._busy:
                self._listen(lambda event: None, deque())
            raise
        if self.stop.asked:
            raise StoppedError(f"stopped by {self.stop.cause}; everything up to here is saved", self.stop.exit_code)

    def _take(self, left: Iterator[Job | None], waiting: deque[Attempt]) -> None:
        while len(self._busy) + len(waiting) < self.jobs_at_once:
            job = next(left, None)
            if job is None:
                return
            waiting.append(Attempt(self._next_number(), job))

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _give_out(self, waiting: deque[Attempt], on_event: OnEvent, measure: Measure | None) -> None:
        """Give jobs to idle workers, and start workers for the others."""
        ready = [attempt for attempt in waiting if attempt.not_before <= time.monotonic()]
        for attempt in ready:
            if not self._idle:
                break
            waiting.remove(attempt)
            try:
                shared = self._share(attempt.job)
            except Exception as error:  # its data cannot be opened
                on_event(JobFailed(attempt.job, error))
                continue
            attempt.worker = self._idle.pop()
            every = max(EVENTS_EVERY, (len(self._busy) + 1) / MESSAGES_PER_SECOND)
            events = attempt.worker.do.remote(attempt.number, _elsewhere(attempt, str(self.device)), shared, measure, every)
            self._busy[events] = attempt
        while len(self._idle) + len(self._starting) < len(waiting) and len(self._starting) + len(self._busy) < self.jobs_at_once:
            self._start_worker()

    def _start_worker(self) -> None:
        kind = self._ray.remote(max_concurrency=2, **share(self.device.type == "cuda"))(Worker)
        worker = kind.remote(str(self.device))
        self._starting[worker.ready.remote(__version__)] = worker

    def _share(self, job: Job) -> SharedStream:
        """Put the job's stream into the memory of the cluster, once."""
        key = stream_key(job)
        if key not in self._shared:
            stream = self.stream_of(job)
            self._shared[key] = SharedStream(key, [self._ray.put(stream)], data_digest(stream), isinstance(job.stream, str))
        return self._shared[key]

    def _stop_all(self) -> None:
        for attempt in self._busy.values():
            attempt.worker.stop.remote(attempt.number)

    def _listen(self, on_event: OnEvent, waiting: deque[Attempt]) -> None:
        """Wait a little for messages, and handle them."""
        sources = [*self._busy, *self._starting]
        self._warn_if_no_worker()
        if not sources:
            time.sleep(0.1)
            return
        ready, _ = self._ray.wait(sources, num_returns=1, timeout=0.5)
        for source in ready:
            if source in self._starting:
                worker = self._starting.pop(source)
                with contextlib.suppress(self._ray.exceptions.RayActorError):  # it died with its node: another is started
                    self._ray.get(source)
                    self._idle.append(worker)
            else:
                self._hear(source, self._busy[source], on_event, waiting)

    def _warn_if_no_worker(self) -> None:
        """Warn once if workers were asked for and none has started for a while."""
        self._no_worker_since = None if self._busy or not self._starting else self._no_worker_since or time.monotonic()
        if not self._warned and self._no_worker_since is not None and time.monotonic() > self._no_worker_since + FIRST_WORKER:
            self._warned = True
            warn_of_no_worker(self._ray, self.device.type == "cuda", len(self._starting))

    def _hear(self, source: Any, attempt: Attempt, on_event: OnEvent, waiting: deque[Attempt]) -> None:
        try:
            events = self._ray.get(next(source))
        except StopIteration:
            del self._busy[source]
            self._idle.append(attempt.worker)
            if not attempt.ended:
                self._again(attempt, waiting)
            return
        except self._ray.exceptions.RayError as error:
            del self._busy[source]
            self._ray.kill(attempt.worker)
            self._lost(attempt, error, on_event, waiting)
            return
        for event in events:
            event = replace(event, job=attempt.job)
            if isinstance(event, JobFailed) and isinstance(event.error, LockedError) and self._waits_for_lock(attempt):
                continue  # a worker that is dying elsewhere, or one of a driver before this, still holds it
            attempt.started = True
            attempt.ended = attempt.ended or isinstance(event, (JobFinished, JobFailed, JobStopped))
            on_event(event)

    def _waits_for_lock(self, attempt: Attempt) -> bool:
        attempt.locked_since = attempt.locked_since or time.monotonic()
        attempt.not_before = time.monotonic() + 1
        return time.monotonic() - attempt.locked_since < LOCK_PATIENCE

    def _lost(self, attempt: Attempt, error: Exception, on_event: OnEvent, waiting: deque[Attempt]) -> None:
        """A worker died. Its job goes on elsewhere, unless it ended or has cost too many workers."""
        if attempt.ended:
            return
        attempt.given_up += attempt.started  # an idle worker may have died with its node long before
        if attempt.given_up >= LIVES:
            reason = str(error).strip().splitlines()[0]
            on_event(JobFailed(attempt.job, RunError(f"{LIVES} workers died with this run, the last: {reason}")))
            return
        if attempt.started:
            on_event(Warned(attempt.job, "its worker died: it goes on from its newest checkpoint with another"))
        self._again(attempt, waiting)

    def _again(self, attempt: Attempt, waiting: deque[Attempt]) -> None:
        waiting.appendleft(replace(attempt, number=self._next_number(), worker=None, started=False, again=True))


def _elsewhere(attempt: Attempt, device: str) -> Job:
    """The job as another process on another machine carries it out: paths that hold there, and no data."""
    job = attempt.job
    stream = job.source if isinstance(job.stream, str) else job.stream.name

    def absolute(path: str | Path | None) -> str | Path | None:
        return path if path is None or is_url(path) else Path(path).absolute()

    return replace(
        job,
        stream=stream or "",
        device=device,
        config=absolute(job.config),
        data=absolute(job.data),
        out=absolute(job.out),
        resume=job.resume or attempt.again,
    )
