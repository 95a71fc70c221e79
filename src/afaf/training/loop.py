"""The epochs of a plan, the same for all engines: learn, follow the schedule, rewire, report."""

from __future__ import annotations

from collections.abc import Callable

from afaf.training.learner import Learner
from afaf.training.optimisers import Coefficients, drop_state
from afaf.training.plan import LearningPlan
from afaf.training.plateau import Plateau
from afaf.training.report import EpochReport, OnEpoch
from afaf.training.schedules import ReduceOnPlateau
from afaf.training.task_data import RngScope, TaskData


def learn_epochs(
    learner: Learner,
    plan: LearningPlan,
    data: TaskData,
    on_epoch: OnEpoch | None,
    first_epoch: int,
    learn_epoch: Callable[[RngScope, Coefficients], EpochReport],
) -> None:
    """Learn from `first_epoch` to the plan's last with the engine's `learn_epoch`, which leaves the learner up to date."""
    steps = -(-len(data) // plan.batch_size)
    plateau = Plateau(learner, plan, plan.schedule, first_epoch) if isinstance(plan.schedule, ReduceOnPlateau) else None
    for epoch in range(first_epoch, plan.epochs):
        if plateau is not None and plateau.ended:
            break
        lr = plan.lr if plateau is None else plateau.lr
        report = learn_epoch(RngScope(learner.seed, plan.task, plan.phase, epoch), plan.coefficients(lr, epoch, steps))
        if plateau is not None:
            plateau.epoch_ended()
        if plan.rewire is not None and plan.rewires_after(epoch):
            plan.rewire(learner, epoch)
            drop_state(learner, plan.task)
        if on_epoch is not None:
            on_epoch(report)
    if plateau is not None:
        plateau.finish()
