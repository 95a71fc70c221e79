"""How a network learns a call: progress, the learning rate schedule, the weights of rare classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from afaf.lifelong.life import Label
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
