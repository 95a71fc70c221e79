"""The reference engine: short, obvious, any device. Faster engines are compared with it.

Sparsity is simulated here: dense tensors, gradients multiplied by "does the task own this connection".
"""

from __future__ import annotations

from afaf.training.learner import Learner
from afaf.training.loop import learn_epochs
from afaf.training.plan import LearningPlan
from afaf.training.precision import PRECISION, Precision
from afaf.training.report import EpochReport, OnEpoch, Tally
from afaf.training.step import Workspace, take_step
from afaf.training.task_data import RngScope, TaskData


class EagerEngine:
    """Carries out learning plans step by step, on the whole network."""

    name = "eager"

    def __init__(self, precision: Precision = "fp32"):
        self.precision: Precision = precision

    def learn(self, learner: Learner, plan: LearningPlan, data: TaskData, on_epoch: OnEpoch | None = None, first_epoch: int = 0) -> None:
        """Learn from `first_epoch` to the plan's last, rewiring in between."""

        def learn_epoch(scope: RngScope) -> EpochReport:
            work, tally = Workspace.whole(learner, plan), Tally(plan, scope.epoch)
            for samples in data.order(scope).split(plan.batch_size):
                x, labels = data.batch(samples, scope)
                tally.add(*take_step(work, x, labels, work.mode(scope, samples)), labels)
            return tally.report()

        with PRECISION.set(self.precision, learner.network.device):
            learn_epochs(learner, plan, on_epoch, first_epoch, learn_epoch)
