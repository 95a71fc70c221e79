"""The server is killed while it is taught: the model file is the old one or the new one, and the next server comes up with it."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from afaf.files import is_part
from afaf.lifelong.model_store import load_any, undo_of
from serve_world import COLOURS, add, names, photo, teach

KNOWN = ["green", "red"]


class Process:
    """`afaf serve` in a session of its own."""

    def __init__(self, path: Path):
        code = "from afaf.cli.main import main; main()"
        command = [sys.executable, "-c", code, "serve", str(path), "--port", "0", "--rate", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://[\d.]+:\d+", line)
        assert found is not None, line
        self.client = httpx.Client(base_url=found[0], timeout=60)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.client.close()

    def left(self) -> list[int]:
        """Processes of its session that still run."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self.process.pid and fields[0] != "Z":
                found.append(int(entry.name))
        return found


def wait_until_alone(process: Process) -> None:
    for _ in range(600):
        if not process.left():
            return
        time.sleep(0.05)
    for pid in process.left():
        os.kill(pid, signal.SIGKILL)
    pytest.fail("processes of a server that was killed still run")


def wait_for(client: httpx.Client, job: str, stages: tuple[str, ...]) -> None:
    while True:
        state = client.get(job).json()
        if state["stage"] in stages or state["state"] != "learning":
            return


def killed_while_taught(path: Path, kills: int, seed: int) -> list[str]:
    """What the model knew after each kill, old or new."""
    draw, outcomes, took = random.Random(seed), [], 2.0
    process = Process(path)
    try:
        teach(process.client, *KNOWN)
        for number in range(kills):
            before = path.read_bytes()
            assert add(process.client, "blue", [photo("blue", i) for i in range(12)]).status_code == 202
            job = process.client.post("/learn").headers["location"]
            started = time.monotonic()
            if number % 2:  # half of the moments lie around the writing of the file
                wait_for(process.client, job, ("writing", "loading"))
                time.sleep(draw.uniform(0, 0.3))
            else:
                time.sleep(draw.uniform(0, took))
            process.kill()
            wait_until_alone(process)
            took = max(took * 0.9, min(5.0, time.monotonic() - started))
            found = sorted(str(label) for label in load_any(path).life.known)
            assert found in (KNOWN, sorted(COLOURS))
            assert found != KNOWN or path.read_bytes() == before
            outcomes.append("old" if found == KNOWN else "new")
            process = Process(path)
            assert sorted(names(process.client)) == found
            if found != KNOWN:
                assert process.client.post("/undo").status_code == 200
                assert path.read_bytes() == before
            assert sorted(names(process.client)) == KNOWN
    finally:
        process.kill()
        wait_until_alone(process)
    beside = [each.name for each in path.parent.iterdir() if each.name != path.name and not is_part(each.name)]
    assert all(".undo-" in name for name in beside)
    assert undo_of(path) is None or undo_of(path) in path.parent.iterdir()
    return outcomes


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_killed_at_fifty_moments(tmp_path: Path, seed: int) -> None:
    outcomes = killed_while_taught(tmp_path / "model.safetensors", 10, seed)
    print(" ".join(outcomes))
    assert len(outcomes) == 10
