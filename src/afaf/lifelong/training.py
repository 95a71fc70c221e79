"""How a call is learned by a network: progress, the falling learning rate, the weights of rare classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from afaf.lifelong.life import Label
from afaf.training.report import EpochReport
from afaf.training.schedules import StepDecay

HEAVIEST = 10.0  # a rare class's images count at most so many times

# Used unless another schedule is set. At a constant rate, as in the paper, the last steps leave classes of a task tens of percent apart in
# how often they are predicted.
SCHEDULE, REWIRE_UNTIL = StepDecay(at=(75.0,), divide_by=10.0), 75.0


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


def class_weights(labels: NDArray[Any]) -> dict[int, float]:
    """Every class weighs the same altogether, up to a limit."""
    counts = Counter(labels.tolist())
    return {c: min(HEAVIEST, len(labels) / (len(counts) * count)) for c, count in sorted(counts.items())}
