"""A run that is killed with SIGKILL, at whatever moment, and resumed ends with the same bits as one that was not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from afaf.methods import method_names

PROGRAM = Path(__file__).parents[1] / "crash.py"


def crash(kills: int, seed: int, folder: Path) -> dict[str, Any]:
    command = [sys.executable, str(PROGRAM), "--kills", str(kills), "--seed", str(seed), "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(found))
    return found


def test_ten_killed_runs_end_as_if_nothing_had_happened(tmp_path: Path) -> None:
    found = crash(10, 6, tmp_path)
    assert found["differences"] == []
    assert len(found["deaths"]) >= 9  # a run may be over before its moment comes
    assert set(found["methods"]) == set(method_names())


@pytest.mark.slow
def test_three_hundred_killed_runs_end_as_if_nothing_had_happened(tmp_path: Path) -> None:
    found = crash(300, int(os.environ.get("AFAF_CRASH_SEED", "1")), tmp_path)
    assert found["differences"] == []
    assert len(found["deaths"]) >= 300
