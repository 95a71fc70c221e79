"""What all engines have in common: epochs one after the other, rewiring in between, a report of each."""

from __future__ import annotations

from collections.abc import Callable

from afaf.training.learner import Learner
from afaf.training.plan import LearningPlan
from afaf.training.report import EpochReport, OnEpoch
from afaf.training.task_data import RngScope


def learn_epochs(
    learner: Learner, plan: LearningPlan, on_epoch: OnEpoch | None, first_epoch: int, learn_epoch: Callable[[RngScope], EpochReport]
) -> None:
    """Learn from `first_epoch` to the plan's last with the engine's `learn_epoch`, which leaves the learner up to date."""
    for epoch in range(first_epoch, plan.epochs):
        report = learn_epoch(RngScope(learner.seed, plan.task, plan.phase, epoch))
        if plan.rewire is not None and epoch < plan.epochs - 1:
            plan.rewire(learner, epoch)
        if on_epoch is not None:
            on_epoch(report)
        if plan.until is not None and plan.until():
            return
