"""Where a measured number comes from: commit, device, versions."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from afaf.runs.device import device_name


def commit() -> str:
    """The commit measured, marked when the tree had changes; outside a checkout what AFAF_COMMIT says."""
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        dirty = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("AFAF_COMMIT", "unknown")
    return head + (" with changes" if dirty else "")


def write_results(path: Path, rows: list[dict[str, Any]], device: torch.device) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"commit": commit(), "device": device_name(device), "torch": torch.__version__, "python": platform.python_version()}
    path.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
