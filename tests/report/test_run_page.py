"""The page of a run names its network and the commit that computed it; folders of earlier versions do not say them and have a page too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import afaf
from afaf.report.results_page import comparison_page
from afaf.report.run_page import run_page

COMMIT = "0123456789abcdef0123456789abcdef01234567 with changes"
SHORT = "0123456789ab with changes"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Runs of two methods."""
    monkeypatch.setenv("AFAF_COMMIT", COMMIT)
    settings = {"learn.epochs": 1, "run.images": 10, "network.width": 397}
    folders = [tmp_path / "finetune", tmp_path / "afaf"]
    for folder in folders:
        afaf.run("split-digits", folder.name, device="cpu", out=folder, settings=settings)
    return folders


def make_earlier(run: Path) -> None:
    """Remove what earlier versions did not write."""
    for name in ("config.json", "results.json"):
        stored = json.loads((run / name).read_text())
        (run / name).write_text(json.dumps({key: value for key, value in stored.items() if key not in ("network", "width", "commit")}))


def test_a_page_names_network_and_commit_also_that_there_were_changes(runs: list[Path]) -> None:
    one, compared = run_page(runs[1:]), comparison_page(runs)
    listed = next(section.body for section in compared.sections if section.id == "seeds")
    for shown in (one.subtitle, listed):
        assert "mlp" in shown
        assert "397" in shown
    assert SHORT in one.footer
    assert SHORT in compared.footer


def test_a_folder_of_an_earlier_version_has_a_page_and_goes_on(runs: list[Path]) -> None:
    make_earlier(runs[1])
    results = afaf.resume(runs[1])
    assert (results.network, results.width, results.commit) == (None, None, None)
    assert "397" in run_page(runs[1:]).subtitle  # of the model
    assert SHORT not in run_page(runs[1:]).footer
    assert SHORT in comparison_page(runs).footer  # of the other run
