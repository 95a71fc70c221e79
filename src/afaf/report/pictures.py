"""The figures in a run folder, drawn from its files."""

from __future__ import annotations

from pathlib import Path

from afaf.files import write_whole
from afaf.report.figures import save_ledger_picture, save_r_matrix
from afaf.report.plot_text import warn_once_of_missing_letters
from afaf.runs.folder import read_json
from afaf.runs.results import Results
from afaf.storage.model_file import Model


def draw_run(folder: Path) -> None:
    """Write ledger.png and r-matrix.png into a finished run's folder, unless they exist."""
    ledger, matrix = folder / "ledger.png", folder / "r-matrix.png"
    if ledger.exists() and matrix.exists():
        return
    model = Model.load(folder / "model.safetensors")
    results = Results.from_dict(read_json(folder / "results.json"))
    with warn_once_of_missing_letters():
        if not ledger.exists():
            write_whole(ledger, lambda part: save_ledger_picture(model, part))
        if not matrix.exists():
            write_whole(matrix, lambda part: save_r_matrix(results, part))
