"""Losses as tensor functions that depend only on each other, so that an engine may capture them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor

from afaf.network.forward import Parameters, forward
from afaf.network.spec import NetworkSpec
from afaf.training.plan import Loss, Step

LossOver = Literal["task", "seen", "all"]


def outputs_in_loss(loss_over: LossOver, task_classes: tuple[int, ...], seen: tuple[int, ...], rows: int) -> tuple[int, ...]:
    """The outputs in the softmax: those of the task, of all classes seen so far, or all rows, future ones too."""
    return {"task": tuple(task_classes), "seen": tuple(sorted(seen)), "all": tuple(range(rows))}[loss_over]


@final
class CrossEntropy:
    """Cross-entropy with a softmax over some of the output rows."""

    def __init__(self, outputs: tuple[int, ...], rows: int, device: torch.device):
        self.outputs, self.rows = outputs, rows
        self.cross_entropy_over = outputs  # tells engines that the loss is plain cross-entropy, see `LearningPlan.cross_entropy_over`
        self.columns = torch.tensor(outputs, device=device)
        self.place = torch.full((rows,), -1, device=device)
        self.place[self.columns] = torch.arange(len(outputs), device=device)

    def __call__(self, step: Step) -> Tensor:
        if len(self.outputs) == self.rows:
            return F.cross_entropy(step.logits, step.labels)
        return F.cross_entropy(step.logits[:, self.columns], self.place[step.labels])


@dataclass(frozen=True)
class Total:
    """The sum of several losses."""

    terms: tuple[Loss, ...]

    def __call__(self, step: Step) -> Tensor:
        return torch.stack([term(step) for term in self.terms]).sum()


def total(*terms: Loss) -> Loss:
    """The sum of several losses."""
    return Total(terms) if len(terms) > 1 else terms[0]


def distillation(strength: float, spec: NetworkSpec, teacher: Parameters, outputs: tuple[int, ...], temperature: float) -> Loss:
    """strength x cross-entropy from the teacher's softmax over some outputs to the learner's, both at a temperature.

    The teacher answers in evaluation mode, for the images as the learner sees them.
    """
    columns = torch.tensor(outputs, device=teacher.biases[-1].device)

    def loss(step: Step) -> Tensor:
        with torch.no_grad():
            images = step.images.to(teacher.biases[0].dtype)  # an engine may use lower precision
            target = F.softmax(forward(spec, teacher, images)[:, columns] / temperature, 1)
        return strength * F.cross_entropy(step.logits[:, columns] / temperature, target)

    return loss


@dataclass(frozen=True)
class SupervisedContrastive:
    """strength x the supervised contrastive loss (Khosla et al., 2020): features of the same output row attract each other."""

    strength: float
    temperature: float = 0.1

    def __call__(self, step: Step) -> Tensor:
        assert step.features is not None, "plan.features is set"
        with torch.autocast(step.features.device.type, enabled=False):  # similarities are divided by a small temperature
            z = F.normalize(step.features.to(step.logits.dtype))
            similarity = z @ z.T / self.temperature
        itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
        log_share = similarity - similarity.masked_fill(itself, -1e9).logsumexp(1, keepdim=True)
        alike = (step.labels[:, None] == step.labels) & (step.labels >= 0) & ~itself  # images of no class have no positives
        return self.strength * (-(log_share * alike).sum(1) / alike.sum(1).clamp(min=1)).mean()


NONE_OF_MINE = -1  # the label of an image of none of the task's classes


class BalancedCrossEntropy:
    """Cross-entropy with class weights, and with an output for images of none of the task's classes.

    With `none_weight` the softmax has one more output, a constant 0: images labelled `NONE_OF_MINE` belong there, with that weight.
    """

    def __init__(
        self, outputs: tuple[int, ...], rows: int, weights: dict[int, float], device: torch.device, none_weight: float | None = None
    ):
        self.columns = torch.tensor(outputs, device=device)
        self.place = torch.full((rows + 1,), len(outputs), device=device)  # the last entry is for images labelled -1
        self.place[self.columns] = torch.arange(len(outputs), device=device)
        self.weights = torch.ones(rows + 1, device=device)
        self.weights[list(weights)] = torch.tensor(list(weights.values()), device=device)
        self.weights[NONE_OF_MINE] = none_weight or 0.0
        self.none = none_weight is not None

    def __call__(self, step: Step) -> Tensor:
        logits = step.logits[:, self.columns]
        if self.none:
            logits = torch.cat([logits, logits.new_zeros(len(logits), 1)], 1)
        each = F.cross_entropy(logits, self.place[step.labels], reduction="none")
        return (each * self.weights[step.labels].to(each.dtype)).mean()
