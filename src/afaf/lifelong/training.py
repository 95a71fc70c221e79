"""How a network learns a call: progress, the learning rate schedule, the loss and its weights of rare classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from afaf.lifelong.life import Label
from afaf.training.learner import Learner
from afaf.training.losses import BalancedCrossEntropy
from afaf.training.plan import LearningPlan
from afaf.training.report import EpochReport
from afaf.training.schedules import StepDecay

HEAVIEST = 10.0  # the largest weight of a rare class's images

# Used unless another schedule is set. With a constant rate, as in the paper, the classes of a task end up
# tens of percent apart in how often they are predicted, depending on the last steps.
SCHEDULE, REWIRE_UNTIL = StepDecay(at=(75.0,), divide_by=10.0), 75.0


class Progress:
    """Receives events while a task is learned."""

    def began(self, task: int, labels: Sequence[Label], epochs: int) -> None: ...
    def epoch_ended(self, report: EpochReport) -> None: ...
    def warned(self, message: str) -> None: ...


class Watch:
    """Reports epochs and keeps the accuracy of the last one, over images that have a class; negatives have none."""

    def __init__(self, progress: Progress, share: float):
        self.progress, self.share, self.accuracy = progress, share, 100.0

    def epoch_ended(self, report: EpochReport) -> None:
        self.accuracy = min(100.0, report.accuracy / self.share)
        self.progress.epoch_ended(replace(report, accuracy=self.accuracy))


def class_weights(labels: NDArray[Any]) -> dict[int, float]:
    """Weights with which every class has the same total weight, up to a limit."""
    counts = Counter(labels.tolist())
    return {c: min(HEAVIEST, len(labels) / (len(counts) * count)) for c, count in sorted(counts.items())}


def balanced_loss(plan: LearningPlan, learner: Learner, by_class: Mapping[int, float], with_negatives: bool) -> BalancedCrossEntropy | None:
    """A weighted cross-entropy if classes have weights or negatives are used; None: the method's own loss."""
    k, rows = learner.outputs_per_class, learner.network.spec.n_classes
    weights = {k * c + v: weight for c, weight in by_class.items() for v in range(k)}
    if not with_negatives and all(weight == 1 for weight in weights.values()):
        return None
    outputs = plan.outputs or tuple(range(rows))
    return BalancedCrossEntropy(outputs, rows, weights, learner.network.device, 1.0 if with_negatives else None)
