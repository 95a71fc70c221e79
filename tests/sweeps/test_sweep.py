"""Searching for settings: no test image is looked at, no trial is lost or repeated, and the best one is a preset."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import afaf
from afaf.cli.main import app
from afaf.errors import ConfigError, RunError
from afaf.methods import BUILT_IN, find_method
from afaf.report.page import write_report
from afaf.runs.events import Event, TaskEnded
from afaf.runs.job import Job
from afaf.runs.stop import StopToken
from afaf.streams.tasks import Split, Stream
from afaf.sweeps.executor import LocalExecutor
from afaf.sweeps.outcome import Outcome
from afaf.sweeps.space import Range, Space, read_space, shipped_space

pytest.importorskip("optuna")
from afaf.sweeps.search import Sweep, check_job

runner = CliRunner()
QUICK = {"learn.epochs": 1, "run.images": 20}
RATES: Space = {
    "learn.lr": Range(0.001, 0.5, log=True),
    "learn.batch_size": Range(8, 32, step=8),
    "method.loss_over": Range(choices=["task", "seen"]),
}


def search(folder: Path, trials: int, job: Job | None = None, space: Space = RATES, stop: StopToken | None = None, **more: Any) -> Outcome:
    on_event, executor = more.pop("on_event", lambda event: None), more.pop("executor", LocalExecutor)
    job = job or Job("split-digits", "finetune", settings=QUICK)
    return Sweep(job, space, folder, executor("cpu", stop=stop), **more).carry_out(trials, on_event)


def distinct(trials: Sequence[Any]) -> int:
    return len({json.dumps(trial["settings"] if isinstance(trial, dict) else trial.settings) for trial in trials})


def test_the_best_trial_is_a_preset_of_the_same_run(tmp_path: Path) -> None:
    outcome = search(tmp_path, 4)
    assert outcome.best is not None
    assert outcome.best.value == max(trial.value for trial in outcome.trials if trial.state == "complete")
    held = {"run.validation": 0.1, "run.evaluate_on": "validation"}
    again = afaf.run("split-digits", "finetune", device="cpu", config=tmp_path / "best.toml", settings=held)
    assert again.acc == outcome.best.value
    stored = json.loads((tmp_path / "sweep.json").read_text())["trials"]
    assert [trial["number"] for trial in stored] == [0, 1, 2, 3]
    assert distinct(stored) == 4
    for trial in outcome.trials:
        assert 0.001 <= trial.settings["learn.lr"] <= 0.5
        assert trial.settings["learn.batch_size"] in (8, 16, 24, 32)


def test_test_images_are_not_looked_at(tmp_path: Path) -> None:
    """Replaced by noise, they change no trial."""

    def noise(split: Split) -> Split:
        return replace(split, images=np.random.default_rng(0).integers(0, 255, split.images.shape).astype(split.images.dtype))

    digits = afaf.open_stream("split-digits")
    spoiled = Stream(digits.name, [replace(task, test=noise(task.test)) for task in digits], digits.label_map)
    found = [search(tmp_path / str(i), 3, Job(stream, "finetune", settings=QUICK)) for i, stream in enumerate((digits, spoiled))]
    values = [[(trial.settings, trial.steps, trial.value) for trial in outcome.trials] for outcome in found]
    assert values[0] == values[1]


@pytest.mark.parametrize("search_by", ["random", "tpe"])
def test_a_sweep_that_is_stopped_goes_on(tmp_path: Path, search_by: str) -> None:
    """A trial in progress continues from its checkpoint with the same settings; those done are not repeated."""
    stop = StopToken()

    def stop_in_the_third(event: Event) -> None:
        if isinstance(event, TaskEnded) and event.job.tag.number == 2 and event.tasks == (3,):
            stop.ask()

    with pytest.raises(afaf.AfafError):
        search(tmp_path, 6, stop=stop, on_event=stop_in_the_third, search=search_by)
    before = json.loads((tmp_path / "sweep.json").read_text())["trials"]
    outcome = search(tmp_path, 6, search=search_by)
    assert [trial.number for trial in outcome.trials] == list(range(6))
    assert distinct(outcome.trials) == 6
    assert not [trial for trial in outcome.trials if trial.state == "running"]
    assert [(t.settings, t.value) for t in outcome.trials[:2]] == [(t["settings"], t["value"]) for t in before[:2]]
    assert '"resumed"' in (tmp_path / "trials" / "2" / "log.jsonl").read_text()
    if search_by == "random":
        assert search(tmp_path / "whole", 6).trials[2].settings == outcome.trials[2].settings


def test_poor_trials_stop_after_a_task(tmp_path: Path) -> None:
    poor_or_good: Space = {"learn.lr": Range(choices=[1e-7, 0.05]), "learn.momentum": Range(0.0, 0.5)}
    outcome = search(tmp_path, 14, space=poor_or_good)
    stopped = [trial for trial in outcome.trials if trial.state == "pruned"]
    assert stopped
    assert all(len(trial.steps) < 5 for trial in stopped)
    assert outcome.best is not None
    assert outcome.best.settings["learn.lr"] == 0.05
    assert set(outcome.importance) == set(poor_or_good)


@pytest.mark.parametrize("tasks", [None, 4])
def test_a_trial_that_ends_before_it_can_be_stopped_is_complete(tmp_path: Path, tasks: int | None) -> None:
    class Late(LocalExecutor):
        def cancel(self, job: Job) -> None: ...

    poor_or_good: Space = {"learn.lr": Range(choices=[1e-7, 0.05]), "learn.momentum": Range(0.0, 0.5)}
    outcome = search(tmp_path, 8, space=poor_or_good, executor=Late, tasks=tasks)
    assert {trial.state for trial in outcome.trials} == {"complete"}
    assert all(trial.value == pytest.approx(trial.steps[(tasks or 5) - 1]) for trial in outcome.trials)


def test_only_the_first_tasks_are_learned_where_asked(tmp_path: Path) -> None:
    outcome = search(tmp_path, 3, tasks=2)
    assert [len(trial.steps) for trial in outcome.trials] == [2, 2, 2]
    assert all(trial.value == trial.steps[1] for trial in outcome.trials)
    with pytest.raises(ConfigError, match="tasks"):
        search(tmp_path / "other", 3, tasks=6)


def test_a_network_without_room_is_a_failed_trial(tmp_path: Path) -> None:
    space: Space = {"sparse.alloc.output": Range(choices=[20, 50])}
    outcome = search(tmp_path, 8, Job("split-digits", "afaf", settings=QUICK), space)
    assert {(trial.state == "fail") == (trial.settings["sparse.alloc.output"] == 50) for trial in outcome.trials} == {True}
    assert all(trial.why for trial in outcome.trials if trial.state == "fail")


def test_another_sweep_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    search(tmp_path, 1)
    with pytest.raises(ConfigError, match="settings"):
        search(tmp_path, 1, Job("split-digits", "finetune", settings={**QUICK, "learn.epochs": 2}))


@pytest.mark.parametrize("on", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_what_tune_chooses_is_a_sweep_too(tmp_path: Path, on: str, ray_folder: Path) -> None:
    """The same trials and settings, as a preset and a page."""
    words = ["tune", "split-digits", "ewc", "--start", "1e9", "--searches", "2", "--lr", "0.02", "--lr", "0.05", "--device", "cpu"]
    words += ["--on", on, "--out", str(tmp_path / "out"), "--json", "--set", "learn.epochs=1", "--set", "run.images=20"]
    told = runner.invoke(app, words)
    assert told.exit_code == 0, told.output
    tuned = afaf.tune("split-digits", "ewc", start=1e9, searches=2, learning_rates=(0.02, 0.05), settings=QUICK, device="cpu")
    assert json.loads(told.stdout.splitlines()[-1]) == {**tuned.to_dict(), "preset": str(tmp_path / "out" / "best.toml")}
    stored = json.loads((tmp_path / "out" / "sweep.json").read_text())["trials"]
    assert [trial["value"] for trial in stored] == [trial.accuracy for trial in tuned.trials]
    text = (tmp_path / "out" / "best.toml").read_text()
    assert all(name in text for name in (*tuned.settings, "learn.epochs"))
    assert "null" not in write_report(tmp_path / "out").read_text(encoding="utf-8")


@pytest.mark.parametrize("method", BUILT_IN)
def test_every_method_has_a_space(method: str) -> None:
    space = shipped_space(find_method(method))
    assert len(space) > 1
    check_job(Job("split-digits", method), space, None)
    check_job(Job("split-cifar10", method), space, None)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[learn]\nlr = { lo = 0.1, high = 1.0 }", "learn.lr.lo"),
        ("[learn]\nlr = { low = 1.0, high = 0.1 }", "learn.lr"),
        ("[learn]\nlr = { low = 0.1, high = 0.1 }", "learn.lr"),
        ("[learn]\nlr = { low = 0.0, high = 0.1, log = true }", "learn.lr"),
        ("[learn]\nlr = { choices = [] }", "learn.lr"),
        ("[learn]\nlr = { low = 0.1 }", "learn.lr"),
        ("[learn]\nlr = 0.1", "learn.lr"),
        ("[learn]\nrate = { low = 0.1, high = 1.0 }", "learn.rate"),
        ("[learn]\nlr = { low = -1.0, high = 1.0 }", "learn.lr"),
        ("[method]\nl_reuse = { low = 2, high = 3 }", "method.l_reuse"),
        ("[run]\nimages = { low = 2, high = 3 }", "run.images"),
        ("", "space.toml"),
        ("[learn", "space.toml"),
    ],
)
def test_a_space_that_makes_no_sense_is_refused(text: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text(text)
    command = ["sweep", "split-digits", "finetune", "--space", str(tmp_path / "space.toml"), "--out", str(tmp_path / "out")]
    told = runner.invoke(app, command)
    assert told.exit_code == 2, told.output
    assert named in " ".join(told.stderr.split())
    assert "space.toml" in " ".join(told.stderr.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("storage", ["folder", "sqlite:////nowhere/at/all.db", "nosuchdatabase://host/name", "file/journal.log"])
def test_a_storage_that_cannot_be_written_is_refused(storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("a file")
    told = runner.invoke(app, ["sweep", "split-digits", "finetune", "--storage", storage, "--out", "out", "--device", "cpu"])
    assert told.exit_code == 2, told.output
    assert storage in " ".join(told.stderr.split())


@pytest.mark.parametrize("blocked", ["out", "out/sweep", "out/sweep/journal.log"])
def test_a_folder_that_cannot_be_written_ends_a_search_like_a_run(blocked: str, tmp_path: Path) -> None:
    out = tmp_path / "out" / "sweep"
    (tmp_path / blocked).parent.mkdir(parents=True, exist_ok=True)
    if blocked == "out/sweep/journal.log":
        (tmp_path / blocked).mkdir()
    else:
        (tmp_path / blocked).write_text("a file")
    told = runner.invoke(app, ["sweep", "split-digits", "finetune", "--out", str(out), "--device", "cpu"])
    assert told.exit_code == 1, told.output
    assert "--out" in told.stderr
    assert "--storage" not in told.stderr


def test_any_storage_of_optuna_will_do(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    assert len(search(tmp_path / "out", 2, storage=url).trials) == 2
    assert len(search(tmp_path / "out", 3, storage=url).trials) == 3
    assert not (tmp_path / "out" / "journal.log").exists()


def test_the_page_of_a_sweep(tmp_path: Path) -> None:
    outcome = search(tmp_path, 7)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert re.findall(r'<section id="([^"]+)"', page) == ["headline", "importance", "parallel", "progress", "trials"]
    assert not re.search(r"https?://|<link|@import|src=|url\(", page)
    complete = [trial for trial in outcome.trials if trial.state == "complete"]
    assert page.count('stroke="var(--heat)"') == len(complete)


def test_a_trial_is_kept_without_its_model_and_the_report_names_its_sweep(tmp_path: Path) -> None:
    folder = tmp_path / "a sweep"
    search(folder, 2)
    (folder / "trials" / "1" / "results.json").unlink()  # as of a trial that was stopped early
    for number in ("0", "1"):
        with pytest.raises(RunError) as caught:
            write_report(folder / "trials" / number)
        assert f"afaf report '{folder}'" in str(caught.value)
        assert "--resume" not in str(caught.value)
    (folder / "sweep.json").unlink()  # a run folder of its own
    with pytest.raises(RunError, match="--resume"):
        write_report(folder / "trials" / "1")


ABOUT = {"stream": "s", "method": "ewc", "seed": 0, "objective": "acc", "space": {"learn.lr": {"choices": [0.1]}}}


def test_the_page_of_a_search_whose_chosen_trial_diverged(tmp_path: Path) -> None:
    trial = {"number": 0, "state": "complete", "value": None, "settings": {"learn.lr": 0.1}}
    (tmp_path / "sweep.json").write_text(json.dumps({"about": ABOUT, "trials": [trial], "chosen": 0}))
    assert "best.toml" not in write_report(tmp_path).read_text(encoding="utf-8")


@pytest.mark.parametrize("about", [3, {}, {**ABOUT, "space": {"learn.lr": {"low": "x"}}}])
def test_a_sweep_whose_description_is_damaged_is_refused_by_name(about: Any, tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps({"about": about, "trials": []}))
    with pytest.raises(RunError, match=re.escape(str(path))):
        write_report(tmp_path)
    with pytest.raises(RunError, match=re.escape(str(path))):
        search(tmp_path, 1)


def test_ranges_are_read_as_written(tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text(
        '[learn]\nepochs = { low = 1, high = 9, step = 2 }\n[sparse.alloc]\nfc = { choices = [[1, 2], "a"] }'
    )
    space = read_space(tmp_path / "space.toml")
    assert space == {"learn.epochs": Range(1, 9, step=2), "sparse.alloc.fc": Range(choices=[[1, 2], "a"])}
    assert space["learn.epochs"].whole


def command(out: Path, trials: int, on: str = "local") -> list[str]:
    settings = [word for name, value in {**QUICK, "learn.epochs": 3, "run.checkpoint": 0}.items() for word in ("--set", f"{name}={value}")]
    words = ["sweep", "split-digits", "afaf", "--trials", str(trials), "--out", str(out), "--device", "cpu", "--on", on, *settings]
    return [sys.executable, "-m", "afaf", *words]


def stored(out: Path) -> list[dict[str, Any]]:
    path = out / "sweep.json"
    return list(json.loads(path.read_text())["trials"]) if path.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize("on", ["local", "ray"])
def test_twenty_trials_killed_once_and_continued(tmp_path: Path, on: str, request: pytest.FixtureRequest) -> None:
    if on == "ray":
        on = f"ray:{request.getfixturevalue('two_nodes').address}"
    process = subprocess.Popen(command(tmp_path, 20, on), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while sum(trial["state"] != "running" for trial in stored(tmp_path)) < 6:
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {trial["number"]: trial for trial in stored(tmp_path) if trial["state"] != "running"}
    assert subprocess.run(command(tmp_path, 20, on), capture_output=True, timeout=150).returncode == 0
    trials = stored(tmp_path)
    assert [trial["number"] for trial in trials] == list(range(20))
    assert distinct(trials) == 20
    assert all(trial["state"] in ("complete", "pruned", "fail") for trial in trials)
    assert all(trials[number] == trial for number, trial in before.items())
    afaf.run("split-digits", "afaf", device="cpu", config=tmp_path / "best.toml", out=tmp_path / "best")


@pytest.mark.slow
def test_two_processes_share_a_journal_and_lose_no_trial(tmp_path: Path) -> None:
    both = [subprocess.Popen(command(tmp_path, 16), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(timeout=150) for process in both] == [0, 0]
    trials = stored(tmp_path)
    assert [trial["number"] for trial in trials] == list(range(16))
    assert distinct(trials) == 16
    assert all(trial["state"] in ("complete", "pruned", "fail") for trial in trials)
