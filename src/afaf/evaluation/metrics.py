"""Metrics of a run, from its R matrix: R[j][i] is the accuracy on task i after task j, None where it was not or cannot be measured.

A metric that needs a missing entry is None too: joint training has only the last row of R, hence no BWT.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

Matrix = Sequence[Sequence[float | None]]


def _mean(values: Iterable[float | None]) -> float | None:
    given = list(values)
    numbers = [value for value in given if value is not None]
    return float(np.mean(numbers)) if numbers and len(numbers) == len(given) else None


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def average_accuracy(R: Matrix) -> float | None:
    """ACC = mean over i of R[T,i] (the paper's printed formula lacks 1/T)."""
    return _mean(R[-1])


def backward_transfer(R: Matrix) -> float | None:
    """BWT = mean over i < T of R[T,i] - R[i,i]; None for a single task."""
    return _mean(_minus(R[-1][i], R[i][i]) for i in range(len(R) - 1))


def learning_accuracy(R: Matrix, first_task: int = 1) -> float | None:
    """LA = mean over i of R[i,i], each task just after it was learned; optionally only from `first_task` on."""
    return _mean(R[i][i] for i in range(first_task - 1, len(R)))


def forgetting(R: Matrix) -> float | None:
    """Mean over i < T of (best accuracy on task i before the last task) - R[T,i]."""
    losses: list[float | None] = []
    for i in range(len(R) - 1):
        earlier = [R[j][i] for j in range(i, len(R) - 1)]
        measured = [value for value in earlier if value is not None]
        losses.append(_minus(max(measured), R[-1][i]) if len(measured) == len(earlier) else None)
    return _mean(losses)


def average_incremental_accuracy(R: Matrix) -> float | None:
    """Mean over j of the mean accuracy on the tasks seen after task j."""
    return _mean(_mean(R[j][: j + 1]) for j in range(len(R)))


def forward_transfer(before: Sequence[float | None], chance: Sequence[float]) -> float | None:
    """Mean over i >= 2 of (task-IL accuracy on task i just before it is learned) - chance.

    Before a task is learned no class of it can be predicted in class-IL, so this is a task-IL measure.
    """
    return _mean(_minus(value, level) for value, level in zip(before[1:], chance[1:], strict=True))


def is_guessing(accuracy: float, classes: int) -> bool:
    """Whether an accuracy is hardly better than guessing among this many classes."""
    chance = 100 / classes
    return classes > 1 and accuracy < min(1.2 * chance, chance + 10)


def only_guesses(accuracies: Sequence[float | None], classes_per_task: Sequence[int]) -> bool:
    """Whether no task-IL accuracy is better than guessing."""
    measured = [(value, classes) for value, classes in zip(accuracies, classes_per_task, strict=False) if value is not None]
    return bool(measured) and all(is_guessing(value, classes) for value, classes in measured)


def has_collapsed(R_task_il: Matrix, classes_per_task: Sequence[int]) -> bool:
    """Whether a network that had learned a task only guesses now: its neurons have died."""
    had_learned = any(not only_guesses(row, classes_per_task) and row[-1] is not None for row in R_task_il[:-1])
    return had_learned and only_guesses(R_task_il[-1], classes_per_task)


def hardly_learned(task: int, accuracy: float, classes: int, remedy: str) -> str | None:
    """A warning if the accuracy on a task's training images in its last epoch is hardly better than guessing; else None."""
    if not is_guessing(accuracy, classes):
        return None
    found = f"{accuracy:.0f} % right on its training images, among {classes} outputs (chance is {100 / classes:.0f} %)"
    return f"task {task} was hardly learned: {found}; {remedy}"
