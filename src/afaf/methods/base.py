"""The base of methods. A method decides which parameters may change and returns plans; it has no loop and knows no device."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from afaf.costing.footprint import CostModel
from afaf.network.spec import NetworkSpec
from afaf.streams.tasks import Outline
from afaf.training.learner import Learner
from afaf.training.losses import CrossEntropy, LossOver, outputs_in_loss
from afaf.training.plan import LearningPlan
from afaf.training.settings import Settings
from afaf.training.task_data import TaskData


@dataclass(frozen=True)
class TaskContext:
    """The data of one training: usually one task; all of them for joint training."""

    task: int
    classes: tuple[int, ...]  # output rows: a row for each class, or with rotation self-labels four
    data: TaskData  # labelled by output row
    held_out: TaskData | None = None  # images not used for learning, for the plateau schedule
    warn: Callable[[str], None] = warnings.warn  # warns the user; a run stores the message with its results


Predictor = Callable[[Tensor], Tensor]  # images -> logits of all output rows
O = TypeVar("O")


class Method(CostModel, Generic[O]):
    """The base of all methods. A subclass sets `name`, `summary` and `Options`, and implements `start`, `plan` and `finish`.

    `start` may change the learner; `plan` only reads it, so that an interrupted task can be planned again; `finish` ends the task.
    A method with several phases (PackNet: train; prune and retrain) is asked for each phase in turn.
    """

    options: O
    summary: ClassVar[str]
    Options: ClassVar[type[Any]]
    phases: ClassVar[int] = 1
    heeds_task: ClassVar[bool] = True  # False: a known task does not change the logits, so that images are not answered twice
    tradeoff: ClassVar[str | None] = None  # the option that trades plasticity for stability, which `afaf tune` chooses
    tradeoff_from: ClassVar[float] = 1.0  # its strongest value worth trying

    def first_neurons(self, spec: NetworkSpec, n_classes: int) -> dict[int, int]:
        """How many neurons of each group the first task gets; empty for a method without sub-networks."""
        return {}

    def __init__(self, options: O, settings: Settings):
        self.options, self.settings = options, settings

    def check(self, spec: NetworkSpec, outline: Outline) -> None:
        """Refuse settings that cannot work for this network and stream, before anything is learned."""

    def late_options(self) -> tuple[int, frozenset[str]]:
        """A task number, and the options that do not affect earlier tasks: runs that differ only in them share those tasks."""
        return 1, frozenset()

    def start(self, learner: Learner, context: TaskContext, phase: int) -> None:
        raise NotImplementedError

    def plan(self, learner: Learner, context: TaskContext, phase: int) -> LearningPlan:
        raise NotImplementedError

    def finish(self, learner: Learner, context: TaskContext) -> None:
        """End the task: consolidate, or compute the method's state for later tasks."""

    def room(self, learner: Learner, task: int, n_classes: int) -> int:
        """The number of tasks of this many classes, the first numbered `task`, that are expected to fit; 0 if the method cannot tell."""
        return 0

    def tuned_with(self) -> dict[str, Any]:
        """Options that `afaf tune` sets while it searches; they belong to the value it finds."""
        return {}

    def predictor(self, learner: Learner, task: int | None = None) -> Predictor:
        """The function from images to logits; with `task`, the one for images of a known task (the same by default)."""
        return learner.network

    def _plan(self, learner: Learner, context: TaskContext, loss_over: LossOver, **rest: Any) -> LearningPlan:
        """Cross-entropy over some outputs, learned as the settings say."""
        outputs = outputs_in_loss(loss_over, context.classes, learner.seen_rows, learner.network.spec.n_classes)
        loss = CrossEntropy(outputs, learner.network.spec.n_classes, learner.network.device)
        learn = self.settings.learn
        how: dict[str, Any] = {"epochs": learn.epochs, "batch_size": learn.batch_size * context.data.rotations, "lr": learn.lr}
        how |= {"optimiser": learn.optimiser_of_plan(), "schedule": learn.schedule_of_plan()}
        return LearningPlan(task=context.task, loss=loss, outputs=outputs, **(how | rest))


def row_mask(learner: Learner, classes: tuple[int, ...]) -> Tensor:
    """A mask over the output rows."""
    rows = torch.zeros(learner.network.spec.n_classes, dtype=torch.bool, device=learner.network.device)
    rows[list(classes)] = True
    return rows
