"""Whatever call of the save path fails, the run ends with one typed error, and its folder resumes to the same bits."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from afaf.errors import WriteError
from afaf.runs.checkpoint import Checkpoints
from afaf.runs.folder import RunFolder
from afaf.runs.job import Job
from afaf.runs.progress import Position
from afaf.runs.resume import resume
from afaf.runs.runner import run
from afaf.storage import container
from afaf.streams.tasks import Stream
from conftest import small_stream
from crash import found

ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES)
CALLS = ("write", "fsync", "replace")
SETTINGS = {"learn.epochs": 1, "learn.batch_size": 6, "run.checkpoint": 0, "network.name": "mlp"}


@contextmanager
def failing(folder: Path, at: int, number: int | None) -> Iterator[list[str]]:
    """Within the block the `at`-th write, fsync or rename below the folder fails; yields what was called."""
    calls: list[str] = []
    originals = {name: getattr(os, name) for name in CALLS}

    def watched(name: str) -> Callable[..., Any]:
        def call(first: Any, *rest: Any) -> Any:
            place = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else str(first)
            if str(folder) in place and not place.endswith(".lock"):
                calls.append(f"{name} {Path(place).name}")
                if len(calls) == at and number is not None:
                    raise OSError(number, os.strerror(number))
            return originals[name](first, *rest)

        return call

    try:
        for name in CALLS:
            setattr(os, name, watched(name))
        yield calls
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


def learn(stream: Stream, folder: Path) -> None:
    run(Job(stream, "spacenet", device="cpu", out=folder, settings=SETTINGS))


def go_on(stream: Stream, folder: Path) -> None:
    """As a user would: resume, or if not even the configuration is there, start again."""
    if (folder / "config.json").exists():
        resume(folder, stream=stream)
    else:
        learn(stream, folder)


def fail_in_turn(tmp_path: Path, errors_at: Callable[[int], tuple[int, ...]]) -> None:
    stream = small_stream([2, 2], per_class=6)
    with failing(tmp_path / "whole", 0, None) as calls:
        learn(stream, tmp_path / "whole")
    expected = found(tmp_path / "whole")
    assert {call.split()[0] for call in calls} == set(CALLS)
    assert sum("checkpoints" in call or ".safetensors" in call for call in calls) >= 12
    for at in range(1, len(calls) + 1):
        for number in errors_at(at):
            folder = tmp_path / f"{at}-{errno.errorcode[number]}"
            with failing(folder, at, number), pytest.raises(WriteError, match="cannot write"):
                learn(stream, folder)
            saved = any((folder / "checkpoints").glob("*.safetensors"))
            finished = (folder / "results.json").exists()
            go_on(stream, folder)
            assert found(folder) == expected, (calls[at - 1], errno.errorcode[number])
            if saved and not finished:
                resumed = next(line for line in map(json.loads, (folder / "log.jsonl").open()) if line["event"] == "resumed")
                assert resumed["passed_over"] == []  # nothing half-written lies about
                assert resumed["position"] != asdict(Position())  # it went on from the checkpoint, not from the beginning


def test_a_run_that_fails_leaves_nobody_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log cannot be written while a checkpoint is: whoever goes on must not meet the writer in the folder."""
    encode, log, save = container.encode, RunFolder.log, Checkpoints.save
    started = list[Checkpoints]()

    def slowly(*arguments: Any) -> Any:
        time.sleep(0.3)
        return encode(*arguments)

    def noted(self: Checkpoints, *state: Any) -> None:
        save(self, *state)
        started.append(self)

    def refused(self: RunFolder, record: dict[str, Any]) -> None:
        if started:
            raise WriteError("cannot write: for a test")
        log(self, record)

    monkeypatch.setattr(container, "encode", slowly)
    monkeypatch.setattr(Checkpoints, "save", noted)
    monkeypatch.setattr(RunFolder, "log", refused)
    with pytest.raises(WriteError, match="for a test"):
        learn(small_stream([2, 2], per_class=6), tmp_path / "run")
    assert not any(thread.name.startswith("checkpoint") for thread in threading.enumerate())
    assert [path.name[:6] for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["000001"]  # whole, and no part of another


def test_every_write_fsync_and_rename_may_fail(tmp_path: Path) -> None:
    fail_in_turn(tmp_path, lambda at: (ERRORS[at % 3],))


@pytest.mark.slow
def test_every_write_fsync_and_rename_may_fail_in_every_way(tmp_path: Path) -> None:
    fail_in_turn(tmp_path, lambda at: ERRORS)
