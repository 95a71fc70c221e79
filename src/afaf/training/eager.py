"""The reference engine: short, obvious, any device. Faster engines are compared with it.

Sparsity is simulated here: dense tensors, gradients multiplied by "does the task own this connection".
"""

from __future__ import annotations

from afaf.training.learner import Learner
from afaf.training.loop import learn_epochs
from afaf.training.optimisers import Coefficients
from afaf.training.plan import LearningPlan
from afaf.training.precision import PRECISION, Precision
from afaf.training.report import EpochReport, OnEpoch, Tally
from afaf.training.step import Workspace, start_optimiser, take_step
from afaf.training.task_data import RngScope, TaskData


class EagerEngine:
    """Carries out learning plans step by step, on the whole network."""

    name = "eager"

    def __init__(self, precision: Precision = "fp32"):
        self.precision: Precision = precision

    def learn(self, learner: Learner, plan: LearningPlan, data: TaskData, on_epoch: OnEpoch | None = None, first_epoch: int = 0) -> None:
        """Learn from `first_epoch` to the plan's last, rewiring in between."""
        data = data.with_views(plan.views)

        def learn_epoch(scope: RngScope, coefficients: Coefficients) -> EpochReport:
            work, tally = Workspace.whole(learner, plan), Tally(plan, scope.epoch)
            for samples, of_step in zip(data.order(scope).split(plan.batch_size), coefficients, strict=True):
                work.coefficients = of_step
                x, labels = data.batch(samples, scope)
                tally.add(*take_step(work, x, labels, work.mode(scope, samples)), labels)
            return tally.report()

        start_optimiser(learner, plan, first_epoch)
        with PRECISION.set(self.precision, learner.network.device):
            learn_epochs(learner, plan, data, on_epoch, first_epoch, learn_epoch)
