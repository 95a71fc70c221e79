"""What a line of results says about the classes of its stream."""

from __future__ import annotations

from typing import Any

import pytest

from afaf.report.measured import class_names, failure

CHANCE = [[50.0] * task for task in range(1, 6)]


def line(stream: str = "split-digits", **settings: Any) -> dict[str, Any]:
    named = {f"stream.{name}": value for name, value in settings.items()}
    return {"stream": stream, "method": "afaf", "settings": named, "seed": 0, "R_task_il": CHANCE, "acc": 50.0}


def test_the_classes_of_a_line_are_in_the_order_of_its_run() -> None:
    names = [class_names(line(**settings)) for settings in ({}, {"order": "6,9,0,1,2,3,4,5,7,8"}, {"order": "seed:7"})]
    assert [None if tasks is None else tasks[0] for tasks in names[:2]] == [("0", "1"), ("6", "9")]
    assert names[2] not in names[:2]
    assert class_names(line(order="file.txt")) is None  # which may have changed since the run


@pytest.mark.parametrize("order", ["", "6,9,0,1,2,3,4,5,7,8", "seed:7", "file.txt"])
def test_a_run_that_only_guesses_has_failed_in_any_order(order: str) -> None:
    assert failure(line(order=order)) is not None
