"""Class-IL and task-IL from the same logits."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from afaf.evaluation.predict import EvaluateSettings, score_task
from afaf.streams.tasks import Preparation, Split
from afaf.training.task_data import TaskData


def feed_of(labels: list[int]) -> TaskData:
    """Vectors that hold their own row number, so that a test can state the logits."""
    x = np.arange(len(labels), dtype=np.float32)[:, None]
    return TaskData([(Split(x, np.array(labels)), Preparation())])


def predictor(logits: list[list[float]]):
    table = torch.tensor(logits)
    return lambda x: table[x[:, 0].long()]


def test_scores_by_hand() -> None:
    logits = [
        [9.0, 1.0, 0.0, 5.0],  # class 0: right in both
        [2.0, 3.0, 9.0, 0.0],  # class 0: taken for class 2; within the task for class 1
        [2.0, 3.0, 9.0, 0.0],  # class 1: taken for class 2; right once the task is known
        [0.0, 3.0, 1.0, 9.0],  # class 1: class 3 is not seen yet, so right
    ]
    score = score_task(predictor(logits), feed_of([0, 0, 1, 1]), [0, 1], [0, 1, 2], EvaluateSettings())
    assert (score.class_il, score.task_il, score.task_id) == (50.0, 75.0, 50.0)
    assert score.confusion.tolist() == [[1, 0, 1], [0, 1, 1]]
    over_all = score_task(predictor(logits), feed_of([0, 0, 1, 1]), [0, 1], [0, 1, 2], EvaluateSettings(class_il_over="all"))
    assert over_all.class_il == 25.0


def test_multiplying_logits_loses_where_they_are_negative() -> None:
    logits = [[-1.0, -5.0, -3.0]]
    masked = score_task(predictor(logits), feed_of([0]), [0, 1], [0, 1, 2], EvaluateSettings())
    multiplied = score_task(predictor(logits), feed_of([0]), [0, 1], [0, 1, 2], EvaluateSettings(task_il="multiply"))
    assert (masked.task_il, multiplied.task_il) == (100.0, 0.0)


@given(st.integers(0, 10**6))
def test_task_il_is_never_below_class_il(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(20, 6, generator=g)
    labels = torch.randint(2, 4, (20,), generator=g).tolist()
    score = score_task(predictor(logits.tolist()), feed_of(labels), [2, 3], range(6), EvaluateSettings(batch_size=7))
    assert score.task_il >= score.class_il
    assert score.confusion.sum() == 20
