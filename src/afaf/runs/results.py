"""The results of a run: R matrices, metrics, costs. Accuracies are percentages; a missing value is None."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any

from afaf.bounds import LARGEST, Count, Finite, Percent, Whole, Within, shown
from afaf.checked import build
from afaf.errors import ConfigError, RunError
from afaf.evaluation import metrics
from afaf.storage.model_file import Model

if TYPE_CHECKING:
    import pandas

CLOSE = 1e-6  # tolerance in percent: the last bits of a mean differ between machines
Row = list[Percent | None]


@dataclass
class Results:
    """The results of one run. Accuracies are percentages; a metric that cannot be computed is None.

    `R[j][i]` is the class-IL accuracy on task i+1 after task j+1, for the tasks seen by then; `R_task_il` is the same with the task known.
    `confusion` counts true class by predicted class after the last task, in the order of `class_names`.
    """

    stream: str
    method: str
    seed: Whole
    R: list[Row]
    R_task_il: list[Row]
    task_id: Row  # share of held-out images answered with a class of the right task, averaged over tasks as ACC is, after each task
    before: Row  # task-IL accuracy on each task just before it was learned
    confusion: list[list[Whole]]  # after the last task: true class by predicted class
    class_names: list[list[str]]  # by task
    params: Whole
    dense_params: Annotated[int, Within(1, LARGEST)]
    seconds: Finite = 0.0
    seconds_learning: Finite = 0.0
    device: str = "cpu"
    warnings: list[str] = field(default_factory=list)
    run: str | None = None  # the run folder
    R_task_il_unmasked: list[Row] | None = None  # task-IL from the logits of class-IL, if a method has others when the task is known
    network: str | None = None  # its name, and below its width; results of earlier versions lack both, and the commit
    width: Count | None = None
    commit: str | None = None  # at the end of the run; config.json has the one at its start
    model: Model | None = field(default=None, repr=False, compare=False)  # in memory; the folder has it as a file

    @property
    def acc(self) -> float | None:
        """ACC: the mean class-IL accuracy over all tasks after the last one."""
        return metrics.average_accuracy(self.R)

    @property
    def bwt(self) -> float | None:
        """BWT: the mean change of a task's accuracy since it was learned; negative means forgetting."""
        return metrics.backward_transfer(self.R)

    @property
    def la(self) -> float | None:
        """LA: the mean accuracy of each task right after it was learned."""
        return metrics.learning_accuracy(self.R)

    @property
    def acc_task_il(self) -> float | None:
        """ACC with the task of each image known."""
        return metrics.average_accuracy(self.R_task_il)

    @property
    def acc_task_il_unmasked(self) -> float | None:
        """ACC with the task known, from the logits of class-IL: all connections, while `acc_task_il` uses the task's mask."""
        return metrics.average_accuracy(self.R_task_il_unmasked or self.R_task_il)

    @property
    def bwt_task_il(self) -> float | None:
        """BWT with the task of each image known."""
        return metrics.backward_transfer(self.R_task_il)

    @property
    def forgetting(self) -> float | None:
        """The mean drop of a task's accuracy from its best value."""
        return metrics.forgetting(self.R)

    @property
    def forward_transfer(self) -> float | None:
        """The mean task-IL accuracy on a task just before it is learned, minus chance."""
        return metrics.forward_transfer(self.before, [100 / len(names) for names in self.class_names])

    @property
    def average_incremental_accuracy(self) -> float | None:
        """The mean over time of the mean accuracy on the tasks seen so far."""
        return metrics.average_incremental_accuracy(self.R)

    @property
    def task_id_accuracy(self) -> float | None:
        """The share of predictions that are a class of the right task, after the last task."""
        return self.task_id[-1]

    def metrics(self) -> dict[str, float | None]:
        """Return every metric by name."""
        return {name: getattr(self, name) for name in METRICS}

    def to_dict(self) -> dict[str, Any]:
        """Return everything, metrics included, in a form that JSON can store."""
        stored = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "model"}
        head = {name: stored.pop(name) for name in ("stream", "method", "seed")}
        return {**head, **self.metrics(), **stored}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Results:
        """Read the output of `to_dict`; raises `RunError`, naming the field, if no run can have written it.

        Old results may lack fields with a default.
        """
        try:
            stored = build(dict[str, Finite | None], {name: value for name, value in data.items() if name in METRICS})
            results: Results = build(cls, {name: value for name, value in data.items() if name not in (*METRICS, "format")})
        except ConfigError as error:
            raise RunError(str(error)) from None
        if wrong := _misfit(results) or _contradiction(results, stored):
            raise RunError(wrong)
        return results

    def to_pandas(self) -> pandas.DataFrame:
        """Return a table with one row for each task learned and task evaluated (needs pandas)."""
        try:
            import pandas
        except ImportError:
            raise ConfigError("pandas is not installed: pip install 'afaf[pandas]', or use to_dict()") from None
        rows = [
            {"after_task": j + 1, "task": i + 1, "class_il": value, "task_il": self.R_task_il[j][i]}
            for j, row in enumerate(self.R)
            for i, value in enumerate(row)
        ]
        return pandas.DataFrame(rows).assign(stream=self.stream, method=self.method, seed=self.seed)

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name}={value:.2f}" for name, value in self.metrics().items() if value is not None)
        return f"Results({self.stream}, {self.method}, seed {self.seed}: {numbers})"


METRICS = tuple(name for name, value in vars(Results).items() if isinstance(value, property))


def _contradiction(results: Results, stored: dict[str, float | None]) -> str:
    """A stored metric that does not follow from the accuracies."""
    for name, expected in results.metrics().items():
        value = stored.get(name, expected)
        same = value is expected if value is None or expected is None else math.isclose(value, expected, rel_tol=0, abs_tol=CLOSE)
        if not same:
            return f"{name} is {shown(value)}, but {shown(expected)} follows from the accuracies"
    return ""


def _misfit(results: Results) -> str:
    """A field that does not fit the named tasks and classes."""
    tasks, classes = len(results.class_names), sum(map(len, results.class_names))
    if not tasks or not all(results.class_names):
        return "class_names must name the classes of each task"
    for name in ("R", "R_task_il", "R_task_il_unmasked"):
        rows = getattr(results, name)
        if rows is not None and [len(row) for row in rows] != list(range(1, tasks + 1)):
            return f"{name} must have a row for each of {tasks} tasks, of 1 to {tasks} numbers"
    for name in ("task_id", "before"):
        if len(getattr(results, name)) != tasks:
            return f"{name} must have a number for each of {tasks} tasks"
    if len(results.confusion) != classes or len(set(map(len, results.confusion))) != 1:
        return f"confusion must have a row for each of {classes} classes, all of the same length"
    return ""


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (ddof 1) over n seeds."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        numbers = list(values)
        if not numbers:
            return None
        return cls(statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else None, len(numbers))

    def __format__(self, sign: str) -> str:
        return f"{self.mean:{sign}.2f}" + ("" if self.std is None else f" ± {self.std:.2f}")

    def __str__(self) -> str:
        return format(self)


@dataclass
class Summary:
    """Several runs that differ in their seed: mean and standard deviation (ddof 1) of each metric."""

    runs: list[Results]

    def spread(self, metric: str) -> Spread | None:
        """A metric over the runs that have it."""
        return Spread.of(value for run in self.runs if (value := getattr(run, metric)) is not None)

    @property
    def mean(self) -> dict[str, float | None]:
        """The mean of each metric over the runs that have it."""
        return {name: spread.mean if (spread := self.spread(name)) else None for name in METRICS}

    @property
    def std(self) -> dict[str, float | None]:
        """The standard deviation of each metric; None for fewer than two runs."""
        return {name: spread.std if (spread := self.spread(name)) else None for name in METRICS}

    def minus(self, other: Summary, metric: str) -> Spread | None:
        """The differences in a metric over the seeds that both have."""
        base = {run.seed: getattr(run, metric) for run in other.runs}
        pairs = [(getattr(run, metric), base.get(run.seed)) for run in self.runs]
        return Spread.of(mine - theirs for mine, theirs in pairs if mine is not None and theirs is not None)

    def to_dict(self) -> dict[str, Any]:
        """Return the runs, means and standard deviations in a form that JSON can store."""
        return {"runs": [run.to_dict() for run in self.runs], "mean": self.mean, "std": self.std}
