"""From a folder of PNGs to a learned stream, by the command line alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from afaf.cli.main import app
from streams import makers


def test_run_learns_a_folder_of_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("cat", "dog", "car", "truck"):
        pattern = rng.uniform(0, 255, (5, 4, 3)).repeat(4, 0).repeat(4, 1)  # blocks: scaling leaves them visible
        (tmp_path / "own" / "train" / name).mkdir(parents=True)
        for i in range(30):
            image = np.clip(pattern + rng.normal(0, 20, pattern.shape), 0, 255).astype(np.uint8)
            (tmp_path / "own" / "train" / name / f"{i}.png").write_bytes(makers.png(image))
    (tmp_path / "order.txt").write_text("cat, car\ndog, truck\n")
    settings = {"learn.epochs": 25, "learn.batch_size": 8, "learn.lr": 0.5, "stream.size": 12, "stream.order": tmp_path / "order.txt"}
    arguments = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    command = ["run", f"folder:{tmp_path / 'own'}", "afaf", "--device", "cpu", "--out", str(tmp_path / "run"), "--json", *arguments]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    learned = json.loads(result.stdout.splitlines()[-1])
    assert learned["la"] > 90  # how well each task was learned when it was new; chance is 50
