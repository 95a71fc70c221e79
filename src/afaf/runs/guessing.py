"""What is said of a task that was hardly learned, in a run and by a model that keeps learning."""

from __future__ import annotations

from afaf.evaluation.metrics import is_guessing


def hardly_learned(task: int, accuracy: float, classes: int, remedy: str) -> str | None:
    """A warning, if a task's training images (percent right in its last epoch) are answered hardly better than by guessing."""
    if not is_guessing(accuracy, classes):
        return None
    return f"task {task} was hardly learned: {accuracy:.0f} % right on its training images, chance is {100 / classes:.0f} %; {remedy}"
