"""The pictures that belong to a run folder, made from its files alone."""

from __future__ import annotations

import json
from pathlib import Path

from afaf.report.figures import save_ledger_picture, save_r_matrix
from afaf.report.lettering import missing_letters_told_once
from afaf.runs.folder import write_whole
from afaf.runs.results import Results
from afaf.storage.model_file import Model


def draw_run(folder: Path) -> None:
    """Put ledger.png and r-matrix.png into a finished run's folder, unless they are there."""
    if (folder / "r-matrix.png").exists():  # the last to be written
        return
    model = Model.load(folder / "model.safetensors")
    results = Results.from_dict(json.loads((folder / "results.json").read_text(encoding="utf-8")))
    with missing_letters_told_once():
        write_whole(folder / "ledger.png", lambda path: save_ledger_picture(model, path))
        write_whole(folder / "r-matrix.png", lambda path: save_r_matrix(results, path))
