"""The line that a run of a grid leaves in the results says what was computed, and how; no finished run is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import afaf
from afaf.runs.executor import Job, LocalExecutor
from afaf.runs.experiments import Experiment, read_experiment
from afaf.runs.keep import KEEPERS
from afaf.runs.reproduce import Progress, Reproduction
from afaf.runs.store import Line, Store

QUICK = {"learn.epochs": 1, "run.images": 10}


def experiment(folder: Path, methods: str, keep: str = "") -> Experiment:
    grid = f'[[grid]]\nstreams = ["split-digits"]\nmethods = [{methods}]\nseeds = 1\n'
    (folder / "small.toml").write_text(f'title = "t"\nfeeds = "f"\nkeep = [{keep}]\n{grid}')
    return read_experiment(folder / "small.toml")


def lines_of(folder: Path, chosen: Experiment) -> list[Line]:
    reproduction = Reproduction([chosen], Store(folder / "results"), LocalExecutor("cpu"), Progress())
    reproduction.carry_out()
    assert not reproduction.errors
    return list(Store(folder / "results").read().values())


def test_a_method_that_does_not_say_its_costs_keeps_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("afaf.methods.dense.DenseMethod.footprints")
    lines = lines_of(tmp_path, experiment(tmp_path, '"finetune", "afaf"').with_settings(QUICK))
    assert [(line["method"], line["costs"] is None) for line in lines] == [("finetune", True), ("afaf", False)]
    assert all(line["acc"] is not None for line in lines)


def test_costs_and_what_is_kept_are_of_the_images_that_were_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[afaf.Stream] = []
    monkeypatch.setitem(KEEPERS, "ledger", lambda model, stream: seen.append(stream))
    (line,) = lines_of(tmp_path, experiment(tmp_path, '"finetune"', '"ledger"').with_settings({**QUICK, "run.validation": 0.5}))
    learned = afaf.open_stream("split-digits").with_at_most(10).with_validation(0.5)
    expected = afaf.costs(learned, "finetune", settings={"learn.epochs": 1})
    assert line["costs"]["dense_flops"] == pytest.approx(expected.dense_flops, rel=1e-5)
    assert [stream.outline for stream in seen] == [learned.outline]


@pytest.mark.parametrize(
    ("settings", "outcome"), [({}, "acc"), ({"sparse.alloc.output": 50}, "failed")], ids=["a run that ends", "a network without room"]
)
def test_a_line_names_the_engine_that_computed_it(settings: dict[str, object], outcome: str, tmp_path: Path) -> None:
    (line,) = lines_of(tmp_path, experiment(tmp_path, '"afaf"').with_settings({**QUICK, **settings, "run.engine": "eager"}))
    assert outcome in line
    assert line["engine"] == "eager"


def test_a_line_names_the_precision_of_its_own_settings(tmp_path: Path) -> None:
    executor = LocalExecutor("cpu")
    reproduction = Reproduction([experiment(tmp_path, '"afaf"')], Store(tmp_path / "results"), executor, Progress())
    executor.device = torch.device("cuda")  # elsewhere all is fp32
    for settings, expected in (({"run.precision": "bf16"}, "bf16"), ({}, "tf32")):
        assert reproduction._where(Job("split-digits", "afaf", settings=settings), 1.0)["precision"] == expected
