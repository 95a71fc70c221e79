"""A learning rate that falls when learning gets no further: the schedule of FACIL, with which the paper ran EWC, MAS and LwF.

After each epoch the loss on images held out is looked at, penalties included. While it falls, how the network stands is kept. After
`learn.patience` epochs without a lower one the rate goes down to a third and learning goes on from the best epoch; below 1e-4 it ends. In
the end the network is that of the best epoch.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from functools import partial

import torch
from torch import Tensor

from afaf.errors import ConfigError
from afaf.methods.base import Method
from afaf.methods.dense import DenseMethod
from afaf.network.forward import forward
from afaf.runs.config import Config
from afaf.training.engines import Engine
from afaf.training.learner import Learner
from afaf.training.named import everything, find, forget, keep
from afaf.training.plan import LearningPlan, Step
from afaf.training.report import EpochReport, OnEpoch
from afaf.training.task_data import TaskData

FACTOR, LOWEST = 3.0, 1e-4
KEPT = "schedule"  # in the learner's memory, so that a run resumes in the midst of it


def check_patience(config: Config, method: Method[object]) -> None:
    """Whether a run can be as patient as it is asked to be."""
    if config.learn.patience and not isinstance(method, DenseMethod):
        raise ConfigError(f"learn.patience is for methods that train the whole network, and '{method.name}' does not: leave it out")
    if config.learn.patience and not config.run.validation:
        raise ConfigError("learn.patience needs images held out: set run.validation, for example to 0.1 as FACIL does")


@dataclass
class Schedule:
    """Where it stands."""

    lr: float
    best: float = torch.inf
    left: float = 0  # epochs without a lower loss until the rate falls

    def ended(self) -> bool:
        return self.lr < LOWEST

    def below(self, lr: float) -> bool:
        return self.lr < lr

    def keep(self, learner: Learner) -> None:
        learner.memory[f"{KEPT}/state"] = torch.tensor(astuple(self), dtype=torch.float64)

    @classmethod
    def kept(cls, learner: Learner) -> Schedule:
        return cls(*learner.memory[f"{KEPT}/state"].tolist())


class Patient:
    """An engine that learns with patience."""

    def __init__(self, engine: Engine, patience: int, held_out: TaskData, batch_size: int):
        self.engine, self.name = engine, engine.name
        self.patience, self.held_out, self.batch_size = patience, held_out, batch_size

    def learn(self, learner: Learner, plan: LearningPlan, data: TaskData, on_epoch: OnEpoch | None = None, first_epoch: int = 0) -> None:
        schedule = Schedule.kept(learner) if first_epoch else Schedule(plan.lr, left=self.patience)
        epoch = first_epoch

        def ended(report: EpochReport) -> None:
            nonlocal epoch
            epoch = report.epoch + 1
            self._look_back(learner, plan, schedule)
            if on_epoch is not None:
                on_epoch(report)

        while epoch < plan.epochs and not schedule.ended():
            with_this_rate = replace(plan, lr=schedule.lr, until=partial(schedule.below, schedule.lr))
            self.engine.learn(learner, with_this_rate, data, ended, epoch)
        _go_back(learner)
        forget(learner.memory, KEPT)

    def _look_back(self, learner: Learner, plan: LearningPlan, schedule: Schedule) -> None:
        loss = loss_on(learner, plan, self.held_out, self.batch_size)
        if loss < schedule.best:
            schedule.best, schedule.left = loss, self.patience
            keep(learner.memory, f"{KEPT}/best", everything(learner.network.parameters))
        else:
            schedule.left -= 1
            if schedule.left <= 0:
                schedule.lr, schedule.left = schedule.lr / FACTOR, self.patience
                _go_back(learner)
        schedule.keep(learner)


@torch.no_grad()
def loss_on(learner: Learner, plan: LearningPlan, data: TaskData, batch_size: int) -> float:
    """What a plan makes as small as it can, on images that it does not learn from."""
    network, total = learner.network, torch.zeros((), dtype=torch.float64, device=learner.network.device)
    for samples in torch.arange(len(data), device=data.device).split(batch_size):
        images, labels = data.batch(samples)
        logits: Tensor = forward(network.spec, network.parameters, images)
        total += plan.loss(Step(images, labels, logits, network.parameters)) * len(samples)
    return float(total) / len(data)


@torch.no_grad()
def _go_back(learner: Learner) -> None:
    """To the best epoch; where no loss was a number there is none."""
    stands = everything(learner.network.parameters)
    for name, tensor in find(learner.memory, f"{KEPT}/best").items():
        stands[name].copy_(tensor)
