"""The driver's side of runs on Ray, with workers that fail at a chosen moment: a small fake stands for the cluster."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from afaf.cluster import NoWorker
from afaf.runs.events import Event, JobFailed, JobStarted, JobStopped, Warned
from afaf.runs.job import Job
from afaf.sweeps import ray_executor
from afaf.sweeps.ray_executor import RayExecutor

JOB = Job("split-digits", "ridge")
Work = Callable[["FakeWorker"], Iterator[list[Event]]]
MakeExecutor = Callable[["FakeRay"], RayExecutor]


class RayError(Exception): ...


class FakeWorker:
    """Carries out a job by yielding the batches of `work`, which may raise RayError."""

    def __init__(self, work: Work, ready: bool = True):
        self.asked_to_stop = 0
        self.do = SimpleNamespace(remote=lambda *arguments: work(self))
        self.ready = SimpleNamespace(remote=lambda version: "ready" if ready else None)
        self.stop = SimpleNamespace(remote=self._stop)

    def _stop(self, attempt: int) -> None:
        self.asked_to_stop += 1


class FakeRay:
    exceptions = SimpleNamespace(RayError=RayError, RayActorError=RayError)

    def __init__(self, workers: list[FakeWorker], cpus: int = 1):
        self.workers, self.cpus, self.killed = workers, cpus, list[FakeWorker]()

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": self.cpus}

    available_resources = cluster_resources

    def remote(self, **options: Any) -> Callable[[type], Any]:
        return lambda kind: SimpleNamespace(remote=lambda device: self.workers.pop(0))

    def put(self, value: Any) -> Any:
        return value

    def wait(self, references: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        if references[0] is None:
            time.sleep(0.01)
            return [], references
        return references, []

    def get(self, reference: Any) -> Any:
        return reference

    def kill(self, worker: FakeWorker) -> None:
        self.killed.append(worker)


@pytest.fixture
def executor_on(monkeypatch: pytest.MonkeyPatch) -> MakeExecutor:
    def make(ray: FakeRay) -> RayExecutor:
        monkeypatch.setattr(ray_executor, "connect", lambda *arguments: (ray, False))
        monkeypatch.setattr(ray_executor, "data_digest", lambda stream: "")
        executor = RayExecutor(device="cpu")
        executor.stream_of = lambda job: None  # type: ignore[assignment,return-value]
        return executor

    return make


def ends(worker: FakeWorker) -> Iterator[list[Event]]:
    yield [JobStarted(JOB)]
    yield [JobStopped(JOB)]


def dies(worker: FakeWorker) -> Iterator[list[Event]]:
    yield [JobStarted(JOB)]
    raise RayError("the node is gone")


def until_stopped(worker: FakeWorker) -> Iterator[list[Event]]:
    """The first request arrives before the worker has begun the job."""
    yield [JobStarted(JOB)]
    for _ in range(100):
        if worker.asked_to_stop > 1:
            yield [JobStopped(JOB)]
            return
        yield []
    yield [JobFailed(JOB, RuntimeError("never stopped"))]


def kinds(events: list[Event]) -> list[type[Event]]:
    return [type(event) for event in events]


def test_a_worker_that_dies_is_replaced(executor_on: MakeExecutor) -> None:
    ray, events = FakeRay([first := FakeWorker(dies), FakeWorker(ends)]), list[Event]()
    executor_on(ray).carry_out([JOB], events.append)
    assert kinds(events) == [JobStarted, Warned, JobStarted, JobStopped]
    assert ray.killed == [first]


def test_a_job_whose_workers_all_die_fails(executor_on: MakeExecutor) -> None:
    events = list[Event]()
    executor_on(FakeRay([FakeWorker(dies) for _ in range(ray_executor.LIVES)])).carry_out([JOB], events.append)
    assert isinstance(events[-1], JobFailed)
    assert "the node is gone" in str(events[-1].error)


def test_an_error_of_the_handler_is_raised_even_if_ray_has_it(executor_on: MakeExecutor) -> None:
    def handle(event: Event) -> None:
        raise RayError("from the handler")

    ray = FakeRay([FakeWorker(ends), FakeWorker(ends)])
    with pytest.raises(RayError, match="from the handler"):
        executor_on(ray).carry_out([JOB], handle)
    assert not ray.killed
    assert len(ray.workers) == 1  # no other was tried


@pytest.mark.parametrize("work", [until_stopped, dies])
def test_after_an_error_of_the_handler_the_run_is_waited_for(work: Work, executor_on: MakeExecutor) -> None:
    def handle(event: Event) -> None:
        raise KeyError("from the handler")

    with pytest.raises(KeyError, match="from the handler"):
        executor_on(FakeRay([FakeWorker(work)])).carry_out([JOB], handle)


def test_a_stop_request_that_a_worker_misses_is_repeated(executor_on: MakeExecutor) -> None:
    executor, events = executor_on(FakeRay([FakeWorker(until_stopped)])), list[Event]()

    def handle(event: Event) -> None:
        events.append(event)
        if isinstance(event, JobStarted):
            executor.cancel(event.job)

    executor.carry_out([JOB], handle)
    assert kinds(events) == [JobStarted, JobStopped]


def test_a_job_is_cancelled_while_it_waits_for_another_worker(executor_on: MakeExecutor) -> None:
    ray, events = FakeRay([FakeWorker(dies), FakeWorker(ends, ready=False)]), list[Event]()
    executor = executor_on(ray)
    start = executor._start_worker

    def cancel_and_start() -> tuple[Any, Any]:
        if len(ray.workers) == 1:
            executor.cancel(JOB)
        return start()

    executor._start_worker = cancel_and_start  # type: ignore[method-assign]
    end = threading.Timer(10, executor.stop.ask)  # only if the request is lost
    end.start()
    executor.carry_out([JOB], events.append)
    end.cancel()
    assert kinds(events) == [JobStarted, Warned, JobStopped]
    assert not executor.stop.asked


def test_a_worker_that_works_starts_the_time_without_workers_again(executor_on: MakeExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second job waits for longer than it takes to warn, until the worker of the first one has become idle."""
    monkeypatch.setattr(ray_executor, "FIRST_WORKER", 0.3)

    def long(worker: FakeWorker) -> Iterator[list[Event]]:
        yield [JobStarted(JOB)]
        time.sleep(0.6)
        yield [JobStopped(JOB)]

    jobs = [Job("split-digits", "ridge", seed) for seed in range(2)]
    ray = FakeRay([FakeWorker(long), FakeWorker(ends, ready=False)], cpus=2)
    executor = executor_on(ray)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoWorker)
        executor.carry_out(jobs, lambda event: None)


def test_waiting_without_any_worker_is_told_once(executor_on: MakeExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_executor, "FIRST_WORKER", 0.05)
    executor = executor_on(FakeRay([FakeWorker(ends, ready=False) for _ in range(2)], cpus=2))
    threading.Timer(0.5, executor.stop.ask).start()
    with pytest.warns(NoWorker) as told, pytest.raises(ray_executor.StoppedError):
        executor.carry_out([Job("split-digits", "ridge", seed) for seed in range(2)], lambda event: None)
    assert len(told) == 1


def test_workers_are_given_out_while_a_stream_is_opened(executor_on: MakeExecutor) -> None:
    opening, ended, failed = threading.Event(), threading.Event(), list[Event]()

    def dies_meanwhile(worker: FakeWorker) -> Iterator[list[Event]]:
        assert opening.wait(10)
        yield from dies(worker)

    def stream_of(job: Job) -> Any:
        if job.stream == "slow":
            opening.set()
            assert ended.wait(10)

    def handle(event: Event) -> None:
        failed.extend([event] if isinstance(event, JobFailed) else [])
        if isinstance(event, JobStopped):
            ended.set()

    executor = executor_on(FakeRay([FakeWorker(dies_meanwhile), FakeWorker(ends)], cpus=2))
    executor.stream_of = stream_of
    executor.carry_out([JOB, Job("slow", "ridge")], handle)
    assert not failed
