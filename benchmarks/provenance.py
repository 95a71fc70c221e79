"""Writing measured numbers, with where they come from: commit, device, versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from afaf.runs.device import device_name
from afaf.runs.provenance import commit, versions


def write_results(path: Path, rows: list[dict[str, Any]], device: torch.device) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"commit": commit(), "device": device_name(device), **versions()}
    path.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
