"""--tensorboard writes what its users expect to find: scalars, images of the R matrices, hyper-parameters."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from afaf.cli.main import app
from afaf.errors import StoppedError
from afaf.report.tensorboard import TensorBoard
from afaf.runs.events import Event, to_all
from afaf.runs.job import Job
from afaf.runs.resume import resume
from afaf.runs.runner import run
from afaf.runs.stop import StopToken
from conftest import small_stream
from crash import MORE

RUN = ["run", "split-digits", "afaf", "--device", "cpu", "--set", "learn.epochs=2", "--set", "run.images=10", "--tensorboard"]


def test_scalars_images_and_hyper_parameters(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is not installed")
    done = CliRunner().invoke(app, [*RUN, "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    found = events.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    found.Reload()
    assert [event.step for event in found.Scalars("train/loss")] == list(range(1, 11))  # five tasks of two epochs
    for task in range(1, 6):
        written = {event.step: event.value for event in found.Scalars(f"test class-IL/task {task}")}
        assert written == pytest.approx({j: results["R"][j - 1][task - 1] for j in range(task, 6)}, rel=1e-5)
    assert found.Scalars("test/ACC class-IL")[-1].value == pytest.approx(results["acc"], rel=1e-5)
    assert found.Scalars("final/acc_task_il")[-1].value == pytest.approx(results["acc_task_il"], rel=1e-5)
    assert found.Tags()["images"] == ["R matrix"]
    assert any("hparams" in tag for tag in found.summary_metadata)


@pytest.mark.parametrize(("method", "stopped_after", "epochs"), [("afaf", 3, 6), ("afaf", 4, 6), ("packnet", 3, 9), ("packnet", 6, 9)])
def test_a_resumed_run_goes_on_counting_its_epochs(method: str, stopped_after: int, epochs: int, tmp_path: Path) -> None:
    """Within a task, between two, and where a task is learned in two phases."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is not installed")
    stream, settings = small_stream([2, 2, 2]), {"learn.epochs": 2, "network.name": "mlp", **MORE.get(method, {})}
    stop, board = StopToken(), TensorBoard(tmp_path)

    def stop_early(event: Event) -> None:
        if board.epochs == stopped_after:
            stop.ask()

    with pytest.raises(StoppedError):
        run(Job(stream, method, device="cpu", out=tmp_path, settings=settings), on_event=to_all(board.on_event, stop_early), stop=stop)
    board.writer.close()
    board = TensorBoard(tmp_path)
    board.finish(resume(tmp_path, stream=stream, on_event=board.on_event))
    found = events.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    steps = sorted(event.step for event in found.Scalars("train/loss"))  # files of one second are read in any order
    assert steps == list(range(1, epochs + 1))


def test_without_tensorboard_it_says_so_before_anything_is_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    done = CliRunner().invoke(app, [*RUN, "--out", str(tmp_path / "run")])
    assert done.exit_code == 2
    assert "pip install 'afaf[tensorboard]'" in " ".join(done.stderr.split())
    assert not (tmp_path / "run").exists()
