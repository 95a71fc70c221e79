"""Metrics against values worked out by hand."""

from __future__ import annotations

import pytest

from afaf.evaluation import metrics
from afaf.runs.results import Results, Summary

TWO = [[90.0], [60.0, 80.0]]
THREE = [[100.0], [70.0, 90.0], [40.0, 80.0, 60.0]]


def test_two_tasks_by_hand() -> None:
    assert metrics.average_accuracy(TWO) == 70.0  # (60 + 80) / 2
    assert metrics.backward_transfer(TWO) == -30.0  # 60 - 90
    assert metrics.learning_accuracy(TWO) == 85.0  # (90 + 80) / 2
    assert metrics.forgetting(TWO) == 30.0  # 90 - 60
    assert metrics.average_incremental_accuracy(TWO) == 80.0  # (90 + 70) / 2


def test_three_tasks_by_hand() -> None:
    assert metrics.average_accuracy(THREE) == 60.0  # (40 + 80 + 60) / 3
    assert metrics.backward_transfer(THREE) == -35.0  # ((40 - 100) + (80 - 90)) / 2
    assert metrics.learning_accuracy(THREE) == pytest.approx(250 / 3)  # (100 + 90 + 60) / 3
    assert metrics.learning_accuracy(THREE, first_task=2) == 75.0  # (90 + 60) / 2
    assert metrics.forgetting(THREE) == 35.0  # ((100 - 40) + (90 - 80)) / 2
    assert metrics.average_incremental_accuracy(THREE) == 80.0  # (100 + 80 + 60) / 3
    assert metrics.forward_transfer([None, 55.0, 30.0], [50.0, 50.0, 20.0]) == 7.5  # (5 + 10) / 2


def test_forgetting_counts_from_the_best_not_from_the_first() -> None:
    R = [[50.0], [80.0, 70.0], [60.0, 70.0, 90.0]]
    assert metrics.backward_transfer(R) == 5.0  # ((60 - 50) + (70 - 70)) / 2
    assert metrics.forgetting(R) == 10.0  # ((80 - 60) + (70 - 70)) / 2


def test_what_cannot_be_computed_is_none() -> None:
    joint = [[None], [None, None], [90.0, 80.0, 70.0]]
    assert metrics.average_accuracy(joint) == 80.0
    assert metrics.backward_transfer(joint) is None
    assert metrics.learning_accuracy(joint) is None
    assert metrics.forgetting(joint) is None
    assert metrics.average_incremental_accuracy(joint) is None
    assert metrics.backward_transfer([[90.0]]) is None
    assert metrics.forward_transfer([None], [50.0]) is None


@pytest.mark.parametrize(
    ("R", "collapsed"),
    [
        ([[90.0], [50.0, 50.0]], True),
        ([[90.0], [50.0, 51.0]], True),
        ([[90.0], [50.0, 90.0]], False),  # the first task is forgotten, the second learned
        ([[50.0], [50.0, 50.0]], False),  # nothing was ever learned
        ([[50.0]], False),
        ([[None], [50.0, 50.0]], False),  # joint training
        ([[90.0], [50.0, 50.0], [90.0, 90.0, 90.0]], False),  # it has recovered
    ],
)
def test_a_network_has_collapsed_when_it_guesses_on_all_tasks_after_it_had_learned_one(
    R: list[list[float | None]], collapsed: bool
) -> None:
    assert metrics.has_collapsed(R, (2, 2, 2)) == collapsed


def results(seed: int, R: list[list[float | None]]) -> Results:
    n = len(R)
    confusion = [[0] * 2 * n for _ in range(2 * n)]
    return Results("s", "m", seed, R, R, [100.0] * n, [None] * n, confusion, [["a", "b"]] * n, 1, 2)


def test_summary_has_mean_and_sample_deviation() -> None:
    summary = Summary([results(0, [[90.0], [60.0, 80.0]]), results(1, [[90.0], [80.0, 80.0]])])
    assert summary.mean["acc"] == 75.0
    assert summary.std["acc"] == pytest.approx(50**0.5)  # 70 and 80 about 75, divided by n - 1
    assert Summary([results(0, [[1.0]])]).std["acc"] is None


def test_results_survive_json() -> None:
    result = results(0, [[90.0], [60.0, None]])
    assert Results.from_dict(result.to_dict()) == result
