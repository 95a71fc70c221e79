"""Statistics of a folder of results: runs by shape, mean and standard deviation over seeds, paired differences."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from scipy import stats

from afaf.evaluation import metrics
from afaf.runs.results import Row, Spread
from afaf.streams.benchmarks import BENCHMARKS, outline_of
from afaf.streams.class_order import seed_of
from afaf.sweeps.store import Line

BySeed = dict[int, float]
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Shape:
    """The stream, method and settings of runs that differ only in their seed."""

    stream: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.stream, self.method, json.dumps(self.settings, sort_keys=True)


@dataclass(frozen=True)
class Paired:
    """The mean difference over n paired seeds with its 95 % confidence interval (Student's t)."""

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
        """The one-sided p-value: the probability of a mean this low or lower if the true difference is `bound`."""
        if not self.error:
            return 1.0 if self.error is None or self.mean >= bound else 0.0
        return float(stats.t.cdf((self.mean - bound) / self.error, self.n - 1))

    def __str__(self) -> str:
        interval = "" if self.low is None or self.high is None else f" [{self.low:+.2f}, {self.high:+.2f}]"
        return f"{self.mean:+.2f}{interval}"


class Measured:
    """The lines of a folder of results, by shape and seed."""

    def __init__(self, lines: Iterable[Line]):
        self.lines = list(lines)
        self._by_shape: dict[tuple[str, str, str], dict[int, Line]] = {}
        for line in self.lines:
            shape = Shape(line["stream"], line["method"], line["settings"])
            self._by_shape.setdefault(shape.key, {})[line["seed"]] = line

    def shapes(self) -> list[Shape]:
        """Return all shapes."""
        firsts = (next(iter(by_seed.values())) for by_seed in self._by_shape.values())
        return [Shape(line["stream"], line["method"], line["settings"]) for line in firsts]

    def runs(self, shape: Shape) -> dict[int, Line]:
        """Return the successful runs by seed."""
        return {seed: line for seed, line in sorted(self._by_shape.get(shape.key, {}).items()) if failure(line) is None}

    def failures(self, shape: Shape) -> dict[int, str]:
        """Return the reasons of failure by seed."""
        reasons = {seed: failure(line) for seed, line in sorted(self._by_shape.get(shape.key, {}).items())}
        return {seed: why for seed, why in reasons.items() if why is not None}

    def values(self, shape: Shape, metric: str | Callable[[Line], float | None]) -> BySeed:
        """Return a metric by seed, for runs that have it: a field of the line, or a function of the line."""
        values = {seed: metric(line) if callable(metric) else line.get(metric) for seed, line in self.runs(shape).items()}
        return {seed: value for seed, value in values.items() if value is not None}

    def count(self, shape: Shape) -> str:
        """Return the number of successful seeds, as "2 of 3" if some failed."""
        ended, failed = len(self.runs(shape)), len(self.failures(shape))
        return f"{ended} of {ended + failed}" if failed else str(ended)

    def spread(self, shape: Shape, metric: str | Callable[[Line], float | None]) -> Spread | None:
        return Spread.of(self.values(shape, metric).values())


def failure(line: Line) -> str | None:
    """Return why a run cannot enter a mean: it stopped, or its network ends no better than chance. None if it can."""
    if "failed" in line:
        return str(line["failed"])
    sizes = task_sizes(line)
    if sizes is None:
        return None  # the number of classes per task is not known without the data
    R = line["R_task_il"]
    alive = [task for task, row in enumerate(R, 1) if not metrics.only_guesses(row, sizes)]
    if len(R) in alive:
        return None
    since = f"collapsed in task {alive[-1] + 1} and guesses from there on" if alive else "guesses from the first task on"
    return f"the network {since} (ACC {line['acc']:.2f})"


def minus(a: BySeed, b: BySeed) -> BySeed:
    """Return the differences for the common seeds."""
    return {seed: a[seed] - b[seed] for seed in a if seed in b}


def mean_matrix(matrices: Sequence[Sequence[Row]]) -> list[Row]:
    """Average R matrices over seeds, entry by entry; None if a seed has no value."""
    mean: list[Row] = []
    for rows in zip(*matrices, strict=True):
        mean.append([None if any(v is None for v in column) else float(np.mean(column)) for column in zip(*rows, strict=True)])
    return mean


def class_names(line: Line) -> Sequence[Sequence[str]] | None:
    """Return the classes of each task; None for a stream of which neither the line nor the package knows them."""
    if line.get("class_names") or line["stream"] not in BENCHMARKS:
        return line.get("class_names")
    order = str(line["settings"].get("stream.order", ""))
    if order and "," not in order and seed_of(order) is None:
        return None  # the order is in a file, which may have changed
    return _class_names(line["stream"], line["settings"].get("stream.classes_per_task"), order)


def task_sizes(line: Line) -> list[int] | None:
    """Return the number of classes of each task, which no order changes; None if the stream's classes are unknown."""
    names = class_names({**line, "settings": {name: value for name, value in line["settings"].items() if name != "stream.order"}})
    return None if names is None else [len(task) for task in names]


@cache
def _class_names(stream: str, classes_per_task: int | None, order: str) -> Sequence[Sequence[str]]:
    options: dict[str, Any] = {} if classes_per_task is None else {"classes_per_task": classes_per_task}
    return outline_of(stream, **options, order=order).class_names
