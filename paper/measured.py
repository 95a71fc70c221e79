"""Results as the paper's tables and claims read them: metrics that only these need, presets, costs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cache

import numpy as np

from afaf.costing.predict import Costs
from afaf.evaluation import metrics
from afaf.report import measured
from afaf.report.measured import BySeed, Shape
from afaf.runs.config import Config, build_config
from afaf.runs.job import Job, method_class
from afaf.runs.presets import preset_tables
from afaf.runs.setup import costs_of
from afaf.streams.benchmarks import BENCHMARKS, outline_of
from afaf.sweeps.store import Line


class Measured(measured.Measured):
    """The lines of a folder of results; `DERIVED` metrics are known by name, too."""

    def values(self, shape: Shape, metric: str | Callable[[Line], float | None]) -> BySeed:
        return super().values(shape, DERIVED.get(metric, metric) if isinstance(metric, str) else metric)


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


@cache
def costs(stream: str, method: str) -> Costs:
    """The costs of a method with its preset on a built-in stream, without training."""
    return costs_of(Job(stream, method))


def first_reuse(stream: str) -> int:
    """The first task that reuses, in a stream's preset."""
    return _reuse(stream)[0]


def learning_rate(stream: str, method: str) -> float:
    """A method's learning rate in a stream's preset."""
    return float(_preset(stream, method).settings.learn.lr)


def la_reusing(line: Line) -> float | None:
    """LA over the tasks that reuse (the paper's study of selective transfer)."""
    return metrics.learning_accuracy(line["R"], first_reuse(line["stream"]))


def all_connections(line: Line) -> float | None:
    """Task-IL ACC with all connections; PackNet's own is with the task's mask."""
    value: float | None = line.get("acc_task_il_unmasked", line["acc_task_il"])
    return value


def task_found(line: Line) -> float | None:
    """Share of answers that are a class of the right task, averaged over tasks as ACC is."""
    names = measured.class_names(line)
    if names is None or not line.get("confusion"):
        return None
    counts, sizes = np.array(line["confusion"], dtype=float), [len(task) for task in names]
    ends = np.cumsum(sizes)
    tasks = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    return float(np.mean([100 * counts[task, task].sum() / counts[task].sum() for task in tasks]))


DERIVED: dict[str, Callable[[Line], float | None]] = {
    "task_found": task_found,
    "acc_task_il_unmasked": all_connections,
    "la_reusing": la_reusing,
}
STORED = ("acc", "bwt", "la", "acc_task_il")
