"""The report of an epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from afaf.errors import DivergedError
from afaf.training.plan import LearningPlan


@dataclass(frozen=True)
class EpochReport:
    """One epoch: `loss` and `accuracy` (percent, over the outputs in the loss) are means over its training images."""

    task: int
    phase: int
    epoch: int
    epochs: int
    loss: float
    accuracy: float


OnEpoch = Callable[[EpochReport], None]


class Tally:
    """Losses and right answers of an epoch, kept on the device until it ends."""

    def __init__(self, plan: LearningPlan, epoch: int):
        self.plan, self.epoch = plan, epoch
        self.losses: list[Tensor] = []
        self.right: list[Tensor] = []
        self.sizes: list[int] = []
        self.columns: Tensor | None = None

    def add(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        self.losses.append(loss)
        if not self.right:
            self.columns = columns_in_loss(self.plan, logits.device)
        self.right.append(count_right(logits, labels, self.columns))
        self.sizes.append(len(labels))

    def report(self) -> EpochReport:
        """The epoch's means; raises DivergedError, with the step, if a loss is not finite."""
        losses = torch.stack(self.losses)
        check_finite(losses, self.plan, self.epoch)
        n = sum(self.sizes)
        loss = float((losses.cpu().double() * torch.tensor(self.sizes)).sum()) / n
        return EpochReport(
            self.plan.task, self.plan.phase, self.epoch, self.plan.epochs, loss, 100 * int(torch.stack(self.right).sum()) / n
        )


def columns_in_loss(plan: LearningPlan, device: torch.device) -> Tensor | None:
    """The outputs in the loss; None: all."""
    return None if plan.outputs is None else torch.tensor(plan.outputs, device=device)


def count_right(logits: Tensor, labels: Tensor, columns: Tensor | None) -> Tensor:
    """The number of images whose highest logit, among these columns (None: all), is that of their class."""
    if columns is None:
        return (logits.argmax(1) == labels).sum()
    return (columns[logits[:, columns].argmax(1)] == labels).sum()


def check_finite(per_step: Tensor, plan: LearningPlan, epoch: int) -> None:
    bad = torch.nonzero(~torch.isfinite(per_step)).flatten()
    if len(bad):
        raise DivergedError(f"the loss is not finite in task {plan.task}, epoch {epoch + 1}, step {int(bad[0]) + 1}: {plan.if_diverging}")
