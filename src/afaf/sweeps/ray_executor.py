"""Runs on a Ray cluster: warm worker processes, one run at a time each; the driver alone records results."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from afaf.errors import ConfigError, DataError, LockedError, RunError, StoppedError
from afaf.runs.events import Event, JobFailed, JobFinished, JobStopped, OnEvent, Warned
from afaf.runs.job import Job
from afaf.runs.runner import data_digest
from afaf.runs.stop import StopToken
from afaf.streams.tasks import Stream
from afaf.sweeps.executor import SIDE_BY_SIDE, LocalExecutor, Measure, OpenStreams, stream_key
from afaf.sweeps.limited import within
from afaf.version import __version__

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read by Ray when it is imported: nothing is reported to anybody
try:
    import ray
    from ray.exceptions import RayActorError, RayError
except ImportError:
    raise ConfigError("--on ray needs Ray, which is not installed: pip install 'afaf[ray]'") from None

ANSWER = 8.0  # seconds within which a cluster must answer
LIVES = 4  # workers that a job may lose before it counts as failed
LOCK_PATIENCE = 60.0  # seconds that a job waits for the lock of a worker that is dying elsewhere
OBJECT_STORE = 256 << 20  # bytes of a cluster of our own; larger streams are spilled to disk
EVENTS_EVERY = 0.25  # seconds between two messages of a worker, with few workers
MESSAGES_PER_SECOND = 200  # that the driver is asked to handle in all


def connect(address: str | None, jobs_at_once: int | None = None) -> bool:
    """Join the cluster at host:port, or start one on this machine, unless this process is connected; whether this call did it."""
    if ray.is_initialized():
        return False
    logging.getLogger("ray").setLevel(logging.ERROR)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        cpus = max(jobs_at_once or 0, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
        own: dict[str, Any] = {"num_cpus": cpus, "object_store_memory": OBJECT_STORE, "include_dashboard": False}
        with _signals_kept():
            ray.init(address="local", **own, **quiet)  # in this thread: the cluster ends with the thread that starts it
    else:
        _check_reachable(address)
        within(ANSWER, f"--on ray:{address}: cannot join a cluster there", lambda: ray.init(address=address, **quiet))
    return True


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray replaces the handler of SIGTERM; a run that is stopped must be saved."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


def _check_reachable(address: str) -> None:
    """Refuse an address behind which nothing speaks HTTP/2, as Ray does: Ray itself would try for a minute."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"--on ray:{address}: give the address as host:port, for example ray:10.0.0.1:6379")
    try:
        with socket.create_connection((host, int(port)), timeout=ANSWER / 2) as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))  # and empty settings
            answer = connection.recv(9)
    except OSError as error:
        raise ConfigError(f"--on ray:{address}: nothing answers there ({error}); `ray start --head` starts a cluster") from None
    if len(answer) < 4 or answer[3] != 4:  # settings
        raise ConfigError(
            f"--on ray:{address}: what answers there is no Ray cluster; `ray start --head` starts one, and prints its address"
        )


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


class RayExecutor:
    """A Ray cluster, started on this machine or joined at `address`; a worker has one CPU, or a fraction of a GPU."""

    shares_memory = False

    def __init__(
        self,
        address: str | None = None,
        device: str = "auto",
        *,
        jobs_at_once: int | None = None,
        deadline: float | None = None,
        stop: StopToken | None = None,
    ):
        self._ours = connect(address, jobs_at_once)
        self._most = jobs_at_once
        gpus = ray.cluster_resources().get("GPU", 0)
        if device not in ("auto", "cpu", "cuda"):
            raise ConfigError(f"--device {device}: on a cluster it is auto, cpu or cuda, and Ray chooses which GPU")
        if device == "cuda" and not gpus:
            raise ConfigError("--device cuda: no node of the cluster has a GPU; use --device auto or cpu")
        self.device = torch.device("cuda" if gpus and device != "cpu" else "cpu")
        self.device_name = self.device.type
        self.deadline, self.stop = deadline, stop or StopToken()
        self.stream_of = OpenStreams().of
        self._shared: dict[str, SharedStream] = {}
        self._idle: list[Any] = []
        self._starting: dict[Any, Any] = {}  # worker by the reference that says that it is ready
        self._busy: dict[Any, Attempt] = {}  # by the stream of events
        self._numbers = 0

    @property
    def jobs_at_once(self) -> int:
        """Workers for which the cluster has room now."""
        resources = ray.cluster_resources()
        room = resources.get("GPU", 0) * SIDE_BY_SIDE["cuda"] if self.device.type == "cuda" else resources.get("CPU", 0)
        return max(1, min(int(room), self._most or int(room)))

    def close(self) -> None:
        for worker in (*self._idle, *self._starting.values(), *(attempt.worker for attempt in self._busy.values())):
            ray.kill(worker)
        if self._ours:
            ray.shutdown()

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
        share = {"num_gpus": 1 / SIDE_BY_SIDE["cuda"]} if self.device.type == "cuda" else {}
        remote: Any = ray.remote
        worker = remote(num_cpus=0 if share else 1, max_concurrency=2, **share)(Worker).remote(str(self.device))
        self._starting[worker.ready.remote(__version__)] = worker

    def _share(self, job: Job) -> SharedStream:
        """Put the job's stream into the memory of the cluster, once."""
        key = stream_key(job)
        if key not in self._shared:
            stream = self.stream_of(job)
            self._shared[key] = SharedStream(key, [ray.put(stream)], data_digest(stream), isinstance(job.stream, str))
        return self._shared[key]

    def _stop_all(self) -> None:
        for attempt in self._busy.values():
            attempt.worker.stop.remote(attempt.number)

    def _listen(self, on_event: OnEvent, waiting: deque[Attempt]) -> None:
        """Wait a little for messages, and handle them."""
        sources = [*self._busy, *self._starting]
        if not sources:
            time.sleep(0.1)
            return
        ready, _ = ray.wait(sources, num_returns=1, timeout=0.5)
        for source in ready:
            if source in self._starting:
                worker = self._starting.pop(source)
                with contextlib.suppress(RayActorError):  # it died with its node: another is started
                    ray.get(source)
                    self._idle.append(worker)
            else:
                self._hear(source, self._busy[source], on_event, waiting)

    def _hear(self, source: Any, attempt: Attempt, on_event: OnEvent, waiting: deque[Attempt]) -> None:
        try:
            events = ray.get(next(source))
        except StopIteration:
            del self._busy[source]
            self._idle.append(attempt.worker)
            if not attempt.ended:
                self._again(attempt, waiting)
            return
        except RayError as error:
            del self._busy[source]
            ray.kill(attempt.worker)
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

    def _lost(self, attempt: Attempt, error: RayError, on_event: OnEvent, waiting: deque[Attempt]) -> None:
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
        waiting.appendleft(replace(attempt, number=self._next_number(), worker=None, started=False))


def _elsewhere(attempt: Attempt, device: str) -> Job:
    """The job as another process on another machine carries it out: paths that hold there, and no data."""
    job = attempt.job
    stream = job.source if isinstance(job.stream, str) else job.stream.name

    def absolute(path: str | Path | None) -> Path | None:
        return None if path is None else Path(path).absolute()

    return replace(
        job,
        stream=stream or "",
        device=device,
        config=absolute(job.config),
        data=absolute(job.data),
        out=absolute(job.out),
        resume=job.resume or attempt.given_up > 0,
    )
