"""What results/ say: runs by shape, means with their spread, differences over paired seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from scipy import stats

from afaf.costing.predict import Costs
from afaf.evaluation import metrics
from afaf.runs.config import Config, build_config
from afaf.runs.presets import preset_tables
from afaf.runs.results import Row
from afaf.runs.runner import costs as predicted_costs
from afaf.runs.runner import method_class
from afaf.streams.benchmarks import BENCHMARKS, outline_of
from afaf.sweeps.store import Line

BySeed = dict[int, float]
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Shape:
    """Runs that differ in their seed alone."""

    stream: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.stream, self.method, json.dumps(self.settings, sort_keys=True)


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (ddof 1) over n seeds."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        known = list(values)
        if not known:
            return None
        return cls(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))

    def __str__(self) -> str:
        spread = "" if self.std is None else f" ± {self.std:.2f}"
        return f"{self.mean:.2f}{spread}"


@dataclass(frozen=True)
class Paired:
    """The mean of a difference over n paired seeds, and the interval that holds it with 95 % confidence (Student's t)."""

    mean: float
    low: float | None
    high: float | None
    n: int
    error: float | None = None  # the mean's standard error

    @classmethod
    def of(cls, differences: Iterable[float]) -> Paired | None:
        spread = Spread.of(differences)
        if spread is None:
            return None
        if spread.std is None:
            return cls(spread.mean, None, None, 1)
        error = spread.std / spread.n**0.5
        reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, spread.n - 1)) * error
        return cls(spread.mean, spread.mean - reach, spread.mean + reach, spread.n, error)

    def chance_of_so_low(self, bound: float) -> float:
        """How probable a mean as low as this is, or lower, if the true difference is `bound` (one-sided p)."""
        if not self.error:
            return 1.0 if self.error is None or self.mean >= bound else 0.0
        return float(stats.t.cdf((self.mean - bound) / self.error, self.n - 1))

    def __str__(self) -> str:
        interval = "" if self.low is None or self.high is None else f" [{self.low:+.2f}, {self.high:+.2f}]"
        return f"{self.mean:+.2f}{interval}"


class Measured:
    """The lines of results/, by shape and seed."""

    def __init__(self, lines: Iterable[Line]):
        self.lines = list(lines)
        self._by_shape: dict[tuple[str, str, str], dict[int, Line]] = {}
        for line in self.lines:
            shape = Shape(line["stream"], line["method"], line["settings"])
            self._by_shape.setdefault(shape.key, {})[line["seed"]] = line

    def shapes(self) -> list[Shape]:
        """Every kind of run there is."""
        firsts = (next(iter(by_seed.values())) for by_seed in self._by_shape.values())
        return [Shape(line["stream"], line["method"], line["settings"]) for line in firsts]

    def runs(self, shape: Shape) -> dict[int, Line]:
        """The runs that came to their end, by seed."""
        return {seed: line for seed, line in sorted(self._by_shape.get(shape.key, {}).items()) if failure(line) is None}

    def failures(self, shape: Shape) -> dict[int, str]:
        """Why the others did not, by seed."""
        found = {seed: failure(line) for seed, line in sorted(self._by_shape.get(shape.key, {}).items())}
        return {seed: why for seed, why in found.items() if why is not None}

    def values(self, shape: Shape, metric: str | Callable[[Line], float | None]) -> BySeed:
        """A metric by seed, of the runs that have it."""
        read = metric if callable(metric) else METRICS[metric]
        found = {seed: read(line) for seed, line in self.runs(shape).items()}
        return {seed: value for seed, value in found.items() if value is not None}

    def count(self, shape: Shape) -> str:
        """How many seeds came to their end, and of how many where not all did."""
        ended, failed = len(self.runs(shape)), len(self.failures(shape))
        return f"{ended} of {ended + failed}" if failed else str(ended)

    def spread(self, shape: Shape, metric: str | Callable[[Line], float | None]) -> Spread | None:
        return Spread.of(self.values(shape, metric).values())


def failure(line: Line) -> str | None:
    """Why a run has no numbers that could stand in a mean: it stopped, or its network does no better than guessing in the end."""
    if "failed" in line:
        return str(line["failed"])
    if line["stream"] not in BENCHMARKS:
        return None  # how many classes its tasks have, only its data could tell
    R, sizes = line["R_task_il"], _classes_per_task(line["stream"])
    alive = [task for task, row in enumerate(R, 1) if not metrics.only_guesses(row, sizes)]
    if len(R) in alive:
        return None
    since = f"collapsed in task {alive[-1] + 1} and guesses from there on" if alive else "guesses from the first task on"
    return f"the network {since} (ACC {line['acc']:.2f})"


@cache
def _preset(stream: str, method: str) -> Config:
    kind = method_class(method)
    return build_config(kind.Options, *preset_tables(outline_of(stream), kind))


@cache
def _reuse(stream: str) -> tuple[int, frozenset[str]]:
    """The first task that reuses in a stream's preset, and the settings that are of no matter before it."""
    config = _preset(stream, "afaf")
    task, late = method_class("afaf")(config.method, config.settings).late_options()
    return task, frozenset(f"method.{name}" for name in late)


def begun_apart(lines: Iterable[Line]) -> dict[str, set[str]]:
    """Streams on which runs of AFAF and SpaceNet, the same until a task reuses, are not: what was measured at several commits then holds
    what these changed. By stream, the commits."""
    alike: dict[tuple[str, int, str], list[Line]] = {}
    for line in lines:
        if line["method"] in ("afaf", "spacenet") and line["stream"] in BENCHMARKS and "R" in line:
            settings = {name: value for name, value in line["settings"].items() if name not in _reuse(line["stream"])[1]}
            alike.setdefault((line["stream"], line["seed"], json.dumps(settings, sort_keys=True)), []).append(line)
    apart: dict[str, set[str]] = {}
    for (stream, _, _), runs in alike.items():
        before = _reuse(stream)[0] - 1
        if any(run["R"][:before] != runs[0]["R"][:before] for run in runs):
            apart.setdefault(stream, set()).update(run["commit"] for run in runs)
    return apart


def minus(a: BySeed, b: BySeed) -> BySeed:
    """The difference, for the seeds that both have."""
    return {seed: a[seed] - b[seed] for seed in a if seed in b}


def mean_matrix(matrices: Sequence[Sequence[Row]]) -> list[Row]:
    """R matrices of several seeds, averaged entry by entry; None where a seed has none."""
    mean: list[Row] = []
    for rows in zip(*matrices, strict=True):
        mean.append([None if any(v is None for v in column) else float(np.mean(column)) for column in zip(*rows, strict=True)])
    return mean


@cache
def costs(stream: str, method: str) -> Costs:
    """What a method with its preset costs on a built-in stream: known without training."""
    return predicted_costs(stream, method)


@cache
def _classes_per_task(stream: str) -> Sequence[int]:
    return outline_of(stream).classes_per_task


def first_reuse(stream: str) -> int:
    """The first task that reuses, in a stream's preset."""
    return _reuse(stream)[0]


def learning_rate(stream: str, method: str) -> float:
    """A method's, in a stream's preset."""
    return float(_preset(stream, method).settings.learn.lr)


def la_reusing(line: Line) -> float | None:
    """LA over the tasks that reuse (the paper's study of selective transfer)."""
    return metrics.learning_accuracy(line["R"], first_reuse(line["stream"]))


def _all_connections(line: Line) -> float | None:
    value: float | None = line.get("acc_task_il_unmasked", line["acc_task_il"])
    return value


def _stored(name: str) -> Callable[[Line], float | None]:
    def read(line: Line) -> float | None:
        value: float | None = line.get(name)
        return value

    return read


def task_found(line: Line) -> float | None:
    """Share of answers that are a class of the right task, averaged over tasks as ACC is."""
    if line["stream"] not in BENCHMARKS or not line.get("confusion"):
        return None
    counts, sizes = np.array(line["confusion"], dtype=float), _classes_per_task(line["stream"])
    ends = np.cumsum(sizes)
    tasks = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    return float(np.mean([100 * counts[task, task].sum() / counts[task].sum() for task in tasks]))


METRICS: dict[str, Callable[[Line], float | None]] = {
    **{name: _stored(name) for name in ("acc", "bwt", "la", "acc_task_il")},
    "task_found": task_found,
    "acc_task_il_unmasked": _all_connections,
    "la_reusing": la_reusing,
}
