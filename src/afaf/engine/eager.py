"""The reference engine: short, obvious, any device. Faster engines are compared with it.

Sparsity is simulated here: dense tensors, gradients multiplied by "does the task own this connection".
"""

from __future__ import annotations

from afaf.engine.report import OnEpoch, Tally
from afaf.engine.step import Workspace, take_step
from afaf.learning.feed import Feed, Moment
from afaf.learning.learner import Learner
from afaf.learning.plan import LearningPlan


class EagerEngine:
    """Carries out learning plans step by step, on the whole network."""

    name = "eager"

    def learn(self, learner: Learner, plan: LearningPlan, feed: Feed, on_epoch: OnEpoch | None = None, first_epoch: int = 0) -> None:
        """Learn from `first_epoch` to the plan's last, rewiring in between."""
        for epoch in range(first_epoch, plan.epochs):
            work = Workspace.whole(learner, plan)
            tally = Tally(plan, epoch)
            moment = Moment(learner.seed, plan.task, plan.phase, epoch)
            for samples in feed.order(moment).split(plan.batch_size):
                x, labels = feed.batch(samples, moment)
                tally.add(*take_step(work, x, labels, work.mode(moment, samples)), labels)
            report = tally.report()
            if plan.rewire is not None and epoch < plan.epochs - 1:
                plan.rewire(learner, epoch)
            if on_epoch is not None:
                on_epoch(report)
