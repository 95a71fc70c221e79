"""A run folder behind a URL holds what a local one does, and a run goes on from it elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

import afaf
from afaf.cli.main import app
from afaf.errors import AfafError, RunError
from afaf.runs.events import EpochEnded, Event
from afaf.runs.mirror import Mirror
from afaf.runs.stop import StopToken

SETTINGS: dict[str, Any] = {"learn.epochs": 2, "run.images": 20, "run.checkpoint": 0}


def learn(out: str | Path, **more: Any) -> afaf.Results:
    return afaf.run("split-digits", "afaf", device="cpu", settings=SETTINGS, out=out, resume=True, **more)


def test_a_run_behind_a_url_is_the_same_run(tmp_path: Path) -> None:
    there, here = learn((tmp_path / "there").as_uri()), learn(tmp_path / "here")
    assert there.run == (tmp_path / "there").as_uri()
    assert there.R == here.R
    names = [
        {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        for folder in (tmp_path / "there", tmp_path / "here")
    ]
    assert names[0] == names[1] - {".lock", "ledger.png", "r-matrix.png"}
    assert learn(there.run).R == there.R
    with pytest.raises(RunError, match="already holds"):
        afaf.run("split-digits", "afaf", device="cpu", settings=SETTINGS, out=there.run)


def test_a_run_that_was_stopped_goes_on_from_what_is_there(tmp_path: Path) -> None:
    stop, url = StopToken(), (tmp_path / "there").as_uri()

    def stop_in_task_3(event: Event) -> None:
        if isinstance(event, EpochEnded) and event.report.task == 3:
            stop.ask()

    with pytest.raises(AfafError, match=url):
        learn(url, stop=stop, on_event=stop_in_task_3)
    assert not (tmp_path / "there" / "results.json").exists()
    assert CliRunner().invoke(app, ["run", "--resume", url, "--device", "cpu"]).exit_code == 0
    learn(tmp_path / "here")
    assert '"resumed"' in (tmp_path / "there" / "log.jsonl").read_text()
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("there", "here")]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[1])


def test_runs_behind_a_url_have_a_page(tmp_path: Path) -> None:
    for method in ("ridge", "finetune"):
        afaf.run("split-digits", method, device="cpu", settings=SETTINGS, out=tmp_path / "runs" / method)
    url, page = (tmp_path / "runs").as_uri(), tmp_path / "page.html"
    before = sorted(tmp_path.rglob("*"))
    assert CliRunner().invoke(app, ["report", url, "--out", str(page)]).exit_code == 0
    assert all(method in page.read_text() for method in ("ridge", "finetune"))
    assert sorted(tmp_path.rglob("*")) == sorted([*before, page])
    for command in (["report"], ["run", "--resume"]):
        told = CliRunner().invoke(app, [*command, f"{url}/nothing"])
        assert told.exit_code == 2, told.output
        assert f"{url}/nothing" in "".join(told.stderr.split())


def test_the_log_there_is_never_behind_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    mirror = Mirror((tmp_path / "there").as_uri(), tmp_path / "here")
    put = mirror.system.put_file
    monkeypatch.setattr(mirror.system, "put_file", lambda source, target: (order.append(Path(target).name), put(source, target)))
    learn(tmp_path / "here")
    mirror.push()
    saved = [name for name in order if "-task-" in name]
    assert saved
    assert order.index("log.jsonl") < min(map(order.index, saved)) < max(map(order.index, saved)) < order.index("results.json")


def test_a_url_that_cannot_be_used_is_refused() -> None:
    told = CliRunner().invoke(app, ["run", "split-digits", "ridge", "--out", "nosuch://bucket/run", "--device", "cpu"])
    assert told.exit_code == 2, told.output
    assert "nosuch" in told.stderr
