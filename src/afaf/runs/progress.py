"""The position and the results of a run so far: together with the learner, the contents of a checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from afaf import checked
from afaf.bounds import CountOrZero
from afaf.storage.description import Description, describe
from afaf.storage.state import Named, build, stored_tensors
from afaf.training.learner import Learner
from afaf.training.report import EpochReport

Row = list[float | None]


@dataclass(frozen=True)
class Position:
    """How far a run is. Joint training, which learns all tasks together, counts them as one."""

    tasks: CountOrZero = 0  # learned
    begun: bool = False  # the next task and its `phase` are in progress
    phase: CountOrZero = 0
    epochs: CountOrZero = 0  # of the phase, learned

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Position:
        # "lesson" is the name in checkpoints of earlier versions.
        position: Position = checked.build(cls, {"tasks" if name == "lesson" else name: value for name, value in data.items()}, "position")
        return position

    def __str__(self) -> str:
        if not self.begun:
            return f"task {self.tasks} learned" if self.tasks else "nothing learned yet"
        phase = f", phase {self.phase + 1}" if self.phase else ""
        return f"task {self.tasks + 1}{phase}, {self.epochs} epoch{'s' if self.epochs != 1 else ''} learned"


@dataclass
class RunProgress:
    """The measurements that results consist of, filled task by task."""

    R: list[Row]
    R_task_il: list[Row]
    R_task_il_unmasked: list[Row]
    task_id: Row
    before: Row
    confusion: list[list[int]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    last_epoch: EpochReport | None = None
    seconds: float = 0.0
    seconds_learning: float = 0.0

    @classmethod
    def fresh(cls, n_tasks: int) -> RunProgress:
        def triangle() -> list[Row]:
            return [[None] * (j + 1) for j in range(n_tasks)]

        return cls(triangle(), triangle(), triangle(), [None] * n_tasks, [None] * n_tasks)

    @classmethod
    def parse(cls, data: Mapping[str, Any], n_tasks: int) -> RunProgress:
        """Raise ConfigError or ValueError unless it can be the progress of a run of `n_tasks` tasks."""
        progress: RunProgress = checked.build(cls, data, "progress")
        rows = [*progress.R, *progress.R_task_il, *progress.R_task_il_unmasked, progress.task_id, progress.before]
        if [len(row) for row in rows] != [*range(1, n_tasks + 1)] * 3 + [n_tasks] * 2:
            raise ValueError("its results do not fit the tasks of the stream")
        return progress


@dataclass(frozen=True)
class RunState:
    """A run between two tasks, copied to host memory."""

    tasks: int  # learned so far
    learner: dict[str, Any]
    tensors: Named
    progress: dict[str, Any]

    @classmethod
    def of(cls, tasks: int, learner: Learner, progress: RunProgress) -> RunState:
        return cls(tasks, describe(learner), stored_tensors(learner), asdict(progress))

    def restore(self, n_tasks: int, device: torch.device) -> tuple[Learner, RunProgress]:
        """Return independent copies."""
        tensors = {name: tensor.clone() for name, tensor in self.tensors.items()}
        return build(Description.parse(self.learner), tensors, device), RunProgress.parse(copy.deepcopy(self.progress), n_tasks)
