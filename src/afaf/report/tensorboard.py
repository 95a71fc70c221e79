"""A run for TensorBoard: scalars as they come, the R matrices as images, settings and final metrics as hyper-parameters.

TensorBoard is an extra (`pip install 'afaf[tensorboard]'`), imported only when asked for.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from afaf.errors import ConfigError
from afaf.report.figures import save_r_matrix
from afaf.runs.folder import flat
from afaf.runs.results import Results
from afaf.runs.runner import Listener
from afaf.training.report import EpochReport

FOLDER = "tensorboard"  # within the run folder


def check_installed() -> None:
    """Said before anything is learned."""
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        raise ConfigError("TensorBoard is not installed: pip install 'afaf[tensorboard]', or leave --tensorboard out") from None


class TensorBoard(Listener):
    """Writes one run's events into its folder."""

    def __init__(self, folder: Path):
        from torch.utils.tensorboard import SummaryWriter  # type: ignore[attr-defined]

        self.folder = folder
        self.writer: Any = SummaryWriter(str(folder / FOLDER))  # type: ignore[no-untyped-call]
        self.epochs = 0

    def run_resumed(self, where: str, epochs_done: int) -> None:
        """Go on counting after the epochs that lie behind."""
        self.epochs = epochs_done

    def epoch_ended(self, report: EpochReport) -> None:
        """Training over all tasks, and each task by itself."""
        self.epochs += 1
        for name, value in (("loss", report.loss), ("accuracy", report.accuracy)):
            self.writer.add_scalar(f"train/{name}", value, self.epochs)
            phase = f" phase {report.phase + 1}" if report.phase else ""
            self.writer.add_scalar(f"train by task/{name}, task {report.task}{phase}", value, report.epoch + 1)

    def lesson_ended(self, tasks: tuple[int, ...], row: list[float | None], row_task_il: list[float | None]) -> None:
        """Accuracy on every task so far, and their mean, after this one."""
        for setting, values in (("class-IL", row), ("task-IL", row_task_il)):
            known = {number: value for number, value in enumerate(values, 1) if value is not None}
            for number, value in known.items():
                self.writer.add_scalar(f"test {setting}/task {number}", value, tasks[-1])
            if known:
                self.writer.add_scalar(f"test/ACC {setting}", float(np.mean(list(known.values()))), tasks[-1])
        self.writer.flush()

    def finish(self, results: Results) -> None:
        """The R matrices as an image, settings and final metrics as hyper-parameters."""
        with tempfile.TemporaryDirectory() as place:
            picture = Path(place) / "r-matrix.png"
            save_r_matrix(results, picture)
            pixels = np.asarray(Image.open(picture).convert("RGB"))
        self.writer.add_image("R matrix", pixels, len(results.R), dataformats="HWC")
        config = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        about = {"stream": results.stream, "method": results.method, "seed": results.seed}
        metrics = {f"final/{name}": value for name, value in results.metrics().items() if value is not None}
        self.writer.add_hparams({**about, **plain(config["config"])}, metrics, run_name=".")
        self.writer.close()


def plain(table: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Settings as TensorBoard takes them: section.key to a plain value."""
    return {name: value if isinstance(value, (bool, int, float, str)) else json.dumps(value) for name, value in flat(table).items()}
