"""One writer to a run folder: of two processes one runs and the other says why it does not; the dead hold no lock."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from afaf.errors import LockedError, RunError
from afaf.files import lock
from afaf.files.lock import FolderLock, is_locked
from afaf.runs.folder import RunFolder
from forks import Forks

NO_PICTURES = "import afaf.api; afaf.api.draw_run = lambda folder: None"  # they take longer than the run
QUICK = ["--device", "cpu", "--set", "learn.epochs=1", "--set", "learn.batch_size=64"]


def race(times: int, folder: Path, forks: Forks) -> None:
    """Both processes start at the same moment: exactly one runs, the other exits with the message."""
    for i in range(times):
        arguments = ["run", "split-digits", "finetune", "--out", str(folder / str(i)), *QUICK]
        moment, logs = time.time() + 0.1, [folder / f"{i}{name}.txt" for name in "ab"]
        processes = [forks.start(arguments, log, at=moment, first=NO_PICTURES) for log in logs]
        codes = [forks.wait(process) for process in processes]
        texts = [" ".join(log.read_text().split()) for log in logs]
        assert sorted(codes) == [0, 2], texts
        message = texts[codes.index(2)]
        assert "in use by" in message or "already holds a" in message
        assert "Traceback" not in message
        assert (folder / str(i) / "results.json").exists()


def test_of_two_processes_one_runs(tmp_path: Path, forks: Forks) -> None:
    race(5, tmp_path, forks)


def test_a_run_that_begins_while_the_folder_is_looked_at_is_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If its config.json appears just before the files are listed, the folder is taken, not one of another program."""
    real = os.listdir

    def late(path: Path) -> list[str]:
        (tmp_path / "config.json").write_bytes(b"{}")
        return real(path)

    monkeypatch.setattr(os, "listdir", late)
    with pytest.raises(RunError) as raised:
        RunFolder.refuse_taken(tmp_path)
    assert "not empty" not in str(raised.value)


def test_a_lock_that_was_removed_meanwhile_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process opens the file, its holder removes it, another makes the next one: it may not hold what has no name any more."""
    first, second, third = (FolderLock(tmp_path) for _ in range(3))
    first.take()
    locks = lock._lock

    def late(handle: int) -> bool:
        monkeypatch.undo()
        first.remove()
        second.take()
        return locks(handle)

    monkeypatch.setattr(lock, "_lock", late)
    with pytest.raises(LockedError):
        third.take()
    second.remove()
    assert list(tmp_path.iterdir()) == []
    third.take()
    third.release()
    assert not is_locked(tmp_path)


@pytest.mark.slow
def test_of_two_processes_one_runs_fifty_times(tmp_path: Path, forks: Forks) -> None:
    race(50, tmp_path, forks)


def test_the_second_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    with FolderLock(tmp_path):
        assert is_locked(tmp_path)
        with pytest.raises(LockedError, match=f"in use by process {os.getpid()} on .*--out"):
            FolderLock(tmp_path).take()
    assert not is_locked(tmp_path)
    with FolderLock(tmp_path):
        pass


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    program = f"""
import time
from pathlib import Path
from afaf.files.lock import FolderLock
FolderLock(Path({str(tmp_path)!r})).take()
print("held", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == child.pid
        with pytest.raises(LockedError, match=f"process {child.pid}"):
            FolderLock(tmp_path).take()
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert json.loads((tmp_path / ".lock").read_text())["pid"] == child.pid  # it left its lock behind
    started = time.monotonic()
    with FolderLock(tmp_path):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()
    assert time.monotonic() - started < 1


def test_whoever_comes_second_looks_again_once_it_has_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between looking and locking another process may have run: its run is not overwritten."""
    original = FolderLock.take

    def slow(lock: FolderLock) -> None:
        (tmp_path / "run" / "config.json").write_text("{}")
        original(lock)

    monkeypatch.setattr(FolderLock, "take", slow)
    with pytest.raises(RunError, match="already holds"):
        RunFolder.create(tmp_path / "run")
    assert not is_locked(tmp_path / "run")
