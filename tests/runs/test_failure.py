"""Runs that cannot go on say what happened, what is still there, and what to do; and go on once that is done."""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from afaf.doctor import examine
from afaf.errors import DataError, DeviceError, DivergedError, RunError, WriteError
from afaf.runs.checkpoint import check
from afaf.runs.job import Job
from afaf.runs.resume import resume
from afaf.runs.runner import run
from afaf.storage.container import read_file
from afaf.training.compact import CompactEngine
from conftest import small_stream
from crash import found
from forks import Forks

QUICK: dict[str, Any] = {"learn.epochs": 2, "learn.batch_size": 8, "network.name": "mlp", "run.checkpoint": 0}


def test_a_loss_that_is_not_finite_names_the_step_and_the_last_good_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"not finite in task \d, epoch \d, step \d+: lower learn\.lr") as error:
        run(Job(small_stream([2, 2, 2]), "finetune", device="cpu", out=tmp_path, settings={**QUICK, "learn.lr": 1e6, "learn.epochs": 9}))
    saved = sorted((tmp_path / "checkpoints").iterdir())
    if saved:  # the first epoch may have gone well
        assert f"The last good checkpoint is kept: {saved[-1]}" in str(error.value)
        for path in saved:
            numbers = [t for t in read_file(path, check).tensors.values() if t.is_floating_point()]
            assert all(bool(torch.isfinite(t).all()) for t in numbers)


def test_a_loss_that_is_not_finite_later_keeps_what_was_good(tmp_path: Path) -> None:
    """The second task's images are broken: the first task's checkpoint stays, and is named."""
    stream = small_stream([2, 2])
    task = stream.tasks[1]
    broken = task.train.images.astype(np.float32)
    broken[0] = np.inf
    object.__setattr__(task, "train", type(task.train)(broken, task.train.labels))
    with pytest.raises(DivergedError, match="task 2, epoch 1, step") as error:
        run(Job(stream, "finetune", device="cpu", out=tmp_path, settings=QUICK))
    last = sorted((tmp_path / "checkpoints").iterdir())[-1]
    assert last.name.endswith("task-1-end.safetensors")
    assert str(last) in str(error.value)


@pytest.mark.parametrize(("number", "words"), [(errno.ENOSPC, "the disk is full; free some space"), (errno.EACCES, "no permission")])
def test_a_disk_that_takes_no_more_is_named_and_the_run_goes_on_later(
    number: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(Job(small_stream([2, 2]), "finetune", device="cpu", out=tmp_path / "whole", settings=QUICK))
    original, calls = os.replace, 0

    def replace(source: Any, target: Any) -> None:
        nonlocal calls
        calls += 1
        if calls >= 4:  # from then on for good
            raise OSError(number, os.strerror(number))
        original(source, target)

    monkeypatch.setattr(os, "replace", replace)
    folder = tmp_path / "run"
    with pytest.raises(WriteError, match=words) as error:
        run(Job(small_stream([2, 2]), "finetune", device="cpu", out=folder, settings=QUICK))
    assert f"afaf run --resume {folder}" in str(error.value)
    monkeypatch.undo()
    assert not list(folder.rglob("*.part*"))
    resume(folder, stream=small_stream([2, 2]))
    assert found(folder) == found(tmp_path / "whole")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file, not a folder"):
        run(Job(small_stream([2]), "finetune", out=tmp_path / "file", settings=QUICK))
    with pytest.raises(RunError, match=r"below.*choose another with --out"):
        run(Job(small_stream([2]), "finetune", out=tmp_path / "file" / "below", settings=QUICK))
    with pytest.raises(RunError, match="holds no run"):
        resume(tmp_path)


def test_data_that_vanished_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.npz"):
        run(Job(f"npz:{tmp_path / 'gone.npz'}", "finetune", settings=QUICK))


def test_a_file_that_vanishes_on_the_way_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def learn(*_: Any) -> None:
        (tmp_path / "images.bin").open()

    monkeypatch.setattr(CompactEngine, "learn", learn)
    with pytest.raises(RunError, match=r"images\.bin: No such file.*afaf run --resume"):
        run(Job(small_stream([2]), "finetune", device="cpu", out=tmp_path / "run", settings=QUICK))


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, RuntimeError])
def test_memory_that_runs_out_names_what_to_lower(kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is out of memory cannot be had on demand: the engine says so instead."""
    stream, original = small_stream([2, 2]), CompactEngine.learn

    def learn(self: CompactEngine, learner: Any, plan: Any, *rest: Any) -> None:
        if plan.task == 2:
            raise kind("CUDA out of memory. Tried to allocate 20.00 GiB")
        original(self, learner, plan, *rest)

    monkeypatch.setattr(CompactEngine, "learn", learn)
    with pytest.raises(
        DeviceError, match=r"cpu ran out of memory in task 2: lower run\.chunk \(now 256 MiB.*learn\.batch_size \(now 8"
    ) as error:
        run(Job(stream, "finetune", device="cpu", out=tmp_path / "run", settings=QUICK))
    assert "task-1-end" in str(error.value)
    monkeypatch.undo()
    assert resume(tmp_path / "run", stream=stream, settings={"run.chunk": 1}).acc is not None


def test_other_errors_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def learn(*_: Any) -> None:
        raise RuntimeError("a mistake in the program")

    monkeypatch.setattr(CompactEngine, "learn", learn)
    with pytest.raises(RuntimeError, match="a mistake"):
        run(Job(small_stream([2]), "finetune", device="cpu", settings=QUICK))


# Signals, as a terminal and a batch system send them.


def beginning(forks: Forks, folder: Path, *more: str, first: str = "") -> int:
    """The process of `afaf run` that has begun to learn, and would go on for long."""
    settings = ["--device", "cpu", "--set", "learn.epochs=400", *more]
    process = forks.start(["run", "split-digits", "finetune", *settings, "--out", str(folder / "run")], folder / "printed.txt", first=first)
    until = time.monotonic() + 60
    while not (folder / "run" / "log.jsonl").exists():
        assert time.monotonic() < until, (folder / "printed.txt").read_text()
        time.sleep(0.01)
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_once_asked_to_stop_it_saves_and_says_how_to_go_on(number: int, code: int, tmp_path: Path, forks: Forks) -> None:
    process = beginning(forks, tmp_path)
    os.kill(process, number)
    assert forks.wait(process) == code
    words = (tmp_path / "printed.txt").read_text()
    assert f"afaf run --resume {tmp_path / 'run'}" in " ".join(words.split())
    assert "Traceback" not in words
    newest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    last = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()][-1]
    assert newest.name.endswith(f"task-{last['task']}-phase-0-epoch-{last['epoch'] + 1}.safetensors")  # of the epoch that was finished
    assert examine(tmp_path / "run").well


ENDLESS = """
import time
from afaf.runs.runner import Run
original = Run._after_epoch
def endless(self, plan):
    ended = original(self, plan)
    def wait(report):
        ended(report)
        while report.epoch == 2:
            time.sleep(0.01)
    return wait
Run._after_epoch = endless
"""


def test_asked_twice_it_leaves_at_once_and_nothing_is_corrupt(tmp_path: Path, forks: Forks) -> None:
    """The epoch it is in never ends: only the second Ctrl-C can end the program."""
    process = beginning(forks, tmp_path, "--set", "run.checkpoint=0", first=ENDLESS)
    while not list((tmp_path / "run" / "checkpoints").glob("*epoch-3.safetensors")):
        time.sleep(0.01)
    os.kill(process, signal.SIGINT)
    time.sleep(0.3)
    os.kill(process, 0)  # it is still there
    os.kill(process, signal.SIGINT)
    started = time.monotonic()
    assert forks.wait(process) == 130
    assert time.monotonic() - started < 5
    words = (tmp_path / "printed.txt").read_text()
    assert "once more to stop at once" in words
    assert "Traceback" not in words
    assert examine(tmp_path / "run").well
