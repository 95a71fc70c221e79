"""Fill results/: find the missing runs of some experiments, carry out those that fit into the time, store a line for each."""

from __future__ import annotations

import hashlib
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import torch

from afaf.errors import AfafError, CapacityError, ConfigError, DivergedError
from afaf.network.zoo import describe, width_of
from afaf.runs.config import Config, build_config
from afaf.runs.device import device_name
from afaf.runs.events import Event, JobFailed, JobFinished, JobStarted, JobStopped, OnEvent, StateReached, ignore
from afaf.runs.job import Job
from afaf.runs.presets import with_presets
from afaf.runs.progress import RunState
from afaf.runs.provenance import commit, versions
from afaf.runs.results import Results
from afaf.runs.setup import Setup, restrict, set_up
from afaf.storage.model_file import Model
from afaf.streams.tasks import Stream
from afaf.sweeps.executor import Executor
from afaf.sweeps.experiments import Experiment, Planned
from afaf.sweeps.shared_prefix import SharedPrefix, shared_prefix
from afaf.sweeps.store import Key, Line, Store, numbers_of
from afaf.training.engines import find_engine
from afaf.training.precision import at_work, precision_on

COSTS = (
    "params_ratio",
    "paper_flops_ratio",
    "paper_flops_by_task_ratio",
    "counted_flops_ratio",
    "inference_flops_ratio",
    "dense_flops",
    "kept_bytes",
)
UNFINISHED = ".unfinished"  # folder of the runs in progress on a cluster, within that of the results


class Expectation:
    """Estimates how long runs take, from runs of the same stream and method on the same device; else from similar runs.

    Runs that start from a shared prefix are shorter and are counted separately.
    """

    def __init__(self, lines: Mapping[Key, Line], device: str, jobs_at_once: int):
        self.seconds: dict[tuple[str, ...], list[float]] = {}
        for line in lines.values():
            alike = line.get("device") == device and line.get("jobs_at_once") == jobs_at_once
            if alike and line.get("seconds") and not line.get("shared_tasks"):
                self.add(line["stream"], line["method"], line["seconds"])

    def add(self, stream: str, method: str, seconds: float, shared: bool = False) -> None:
        for key in ((stream, method, "shared"),) if shared else ((stream, method), (stream,), ()):
            self.seconds.setdefault(key, []).append(seconds)

    def of(self, run: Planned, shared: bool = False) -> float | None:
        """Expected seconds of a run; None if no similar run has ended."""
        same = (self.seconds.get((run.stream, run.method, "shared")) if shared else None) or self.seconds.get((run.stream, run.method))
        if same:
            return max(same)
        similar = self.seconds.get((run.stream,)) or self.seconds.get(())
        return statistics.fmean(similar) if similar else None


@dataclass(frozen=True)
class LineStored(Event):
    """A run ended, and the store holds its line. `job.tag` is the `Planned` run."""

    line: Line


class Reproduction:
    """The missing runs of some experiments. `carry_out` stores a line for each as soon as it ends."""

    def __init__(
        self, experiments: Sequence[Experiment], store: Store, executor: Executor, *, data: Path | None = None, again: bool = False
    ):
        self.store, self.executor, self.data, self.again = store, executor, data, again
        lines = store.read()
        wanted: dict[Key, Planned] = {}
        for run in (run for experiment in experiments for run in experiment.runs):
            wanted.setdefault(run.key, run)  # experiments share runs: the first one that lists a run gets it
            if run.keep:
                wanted[run.key] = run
        self.missing = [run for run in wanted.values() if again or not run.done(lines)]
        if again:  # oldest first, so that repeated calls repeat all runs
            self.missing.sort(key=lambda run: lines.get(run.key, {}).get("ended", ""))
        for function in {function for run in self.missing for function in run.keep.values()}:
            load_function(function)  # an error now, not after a run
        self.already = len(wanted) - len(self.missing)
        self.device = executor.device_name
        self.expectation = Expectation(lines, self.device, executor.jobs_at_once)
        self.about = {"commit": commit(), **versions()}
        self.how: dict[str, Any] = {}
        self.left = list(self.missing)
        self.prefixes: dict[Key, SharedPrefix | None] = {}
        self.states: dict[SharedPrefix, RunState] = {}  # after a prefix's tasks, while a run that has not started needs it
        self.resumed: set[Key] = set()  # runs that started from a state another run had reached
        self.running: dict[Key, tuple[Planned, float]] = {}
        self.done: list[Planned] = []
        self.errors: list[tuple[Planned, Exception]] = []
        self.emit: OnEvent = ignore

    def carry_out(self, how: Mapping[str, Any] | None = None, on_event: OnEvent = ignore) -> None:
        """Carry out the missing runs until the deadline. `how` holds settings that do not distinguish runs (run.engine, run.precision).

        `on_event` receives the executor's events, with LineStored in place of JobFinished.
        """
        self.how, self.emit = dict(how or {}), on_event
        self.prefixes = (
            self._shared_prefixes(self.missing) if self.executor.shares_memory else dict.fromkeys(run.key for run in self.missing)
        )
        self.executor.carry_out(self._next_jobs(), self._handle, measure)

    @property
    def written(self) -> int:
        """Number of the missing runs that the store holds now."""
        lines = self.store.read()
        return sum(run.done(lines) for run in self.missing)

    def _next_jobs(self) -> Iterator[Job | None]:
        """Yield the next run that need not wait and is expected to end in time; runs of unknown duration are tried."""
        while self.left:
            others = [run for run in self.left if not self._waits(run)]
            ready = [run for run in others if self._fits(run)]
            if not ready and len(others) == len(self.left):
                return
            if not ready:
                yield None  # a run that waits gets shorter once its prefix is learned, and may fit then
                continue
            run = next((run for run in ready if self._is_learned(run)), ready[0])  # learned prefixes first: used-up states free memory
            self.left.remove(run)
            if not self.again and run.done(self.store.read()):
                continue  # another process has carried it out
            self.running[run.key] = (run, time.monotonic())
            yield self._job(run)

    def _job(self, run: Planned) -> Job:
        job = Job(run.stream, run.method, run.seed, {**run.settings, **self.how}, data=self.data, tag=run)
        if not self.executor.shares_memory:  # a worker may die: the run goes on from its checkpoints
            folder = self.store.folder / UNFINISHED / hashlib.blake2b(repr(run.key).encode(), digest_size=8).hexdigest()
            return replace(job, out=folder, resume=True)
        prefix = self.prefixes[run.key]
        if prefix is None:
            return job
        needed, state = self._needed(prefix), self.states.get(prefix)
        if state is None:
            return replace(job, snapshot_after=prefix.tasks) if needed else job
        self.resumed.add(run.key)
        if not needed:
            del self.states[prefix]
        return replace(job, start=state)

    def _fits(self, run: Planned) -> bool:
        expected, deadline = self._expected(run), self.executor.deadline
        return deadline is None or time.monotonic() + (expected or 0) < deadline

    def _expected(self, run: Planned) -> float | None:
        return self.expectation.of(run, run.key in self.resumed or self._is_learned(run))

    def _shared_prefixes(self, runs: Sequence[Planned]) -> dict[Key, SharedPrefix | None]:
        """The prefix of each run that others may share; runs that differ only in the seed are set up once."""
        prefixes: dict[Key, SharedPrefix | None] = {}
        setups: dict[tuple[str, ...], Setup | None] = {}
        for run in runs:
            job, shape = Job(run.stream, run.method, settings={**run.settings, **self.how}, data=self.data), run.key[:3]
            outline = job.outline()
            if shape not in setups:
                try:
                    setups[shape] = set_up(outline, run.method, *job.tables)
                except AfafError:  # an outcome, which the run itself will report
                    setups[shape] = None
            setup = setups[shape]
            prefixes[run.key] = None if setup is None else shared_prefix(setup.method, setup.config, outline.name, len(outline), run.seed)
        return prefixes

    def _needed(self, prefix: SharedPrefix) -> bool:
        """Whether a run that has not started shares this prefix."""
        return any(self.prefixes[run.key] == prefix for run in list(self.left))

    def _is_learned(self, run: Planned) -> bool:
        """Whether the state after the run's shared prefix is kept."""
        prefix = self.prefixes[run.key]
        return prefix is not None and prefix in self.states

    def _waits(self, run: Planned) -> bool:
        """Whether a run in progress is learning this run's shared prefix."""
        prefix = self.prefixes[run.key]
        others = [other for other, _ in list(self.running.values())]
        return prefix is not None and not self._is_learned(run) and any(self.prefixes[other.key] == prefix for other in others)

    @property
    def seconds_left(self) -> float | None:
        """Expected seconds until all runs have ended, with `jobs_at_once` runs in parallel; None if unknown."""
        rest = [self._expected(run) for run in list(self.left)]
        for run, since in list(self.running.values()):
            expected = self._expected(run)
            rest.append(None if expected is None else max(0.0, expected - (time.monotonic() - since)))
        if any(seconds is None for seconds in rest):
            return None
        return sum(seconds for seconds in rest if seconds is not None) / self.executor.jobs_at_once

    def _handle(self, event: Event) -> None:
        run: Planned = event.job.tag
        since = self.running[run.key][1]
        match event:
            case JobStarted():
                self.running[run.key] = (run, time.monotonic())
            case StateReached(state=state):
                prefix = self.prefixes[run.key]
                if prefix is not None and self._needed(prefix):
                    self.states[prefix] = state
            case JobFinished(results=results, measured=measured):
                del self.running[run.key]
                self._put(event.job, self._line(event.job, results, measured), time.monotonic() - since)
                return
            case JobFailed(error=error):
                del self.running[run.key]
                if isinstance(error, (CapacityError, DivergedError)):  # outcomes, stored like others
                    failure = {"failed": str(error), "kind": type(error).__name__}
                    self._put(event.job, {**_head(run), **failure, **self._where(event.job, {}, time.monotonic() - since)}, None)
                    return
                self.errors.append((run, error))
            case JobStopped():
                del self.running[run.key]
                self.resumed.discard(run.key)
                self.left.insert(0, run)
        self.emit(event)

    def errors_by_message(self) -> dict[str, list[Planned]]:
        """The runs that failed, by error message."""
        runs: dict[str, list[Planned]] = {}
        for run, error in self.errors:
            runs.setdefault(str(error) or type(error).__name__, []).append(run)
        return runs

    def _put(self, job: Job, line: Line, seconds: float | None) -> None:
        run: Planned = job.tag
        self.store.append(run.experiment, line)
        if job.folder is not None:
            shutil.rmtree(job.folder, ignore_errors=True)
        self.done.append(run)
        if seconds is not None:
            self.expectation.add(run.stream, run.method, seconds, run.key in self.resumed)
        self.emit(LineStored(job, line))

    def _line(self, job: Job, results: Results, measured: Line) -> Line:
        run: Planned = job.tag
        line = {**_head(run), **numbers_of(results)}
        prefix = self.prefixes[run.key]
        if prefix is not None and run.key in self.resumed:
            line["shared_tasks"] = prefix.tasks  # learned by another run; the time they took is counted here, too
        return {**line, **self._where(job, measured, results.seconds)}

    def _where(self, job: Job, measured: Line, seconds: float) -> Line:
        return {
            "seconds": round(seconds, 2),
            "jobs_at_once": self.executor.jobs_at_once,
            **(measured or _computed_by(job, self.executor.stream_of(job), self.executor.device, self.device)),
            "ended": datetime.now(UTC).isoformat(timespec="milliseconds"),
            **self.about,
        }


def measure(job: Job, results: Results, stream: Stream, device: torch.device) -> Line:
    """The parts of a line that need the stream, the device or the model."""
    config = _config(job, stream)
    learned = restrict(stream, config)
    measured: Line = {"costs": _costs(job, stream, learned), **_computed_by(job, stream, device, device_name(device))}
    if job.tag.keep:
        model = results.model or Model.load(Path(str(results.run)) / "model.safetensors")
        with at_work(config.run.precision, device):
            measured["kept"] = {name: load_function(function)(model, learned) for name, function in job.tag.keep.items()}
    return measured


def load_function(name: str) -> Callable[[Model, Stream], Any]:
    """The function that an experiment names in `keep`."""
    try:
        function: Callable[[Model, Stream], Any] = EntryPoint(name, name, "").load()
        if not callable(function):
            raise TypeError("it is no function")
    except Exception as error:  # of the user's module
        raise ConfigError(
            f"keep: {name} cannot be loaded ({error}): name a function as package.module:function; for one of this folder, set PYTHONPATH=."
        ) from error
    return function


def _config(job: Job, stream: Stream) -> Config:
    """All settings of a job, also of one whose sub-networks do not fit."""
    kind = job.method_class
    return build_config(kind.Options, *with_presets(stream.outline, kind, job.tables))


def _computed_by(job: Job, stream: Stream, device: torch.device, name: str) -> Line:
    """The network that was trained, its width even if the preset or the network chose it, and the device, engine and precision."""
    config, outline = _config(job, stream), stream.outline
    chosen, engine = config.network, find_engine(config.run.engine, device).name
    return {
        "network": chosen.name,
        "width": width_of(describe(chosen.name, outline.input_shape, outline.n_classes, norm=chosen.norm, width=chosen.width)),
        "device": name,
        "engine": engine,
        "precision": precision_on(config.run.precision, device, engine),
    }


def _head(run: Planned) -> Line:
    return {"stream": run.stream, "method": run.method, "settings": dict(run.settings), "seed": run.seed}


def _costs(job: Job, stream: Stream, learned: Stream) -> dict[str, Any] | None:
    """The costs on the stream as it was learned; None for a method that does not predict them.

    The preset is that of the whole stream, as in the run: one for fewer images may describe another model.
    """
    try:
        setup = set_up(stream.outline, job.method_class, *job.tables, network=job.network)
        costs = asdict(setup.config.parts.costs_of(setup.method, setup.spec, learned.outline))
    except ConfigError:
        return None
    return {name: _significant(costs[name]) for name in COSTS}


def _significant(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
