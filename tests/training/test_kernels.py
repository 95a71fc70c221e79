"""The Triton kernels and the steps made of them, in Triton's interpreter where there is no GPU: slow, but the same code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


def check(name: str, interpreted: bool) -> None:
    """Run a file of checks in a process of its own."""
    pytest.importorskip("triton", reason="needs Triton (pip install triton)")
    chosen = {"TRITON_INTERPRET": "1"} if interpreted else {}
    checks = Path(__file__).with_name(name)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", "--import-mode=importlib", str(checks)]
    done = subprocess.run(command, env={**os.environ, **chosen}, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:]


def test_kernels_compute_what_they_stand_for() -> None:
    check("kernel_checks.py", interpreted=not torch.cuda.is_available())


@pytest.mark.slow
def test_steps_for_cuda_are_the_reference() -> None:
    check("step_checks.py", interpreted=True)
