"""Accuracy of a model on one task's held-out images, in class-IL and task-IL, from the same logits.

Class-IL: the highest logit among all classes seen so far. Task-IL: the task is known, so only its classes compete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from afaf.bounds import Count
from afaf.training.task_data import TaskData


@dataclass(frozen=True)
class EvaluateSettings:
    """Choices of the released code that differ from the definitions; the defaults are the definitions."""

    class_il_over: Literal["seen", "all"] = "seen"  # all: classes not seen yet compete too
    task_il: Literal["mask", "multiply"] = "mask"  # multiply: other tasks' logits become 0, not -inf, so negative logits lose
    batch_size: Count = 512


@dataclass(frozen=True)
class TaskScore:
    """Accuracies in percent; `confusion[k]` counts the predictions for the task's k-th class, by class id.

    `task_il_unmasked` is task-IL from the logits of class-IL; `task_il` differs from it if a method has other logits when the task
    is known (PackNet, with the task's own mask).
    """

    class_il: float
    task_il: float
    task_il_unmasked: float
    task_id: float
    confusion: NDArray[np.int64]


@torch.no_grad()
def score_task(
    predict: Callable[[Tensor], Tensor],
    data: TaskData,
    classes: Sequence[int],
    seen: Sequence[int],
    settings: EvaluateSettings,
    predict_task: Callable[[Tensor], Tensor] | None = None,
) -> TaskScore:
    """Score one task. `predict_task` computes the logits when the task is known, if they differ from `predict`'s."""
    own, among = (torch.tensor(sorted(ids), device=data.device) for ids in (classes, seen))
    answers = []
    for index in torch.arange(len(data), device=data.device).split(settings.batch_size):
        x, _ = data.batch(index)
        logits = predict(x)
        unmasked = _task_il(logits, own, settings)
        with_task = unmasked if predict_task is None else _task_il(predict_task(x), own, settings)
        answer = logits.argmax(1) if settings.class_il_over == "all" else among[logits[:, among].argmax(1)]
        answers.append(torch.stack([answer, with_task, unmasked]))
    answer, with_task, unmasked = torch.cat(answers, dim=1).cpu().numpy()  # waits for the GPU only once
    labels = data.labels.cpu().numpy()
    rights = (answer == labels, with_task == labels, unmasked == labels, np.isin(answer, classes))
    class_il, task_il, task_il_unmasked, task_id = (100 * int(right.sum()) / len(data) for right in rights)
    score = TaskScore(class_il, task_il, task_il_unmasked, task_id, _confusion(answer, labels, classes, seen))
    if settings == EvaluateSettings(batch_size=settings.batch_size):
        assert score.task_il_unmasked >= score.class_il, "task-IL cannot be below class-IL with the same logits"
    return score


def _confusion(answer: NDArray[np.int64], labels: NDArray[np.int64], classes: Sequence[int], seen: Sequence[int]) -> NDArray[np.int64]:
    """Counts of predicted class by true class of the task; predictions of classes not seen yet are left out."""
    width = max(*seen, *classes) + 1
    return np.stack([np.bincount(answer[labels == c], minlength=width)[:width] for c in classes])


def _task_il(logits: Tensor, own: Tensor, settings: EvaluateSettings) -> Tensor:
    if settings.task_il == "mask":
        return own[logits[:, own].argmax(1)]
    mask = torch.zeros(logits.shape[1], dtype=logits.dtype, device=logits.device)
    mask[own] = 1
    return (logits * mask).argmax(1)
