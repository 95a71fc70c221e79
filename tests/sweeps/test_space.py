"""Ranges of settings that no value can be drawn from."""

from __future__ import annotations

from typing import Any

import pytest

from afaf.sweeps.space import Range


@pytest.mark.parametrize(
    ("ends", "steps", "drawn"),
    [((1, 5), (0.5, 1.5), False), ((1, 5), (1, 2.0, 4), True), ((1.0, 5.0), (0.5, 1, 2.0), True), ((1, 5.0), (0.5, 1), True)],
)
def test_between_whole_ends_steps_are_whole(ends: tuple[Any, Any], steps: tuple[Any, ...], drawn: bool) -> None:
    for step in steps:
        problem = Range(*ends, step=step).problem()
        assert (problem == "") == drawn
        assert drawn or str(step) in problem
