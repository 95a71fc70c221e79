"""How a call is learned by a network: progress, the falling learning rate, the weights of rare classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from afaf.lifelong.life import Label
from afaf.training.engines import Engine
from afaf.training.learner import Learner
from afaf.training.plan import LearningPlan
from afaf.training.report import EpochReport, OnEpoch
from afaf.training.task_data import TaskData

HEAVIEST = 10.0  # a rare class's images count at most so many times


class Progress:
    """Told what happens while a task is learned."""

    def began(self, task: int, labels: Sequence[Label], epochs: int) -> None: ...
    def epoch_ended(self, report: EpochReport) -> None: ...
    def warned(self, message: str) -> None: ...


class Watch:
    """Tells of epochs, and keeps how many images were right in the last one: of those that have a right answer, which negatives do not."""

    def __init__(self, progress: Progress, share: float):
        self.progress, self.share, self.accuracy = progress, share, 100.0

    def epoch_ended(self, report: EpochReport) -> None:
        self.accuracy = min(100.0, report.accuracy / self.share)
        self.progress.epoch_ended(replace(report, accuracy=self.accuracy))


class Cooling:
    """Learns the last quarter of the epochs with a tenth of the learning rate, and without rewiring.

    A constant rate, as the paper has it, leaves a network wherever its last steps happened to shake it: classes of a task may then be
    tens of percent apart in how often they are answered.
    """

    def __init__(self, engine: Engine):
        self.engine, self.name = engine, engine.name

    def learn(self, learner: Learner, plan: LearningPlan, data: TaskData, on_epoch: OnEpoch | None = None, first_epoch: int = 0) -> None:
        warm = plan.epochs - plan.epochs // 4

        def tell(report: EpochReport) -> None:
            if on_epoch is not None:
                on_epoch(replace(report, epochs=plan.epochs))

        if first_epoch < warm:
            self.engine.learn(learner, replace(plan, epochs=warm), data, tell, first_epoch)
        if warm < plan.epochs:
            self.engine.learn(learner, replace(plan, lr=plan.lr / 10, rewire=None), data, on_epoch, max(first_epoch, warm))


def class_weights(labels: NDArray[Any]) -> dict[int, float]:
    """Every class weighs the same altogether, up to a limit."""
    counts = Counter(labels.tolist())
    return {c: min(HEAVIEST, len(labels) / (len(counts) * count)) for c, count in sorted(counts.items())}
