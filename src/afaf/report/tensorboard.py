"""Write a run for TensorBoard: scalars during the run, then R matrices as an image, settings and metrics as hyper-parameters.

TensorBoard is an extra (`pip install 'afaf[tensorboard]'`), imported only when used.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from afaf.errors import ConfigError
from afaf.files import make_folder
from afaf.report.figures import r_matrix_figure
from afaf.runs.events import EpochEnded, Event, RunResumed, TaskEnded
from afaf.runs.folder import TENSORBOARD, flat, read_json
from afaf.runs.results import Results


def check_installed() -> None:
    """Raise ConfigError if TensorBoard is missing."""
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        raise ConfigError("TensorBoard is not installed: pip install 'afaf[tensorboard]', or leave --tensorboard out") from None


class TensorBoard:
    """Writes one run's events into its folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.epochs = 0

    @functools.cached_property
    def writer(self) -> Any:
        """Created at the first event, since a run starts in an empty folder."""
        from torch.utils.tensorboard import SummaryWriter  # type: ignore[attr-defined]

        make_folder(self.folder / TENSORBOARD)
        return SummaryWriter(str(self.folder / TENSORBOARD))  # type: ignore[no-untyped-call]

    def on_event(self, event: Event) -> None:
        match event:
            case RunResumed(epochs_done=epochs):
                self.epochs = epochs
            case EpochEnded(report=report):
                self.epochs += 1
                phase = f" phase {report.phase + 1}" if report.phase else ""
                for name, value in (("loss", report.loss), ("accuracy", report.accuracy)):
                    self.writer.add_scalar(f"train/{name}", value, self.epochs)
                    self.writer.add_scalar(f"train by task/{name}, task {report.task}{phase}", value, report.epoch + 1)
            case TaskEnded(tasks=tasks, row=row, row_task_il=row_task_il):
                self._add_accuracies(tasks[-1], row, row_task_il)

    def _add_accuracies(self, task: int, row: list[float | None], row_task_il: list[float | None]) -> None:
        """Add the accuracy on every task so far, and their mean."""
        for setting, values in (("class-IL", row), ("task-IL", row_task_il)):
            accuracies = {number: value for number, value in enumerate(values, 1) if value is not None}
            for number, value in accuracies.items():
                self.writer.add_scalar(f"test {setting}/task {number}", value, task)
            if accuracies:
                self.writer.add_scalar(f"test/ACC {setting}", float(np.mean(list(accuracies.values()))), task)
        self.writer.flush()

    def finish(self, results: Results) -> None:
        """Add the R matrices as an image, settings and final metrics as hyper-parameters, and close the file."""
        self.writer.add_figure("R matrix", r_matrix_figure(results), len(results.R))
        config = read_json(self.folder / "config.json")
        about = {"stream": results.stream, "method": results.method, "seed": results.seed}
        metrics = {f"final/{name}": value for name, value in results.metrics().items() if value is not None}
        self.writer.add_hparams({**about, **plain(config["config"])}, metrics, run_name=".")
        self.writer.close()


def plain(table: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Settings as TensorBoard takes them: section.key to a plain value."""
    return {name: value if isinstance(value, (bool, int, float, str)) else json.dumps(value) for name, value in flat(table).items()}
