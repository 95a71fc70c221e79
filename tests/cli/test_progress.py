"""The bar of a run shows its times whole on a terminal of any usual width."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from afaf.cli.progress import ProgressDisplay
from afaf.runs.events import EpochEnded, TaskStarted
from afaf.runs.job import Job
from afaf.streams.benchmarks import open_stream
from afaf.training.report import EpochReport


@pytest.mark.parametrize("width", [80, 90, 103, 104, 160])
@pytest.mark.parametrize(("task", "epochs", "loss"), [(1, 6, 0.5), (20, 1000, 12.3456)])
def test_nothing_of_a_bar_is_cut(width: int, task: int, epochs: int, loss: float) -> None:
    screen = io.StringIO()
    job = Job(open_stream("split-digits"), "finetune")
    with ProgressDisplay(Console(file=screen, force_terminal=True, width=width)) as display:
        display.update(display.bar, total=epochs)
        display.on_event(TaskStarted(job, (task - 1, task), ("cat", "dog")))
        display.on_event(EpochEnded(job, EpochReport(task, 0, epochs - 2, epochs, loss, 100.0)))
        display.refresh()
    line = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).strip().splitlines()[-1]
    assert "…" not in line
    assert len(line) <= width
    for part in (f"task {task - 1}-{task}", f"1/{epochs}", f"{loss:.3f}", "100.0 %"):
        assert part in line
    assert len(re.findall(r"[\d-]+:[\d-]+:[\d-]+", line)) == 2
    assert "━" in line
