"""Tuning without future data: highest plasticity first, then the strongest stability that keeps it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import afaf
from afaf.api import tune
from afaf.errors import ConfigError, StoppedError
from afaf.runs.events import EpochEnded, Event, JobStarted
from afaf.runs.job import Job
from afaf.runs.stop import StopToken
from afaf.streams.tasks import Split, Stream
from afaf.sweeps.executor import LocalExecutor
from afaf.sweeps.tune import Search, Stability
from conftest import small_stream

QUICK = {"learn.epochs": 3, "learn.batch_size": 32, "run.images": 60}


def test_the_strongest_within_the_tolerance_is_found() -> None:
    def found(search: Search) -> tuple[float, int]:
        """The value, and how many were tried, where values beyond 50 diverge and others cost a percent for each unit."""
        for tried in range(1, search.searches + 1):
            place = search.strongest([None if value > 50 else 100 - value for value in search.values[:tried]], 100.0)
            if place is not None:
                return search.values[place], tried
        raise AssertionError

    assert found(Search(start=160.0, tolerance=0.2)) == (20.0, 4)
    assert found(Search(start=160.0, tolerance=0.1)) == (10.0, 5)
    assert found(Search(start=160.0, tolerance=0.1, searches=3)) == (40.0, 3)
    assert found(Search(start=9.0, decay=0.1)) == (9.0, 1)


def test_digits_step_by_step() -> None:
    """The accuracy without anything held is measured first; then strengths from the strongest down, until one is good enough."""
    tuned = tune(
        "split-digits", "ewc", start=1e9, decay=1e-3, tolerance=0.02, settings={**QUICK, "method.penalty": "proximal"}, device="cpu"
    )
    assert [(trial.task, trial.value) for trial in tuned.trials[:3]] == [(1, 0.0), (2, 0.0), (2, 1e9)]
    best = tuned.trials[1].accuracy
    assert best is not None
    for trial in tuned.trials[2:-1]:
        assert trial.accuracy is None or trial.accuracy < 0.98 * best
    assert tuned.trials[-1].value == tuned.value
    assert tuned.within
    accuracy = tuned.trials[-1].accuracy
    assert accuracy is not None
    assert accuracy >= 0.98 * best
    assert tuned.option == "method.strength"
    assert tuned.to_dict()["trials"][0]["task"] == 1


def test_neither_test_images_nor_later_tasks_are_looked_at() -> None:
    """Replaced by noise, they change nothing."""

    def noise(split: Split) -> Split:
        return replace(split, images=np.random.default_rng(0).integers(0, 255, split.images.shape).astype(split.images.dtype))

    digits = afaf.open_stream("split-digits")
    spoiled = Stream(
        digits.name, [replace(t, test=noise(t.test), train=noise(t.train) if t.number > 2 else t.train) for t in digits], digits.label_map
    )
    for method in ("lwf", "mas"):
        settings: dict[str, Any] = QUICK
        assert tune(spoiled, method, settings=settings, device="cpu") == tune(digits, method, settings=settings, device="cpu")


TWO_RATES: dict[str, Any] = {"tasks": 3, "learning_rates": (0.005, 0.05), "start": 1e9, "decay": 1e-2, "tolerance": 0.05}


class StopsIn:
    """Asks the search to stop in an epoch of the given trial."""

    def __init__(self, stop: StopToken, trial: int):
        self.stop, self.trial, self.trials = stop, trial, list[Any]()

    def __call__(self, event: Event) -> None:
        self.trials += [event.job.tag] if isinstance(event, JobStarted) else []
        if isinstance(event, EpochEnded) and len(self.trials) == self.trial:
            self.stop.ask()


@pytest.mark.parametrize("trial", [2, 6])
def test_a_search_that_is_stopped_goes_on_to_the_same_result(tmp_path: Path, trial: int) -> None:
    """Trials that ended are not learned again, and the one in progress continues; a finished search learns nothing."""
    whole = tune("split-digits", "ewc", settings=QUICK, device="cpu", **TWO_RATES)
    job, search = Job("split-digits", "ewc", settings=QUICK), Search(**{**TWO_RATES, "learning_rates": [0.005, 0.05]})
    stops = StopsIn(StopToken(), trial)
    with pytest.raises(StoppedError):
        Stability(job, search, tmp_path).carry_out(LocalExecutor("cpu", jobs_at_once=1, stop=stops.stop), stops)
    goes_on = StopsIn(StopToken(), 0)
    assert tune("split-digits", "ewc", settings=QUICK, device="cpu", out=tmp_path, on_event=goes_on, **TWO_RATES) == whole
    assert stops.trials[-1] == goes_on.trials[0]
    assert len(stops.trials) + len(goes_on.trials) == len(whole.trials) + 1
    assert any('"resumed"' in log.read_text() for log in tmp_path.rglob("log.jsonl"))
    nothing = StopsIn(StopToken(), 0)
    assert tune("split-digits", "ewc", settings=QUICK, device="cpu", out=tmp_path, on_event=nothing, **TWO_RATES) == whole
    assert not nothing.trials
    with pytest.raises(ConfigError, match="tolerance"):
        tune("split-digits", "ewc", settings=QUICK, device="cpu", out=tmp_path, **{**TWO_RATES, "tolerance": 0.1})


def test_values_tried_at_once_give_the_same_result(tmp_path: Path) -> None:
    """Weaker values that another thread has begun meanwhile do not count."""
    job, search = Job("split-digits", "ewc", settings=QUICK), Search(**{**TWO_RATES, "learning_rates": [0.005, 0.05]})
    at_once = Stability(job, search, tmp_path).carry_out(LocalExecutor("cpu", jobs_at_once=3))
    assert at_once == tune("split-digits", "ewc", settings=QUICK, device="cpu", **TWO_RATES)
    stored = json.loads((tmp_path / "sweep.json").read_text())
    assert [trial["value"] for trial in stored["trials"]] == [trial.accuracy for trial in at_once.trials]
    assert stored["chosen"] == len(at_once.trials) - 1


def test_every_trial_starts_from_the_same_state(tmp_path: Path) -> None:
    """A trial leaves what it started from as it was: tried again, it ends in the same bits."""
    starts: dict[float, Any] = {}

    def watch(event: Event) -> None:
        if isinstance(event, JobStarted) and event.job.start is not None:
            starts[event.job.tag.value] = {name: tensor.clone() for name, tensor in event.job.start.tensors.items()}

    tune("split-digits", "lwf", tolerance=0.0, start=1e4, searches=3, settings=QUICK, device="cpu", out=tmp_path, on_event=watch)
    first, *others = starts.values()
    assert len(others) == 3
    assert all(torch.equal(tensor, other[name]) for other in others for name, tensor in first.items())


def test_the_learning_rate_is_the_most_plastic_one() -> None:
    tuned = tune("split-digits", "lwf", learning_rates=(1e-6, 0.05), settings=QUICK, device="cpu")
    assert tuned.lr == 0.05
    assert [(trial.task, trial.lr) for trial in tuned.trials] == [(1, 1e-6), (1, 0.05), (2, 1e-6), (2, 0.05), (2, 0.05)]


def test_more_tasks_are_tuned_in_turn() -> None:
    tuned = tune("split-digits", "lwf", tasks=3, settings=QUICK, device="cpu")
    assert len(tuned.values) == 2
    assert tuned.value == tuned.values[-1]
    assert {trial.task for trial in tuned.trials} == {1, 2, 3}


@pytest.mark.parametrize("method", ["ewc", "mas"])
def test_a_strength_is_looked_for_in_the_form_it_will_have(method: str) -> None:
    """method.penalty=auto is proximal with the tuned strength: so it is while the strength is tuned. As a term of the loss it diverges."""
    auto, proximal, explicit = (
        tune("split-digits", method, start=1e12, searches=2, settings={**QUICK, **settings}, device="cpu")
        for settings in ({}, {"method.penalty": "proximal"}, {"method.penalty": "explicit"})
    )
    assert auto.trials == proximal.trials
    assert [trial.accuracy for trial in explicit.trials[2:]] == [None, None]
    assert auto.settings == {"method.strength": auto.value, "method.penalty": "proximal"}
    assert proximal.settings == {"method.strength": proximal.value}
    assert explicit.settings == {"method.strength": explicit.value}


class Counted:
    """How many epochs tasks are learned for."""

    def __init__(self) -> None:
        self.epochs: set[int] = set()

    def __call__(self, event: Event) -> None:
        if isinstance(event, EpochEnded):
            self.epochs.add(event.report.epochs)


def test_only_as_many_images_are_looked_at_as_the_run_has() -> None:
    slow: dict[str, Any] = {**QUICK, "learn.lr": 0.005}  # so that accuracies tell how many images there are
    few = tune("split-digits", "lwf", settings={**slow, "run.images": 12}, device="cpu")
    assert few == tune(afaf.open_stream("split-digits").with_at_most(12), "lwf", settings=slow, device="cpu")


def test_tasks_are_learned_as_long_as_in_the_run() -> None:
    """Its preset is that of the whole stream; of a stream of so few images it would be another."""
    counted = Counted()
    tune(small_stream([2, 2], side=4, per_class=1600), "lwf", searches=1, settings={"run.images": 12}, device="cpu", on_event=counted)
    assert counted.epochs == {20}


def test_what_was_found_runs_as_it_was_tuned() -> None:
    """The settings make the run that the last trial was: the same accuracy on the same validation images."""
    held: dict[str, Any] = {**QUICK, "run.validation": 0.2, "run.evaluate_on": "validation", "run.images": 30}
    tuned = tune("split-digits", "ewc", searches=1, learning_rates=(0.02,), settings=held, device="cpu")
    assert tuned.settings == {"method.strength": tuned.value, "method.penalty": "proximal", "learn.lr": 0.02}
    part = afaf.open_stream("split-digits")[:2]
    results = afaf.run(part, "ewc", settings={**held, **tuned.settings}, device="cpu")
    assert results.R_task_il[1][1] == tuned.trials[-1].accuracy


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("afaf", {}, r"no trade-off to tune; those that have: ewc, mas, lwf"),
        ("ewc", {"tasks": 1}, "from 2"),
        ("ewc", {"tasks": 6}, "the 5 of the stream"),
        ("ewc", {"decay": 1.0}, "decay"),
        ("ewc", {"tolerance": 1.5}, "tolerance"),
        ("ewc", {"start": -1.0}, "start"),
        ("ewc", {"searches": 0}, "searches"),
    ],
)
def test_what_makes_no_sense_is_refused(method: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tune("split-digits", method, device="cpu", **options)
