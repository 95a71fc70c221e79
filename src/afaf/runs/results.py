"""What a run found: R matrices, metrics, costs. Accuracies are percentages; what was not or cannot be measured is None."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from afaf.evaluation import metrics
from afaf.model.file import Model

if TYPE_CHECKING:
    import pandas

Row = list[float | None]


@dataclass
class Results:
    """`R[j][i]`: class-IL accuracy on task i+1 after task j+1, for the tasks seen by then; `R_task_il`: the same with the task known."""

    stream: str
    method: str
    seed: int
    R: list[Row]
    R_task_il: list[Row]
    task_id: Row  # share of held-out images answered with a class of the right task, averaged over tasks as ACC is, after each task
    before: Row  # task-IL accuracy on each task just before it was learned
    confusion: list[list[int]]  # after the last task: true class by predicted class
    class_names: list[list[str]]  # by task
    params: int
    dense_params: int
    seconds: float = 0.0
    seconds_learning: float = 0.0
    device: str = "cpu"
    warnings: list[str] = field(default_factory=list)
    run: str | None = None  # the run folder
    R_task_il_unmasked: list[Row] | None = None  # task-IL from the logits of class-IL, where a method answers otherwise with the task known
    model: Model | None = field(default=None, repr=False, compare=False)  # what was learned, in memory; the folder has it as a file

    @property
    def acc(self) -> float | None:
        return metrics.average_accuracy(self.R)

    @property
    def bwt(self) -> float | None:
        return metrics.backward_transfer(self.R)

    @property
    def la(self) -> float | None:
        return metrics.learning_accuracy(self.R)

    @property
    def acc_task_il(self) -> float | None:
        return metrics.average_accuracy(self.R_task_il)

    @property
    def acc_task_il_unmasked(self) -> float | None:
        """Task-IL accuracy with the logits of class-IL: with all connections, where `acc_task_il` is with the task's own mask."""
        return metrics.average_accuracy(self.R_task_il_unmasked or self.R_task_il)

    @property
    def bwt_task_il(self) -> float | None:
        return metrics.backward_transfer(self.R_task_il)

    @property
    def forgetting(self) -> float | None:
        return metrics.forgetting(self.R)

    @property
    def forward_transfer(self) -> float | None:
        return metrics.forward_transfer(self.before, [100 / len(names) for names in self.class_names])

    @property
    def average_incremental_accuracy(self) -> float | None:
        return metrics.average_incremental_accuracy(self.R)

    @property
    def task_id_accuracy(self) -> float | None:
        return self.task_id[-1]

    METRICS = (
        "acc",
        "bwt",
        "la",
        "acc_task_il",
        "acc_task_il_unmasked",
        "bwt_task_il",
        "forgetting",
        "forward_transfer",
        "average_incremental_accuracy",
        "task_id_accuracy",
    )

    def metrics(self) -> dict[str, float | None]:
        return {name: getattr(self, name) for name in self.METRICS}

    def to_dict(self) -> dict[str, Any]:
        """Everything, metrics among it, as JSON can hold it."""
        stored = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "model"}
        head = {name: stored.pop(name) for name in ("stream", "method", "seed")}
        return {**head, **self.metrics(), **stored}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Results:
        return cls(**{name: value for name, value in data.items() if name not in cls.METRICS and name != "format"})

    def to_pandas(self) -> pandas.DataFrame:
        """One row for each task learned and task judged (needs pandas)."""
        import pandas

        rows = [
            {"after_task": j + 1, "task": i + 1, "class_il": value, "task_il": self.R_task_il[j][i]}
            for j, row in enumerate(self.R)
            for i, value in enumerate(row)
        ]
        return pandas.DataFrame(rows).assign(stream=self.stream, method=self.method, seed=self.seed)

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name}={value:.2f}" for name, value in self.metrics().items() if value is not None)
        return f"Results({self.stream}, {self.method}, seed {self.seed}: {numbers})"


@dataclass
class Summary:
    """Several runs that differ in their seed: mean and standard deviation (ddof 1) of each metric."""

    runs: list[Results]

    def _over_seeds(self, statistic: Any, at_least: int) -> dict[str, float | None]:
        numbers: dict[str, float | None] = {}
        for name in Results.METRICS:
            values = [value for run in self.runs if (value := getattr(run, name)) is not None]
            numbers[name] = statistic(values) if len(values) >= at_least else None
        return numbers

    @property
    def mean(self) -> dict[str, float | None]:
        return self._over_seeds(statistics.fmean, 1)

    @property
    def std(self) -> dict[str, float | None]:
        return self._over_seeds(statistics.stdev, 2)

    def to_dict(self) -> dict[str, Any]:
        return {"runs": [run.to_dict() for run in self.runs], "mean": self.mean, "std": self.std}
