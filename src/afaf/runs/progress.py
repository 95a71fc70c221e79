"""The position and the results of a run so far: together with the learner, the contents of a checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from afaf.storage.state import Description, Named, build, describe, stored_tensors
from afaf.training.learner import Learner
from afaf.training.report import EpochReport

Row = list[float | None]


@dataclass(frozen=True)
class Position:
    """Where a run stands: how many lessons are over, and how far the present one is."""

    lesson: int = 0
    begun: bool = False  # the lesson has begun, and so has its `phase`: neither is to be started again
    phase: int = 0
    epochs: int = 0  # of the phase that are over

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Position:
        position = cls(data["lesson"], data["begun"], data["phase"], data["epochs"])
        numbers = (position.lesson, position.phase, position.epochs)
        if type(position.begun) is not bool or not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError("its position in the run makes no sense")
        return position

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        if not self.begun:
            return f"lesson {self.lesson} learned" if self.lesson else "nothing learned yet"
        phase = f", phase {self.phase + 1}" if self.phase else ""
        return f"lesson {self.lesson + 1}{phase}, {self.epochs} epoch{'s' if self.epochs != 1 else ''} learned"


@dataclass
class RunProgress:
    """R matrices and the rest that results are made of, filled lesson by lesson."""

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

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], n_tasks: int) -> RunProgress:
        """Raises ValueError, KeyError or TypeError for anything that no run of so many tasks could have found."""
        progress = cls(**{**data, "last_epoch": None if data["last_epoch"] is None else EpochReport(**data["last_epoch"])})
        rows = [*progress.R, *progress.R_task_il, *progress.R_task_il_unmasked, progress.task_id, progress.before]
        lengths = [*range(1, n_tasks + 1)] * 3 + [n_tasks] * 2
        if [len(row) for row in rows] != lengths or not all(value is None or type(value) in (int, float) for row in rows for value in row):
            raise ValueError("its results make no sense for this stream")
        if not all(isinstance(warning, str) for warning in progress.warnings) or not isinstance(progress.confusion, list):
            raise ValueError("its results make no sense")
        progress.seconds, progress.seconds_learning = float(progress.seconds), float(progress.seconds_learning)
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
        return cls(tasks, describe(learner), stored_tensors(learner), progress.to_dict())

    def restore(self, n_tasks: int, device: torch.device) -> tuple[Learner, RunProgress]:
        """Return independent copies."""
        tensors = {name: tensor.clone() for name, tensor in self.tensors.items()}
        return build(Description.parse(self.learner), tensors, device), RunProgress.from_dict(copy.deepcopy(self.progress), n_tasks)
