"""Filling results/: which runs of some experiments are missing, which of them fit into the time, and the line each leaves behind."""

from __future__ import annotations

import statistics
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from afaf.errors import AfafError, CapacityError, ConfigError, DivergedError
from afaf.runs.config import Config, build_config
from afaf.runs.device import device_name
from afaf.runs.presets import preset_tables
from afaf.runs.probes import KEEPERS
from afaf.runs.provenance import commit, versions
from afaf.runs.results import Results, Row
from afaf.runs.runner import Listener, Setup, as_configured, costs, method_class, set_up, settings_table
from afaf.runs.shared_prefix import Beginnings, Shared, shared_by
from afaf.streams.benchmarks import outline_of
from afaf.streams.tasks import Stream
from afaf.sweeps.executor import Job, LocalExecutor, Watch
from afaf.sweeps.experiments import Experiment, Planned
from afaf.sweeps.store import Key, Line, Store
from afaf.training.engines import find_engine
from afaf.training.precision import at_work

COSTS = (
    "params_ratio",
    "paper_flops_ratio",
    "paper_flops_by_task_ratio",
    "counted_flops_ratio",
    "inference_flops_ratio",
    "dense_flops",
    "kept_bytes",
)
HOW = ("run.engine", "run.precision")  # settings that say how a run is computed, not what: they do not tell runs apart


class Expectation:
    """How long runs take, from those of the same stream and method on the same device, as many at once; else from similar ones.

    Those that go on from a shared beginning are shorter.
    """

    def __init__(self, lines: Mapping[Key, Line], device: str, jobs_at_once: int):
        self.seconds: dict[tuple[str, ...], list[float]] = {}
        for line in lines.values():
            alike = line.get("device") == device and line.get("jobs_at_once") == jobs_at_once
            if alike and line.get("seconds") and not line.get("shared_tasks"):
                self.learn(line["stream"], line["method"], line["seconds"])

    def learn(self, stream: str, method: str, seconds: float, begun: bool = False) -> None:
        for known_as in ((stream, method, "begun"),) if begun else ((stream, method), (stream,), ()):
            self.seconds.setdefault(known_as, []).append(seconds)

    def of(self, run: Planned, begun: bool = False) -> float | None:
        """Seconds to expect; None where nothing is known."""
        same = (self.seconds.get((run.stream, run.method, "begun")) if begun else None) or self.seconds.get((run.stream, run.method))
        if same:
            return max(same)
        similar = self.seconds.get((run.stream,)) or self.seconds.get(())
        return statistics.fmean(similar) if similar else None


class Progress:
    """What a display shows of a grid; told by `Reproduction`, one call at a time."""

    def planned(self, runs: Sequence[Planned], already: int) -> None: ...
    def started(self, run: Planned) -> Listener:
        return Listener()

    def finished(self, run: Planned, line: Line, seconds_left: float | None) -> None: ...
    def failed(self, run: Planned, error: Exception) -> None: ...
    def stopped(self, run: Planned) -> None: ...


class Reproduction(Watch):
    """The missing runs of some experiments, carried out; every finished one is a line of the store at once."""

    def __init__(
        self, experiments: Sequence[Experiment], store: Store, executor: LocalExecutor, progress: Progress, *, again: bool = False
    ):
        self.store, self.executor, self.progress = store, executor, progress
        lines = store.read()
        wanted: dict[Key, Planned] = {}
        for run in (run for experiment in experiments for run in experiment.runs):
            wanted.setdefault(run.key, run)  # experiments share runs: the first that names one does it
            if run.keep:
                wanted[run.key] = run
        self.again = again
        self.missing = [run for run in wanted.values() if again or not run.done(lines)]
        if again:  # those done longest ago first, so that several sittings add up
            self.missing.sort(key=lambda run: lines.get(run.key, {}).get("ended", ""))
        self.already = len(wanted) - len(self.missing)
        self.device = device_name(executor.device)
        self.expectation = Expectation(lines, self.device, executor.jobs_at_once)
        self.about = {"commit": commit(), **versions()}
        self.how: dict[str, Any] = {}
        self.left = list(self.missing)
        self.shared: dict[Key, Shared | None] = {}
        self.beginnings = Beginnings(self._wanted)
        self.begun: set[Key] = set()  # runs that went on from a beginning another run had learned
        self.kept: dict[Key, dict[str, Any]] = {}
        self.costs: dict[Key, dict[str, Any] | None] = {}
        self.running: dict[Hashable, tuple[Planned, float]] = {}
        self.done: list[Planned] = []
        self.errors: list[tuple[Planned, Exception]] = []

    def carry_out(self, how: Mapping[str, Any] | None = None) -> None:
        """Do what is missing, as far as the time goes; `how` are settings of `HOW`."""
        self.how = dict(how or {})
        self.shared = self._shared_by(self.missing)
        self.executor.beginnings = self.beginnings
        self.progress.planned(self.missing, self.already)
        self.executor.carry_out(self._next_jobs(), self)

    @property
    def written(self) -> int:
        """How many of the missing runs the store holds now."""
        lines = self.store.read()
        return sum(run.done(lines) for run in self.missing)

    def _next_jobs(self) -> Iterator[Job | None]:
        """The first run left that is expected to end in time and need not wait; one of unknown length is tried."""
        while self.left:
            others = [run for run in self.left if not self._waits(run)]
            ready = [run for run in others if self._fits(run)]
            if not ready and len(others) == len(self.left):
                return
            if not ready:
                yield None  # those that wait may fit yet: once its beginning is known, a run is shorter
                continue
            run = next((run for run in ready if self._known(run)), ready[0])  # what is known can be forgotten the sooner
            self.left.remove(run)
            if not self.again and run.done(self.store.read()):
                continue  # another process at work on the same folder has done it meanwhile
            shared = self.shared[run.key]
            beginning = None if shared is None else self.beginnings.take(shared)
            if beginning is not None:
                self.begun.add(run.key)
            self.running[run.key] = (run, time.monotonic())
            yield Job(run.stream, run.method, run.seed, {**run.settings, **self.how}, beginning=beginning, tag=run.key)

    def _fits(self, run: Planned) -> bool:
        expected, deadline = self._expected(run), self.executor.deadline
        return deadline is None or time.monotonic() + (expected or 0) < deadline

    def _expected(self, run: Planned) -> float | None:
        return self.expectation.of(run, run.key in self.begun or self._known(run))

    def _shared_by(self, runs: Sequence[Planned]) -> dict[Key, Shared | None]:
        """What each run may share; seeds of one shape are set up once."""
        found: dict[Key, Shared | None] = {}
        setups: dict[tuple[str, ...], Setup | None] = {}
        for run in runs:
            outline, kind = outline_of(run.stream), run.key[:3]
            if kind not in setups:
                try:
                    setups[kind] = set_up(outline, run.method, *settings_table(None, {**run.settings, **self.how}))
                except AfafError:  # an outcome, which the run itself will meet
                    setups[kind] = None
            setup = setups[kind]
            found[run.key] = None if setup is None else shared_by(setup.method, setup.config, outline.name, len(outline), run.seed)
        return found

    def _wanted(self, shared: Shared) -> bool:
        """Whether a run that has not begun shares this beginning."""
        return any(self.shared[run.key] == shared for run in list(self.left))

    def _known(self, run: Planned) -> bool:
        """Whether the beginning that a run shares has been learned."""
        shared = self.shared[run.key]
        return shared is not None and shared in self.beginnings

    def _waits(self, run: Planned) -> bool:
        """Whether a run in progress is learning the beginning that this one shares."""
        shared = self.shared[run.key]
        others = [other for other, _ in list(self.running.values())]
        return shared is not None and not self._known(run) and any(self.shared[other.key] == shared for other in others)

    @property
    def seconds_left(self) -> float | None:
        """How long the rest will take, shared out over the runs side by side."""
        rest = [self._expected(run) for run in list(self.left)]
        for run, since in list(self.running.values()):
            expected = self._expected(run)
            rest.append(None if expected is None else max(0.0, expected - (time.monotonic() - since)))
        if any(seconds is None for seconds in rest):
            return None
        return sum(seconds for seconds in rest if seconds is not None) / self.executor.jobs_at_once

    # What the executor tells.

    def started(self, job: Job) -> Listener:
        run, _ = self.running[job.tag]
        self.running[job.tag] = (run, time.monotonic())
        return self.progress.started(run)

    def learned(self, job: Job, results: Results) -> None:
        run, _ = self.running[job.tag]
        config = self._config(job)
        stream = as_configured(self.executor.stream_of(job), config)
        self.costs[run.key] = _costs(job, stream)
        if run.keep and results.model is not None:
            with at_work(config.run.precision, self.executor.device):
                self.kept[run.key] = {name: KEEPERS[name](results.model, stream) for name in run.keep}

    def finished(self, job: Job, results: Results) -> None:
        run, since = self.running.pop(job.tag)
        line = self._line(run, job, results)
        self._put(run, line, time.monotonic() - since)

    def failed(self, job: Job, error: Exception) -> None:
        """A network that has no room and a loss that is no number are outcomes, kept like others; anything else is told and left out."""
        run, since = self.running.pop(job.tag)
        if isinstance(error, (CapacityError, DivergedError)):
            seconds = time.monotonic() - since
            self._put(run, {**_head(run), "failed": str(error), "kind": type(error).__name__, **self._where(job, seconds)}, None)
        else:
            self.errors.append((run, error))
            self.progress.failed(run, error)

    def errors_by_message(self) -> dict[str, list[Planned]]:
        """What went wrong, each once, with the runs it befell."""
        found: dict[str, list[Planned]] = {}
        for run, error in self.errors:
            found.setdefault(str(error) or type(error).__name__, []).append(run)
        return found

    def stopped(self, job: Job) -> None:
        run, _ = self.running.pop(job.tag)
        self.begun.discard(run.key)
        self.left.insert(0, run)
        self.progress.stopped(run)

    def _put(self, run: Planned, line: Line, seconds: float | None) -> None:
        self.store.append(run.experiment, line)
        self.done.append(run)
        if seconds is not None:
            self.expectation.learn(run.stream, run.method, seconds, run.key in self.begun)
        self.progress.finished(run, line, self.seconds_left)

    def _line(self, run: Planned, job: Job, results: Results) -> Line:
        found = {name: _rounded(value) for name, value in results.metrics().items()}
        line = {
            **_head(run),
            **{name: found[name] for name in ("acc", "bwt", "la", "acc_task_il", "task_id_accuracy", "forward_transfer")},
            "R": _rounded_rows(results.R),
            "R_task_il": _rounded_rows(results.R_task_il),
            "task_id": [_rounded(value) for value in results.task_id],
            "confusion": results.confusion,
            "params": results.params,
            "dense_params": results.dense_params,
            "costs": self.costs.pop(run.key),
        }
        if results.R_task_il_unmasked is not None:
            line["acc_task_il_unmasked"] = found["acc_task_il_unmasked"]
            line["R_task_il_unmasked"] = _rounded_rows(results.R_task_il_unmasked)
        if run.key in self.kept:
            line["kept"] = self.kept.pop(run.key)
        shared = self.shared[run.key]
        if shared is not None and run.key in self.begun:
            line["shared_tasks"] = shared.lessons  # learned by another run, whose time they took is counted here, too
        if results.warnings:
            line["warnings"] = results.warnings
        return {**line, **self._where(job, results.seconds)}

    def _config(self, job: Job) -> Config:
        """All settings of a job, also of one whose network has no room."""
        kind, outline = method_class(job.method), self.executor.stream_of(job).outline
        return build_config(kind.Options, *preset_tables(outline, kind), *settings_table(job.config, job.settings))

    def _where(self, job: Job, seconds: float) -> Line:
        device, run = self.executor.device, self._config(job).run
        return {
            "seconds": round(seconds, 2),
            "jobs_at_once": self.executor.jobs_at_once,
            "device": self.device,
            "engine": find_engine(run.engine, device).name,
            "precision": run.precision if device.type == "cuda" else "fp32",
            "ended": datetime.now(UTC).isoformat(timespec="milliseconds"),
            **self.about,
        }


def _head(run: Planned) -> Line:
    return {"stream": run.stream, "method": run.method, "settings": dict(run.settings), "seed": run.seed}


def _costs(job: Job, stream: Stream) -> dict[str, Any] | None:
    """Of the stream as it was learned; None for a method that does not say what it will use."""
    try:
        found = asdict(costs(stream, job.method, settings=job.settings))
    except ConfigError:
        return None
    return {name: _significant(found[name]) for name in COSTS}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _rounded_rows(rows: list[Row]) -> list[Row]:
    return [[_rounded(value) for value in row] for row in rows]


def _significant(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
