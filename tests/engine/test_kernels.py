"""The Triton kernels, in Triton's interpreter where there is no GPU: slow, but the same code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


def test_kernels_compute_what_they_stand_for() -> None:
    pytest.importorskip("triton", reason="needs Triton (pip install triton)")
    interpreted = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    checks = Path(__file__).with_name("kernel_checks.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", "--import-mode=importlib", str(checks)]
    done = subprocess.run(command, env={**os.environ, **interpreted}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:]
