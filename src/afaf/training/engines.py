"""The engines: how a learning plan is carried out. All give the same results up to the order and precision of floating-point sums."""

from __future__ import annotations

from typing import Literal, Protocol

import torch

from afaf.errors import ConfigError
from afaf.training.compact import CompactEngine
from afaf.training.cuda.graphed import GraphedEngine
from afaf.training.cuda.kernels import available
from afaf.training.eager import EagerEngine
from afaf.training.learner import Learner
from afaf.training.plan import LearningPlan
from afaf.training.precision import Precision
from afaf.training.report import OnEpoch
from afaf.training.task_data import TaskData

EngineName = Literal["auto", "eager", "compact", "graphed"]

__all__ = ["CompactEngine", "EagerEngine", "Engine", "EngineName", "GraphedEngine", "Precision", "find_engine"]


class Engine(Protocol):
    """Carries out a learning plan on a learner, reporting every epoch."""

    name: str

    def learn(
        self, learner: Learner, plan: LearningPlan, data: TaskData, on_epoch: OnEpoch | None = None, first_epoch: int = 0
    ) -> None: ...


def find_engine(name: EngineName, device: torch.device, precision: Precision = "tf32") -> Engine:
    """The engine of this name; `auto` is graphed on a CUDA device for which there is Triton, and compact elsewhere."""
    if name == "auto":
        name = "graphed" if available(device) else "compact"
    if name == "graphed":
        if device.type == "cuda" and not available(device):
            raise ConfigError("run.engine=graphed needs Triton on a CUDA device, and it is not installed: set run.engine=compact")
        return GraphedEngine(precision)
    return EagerEngine(precision) if name == "eager" else CompactEngine(precision)
