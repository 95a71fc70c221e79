"""Whole runs on digits: what is returned, what is left in the folder, what is refused and leaves nothing."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import afaf
from afaf.errors import AfafError, CapacityError, ConfigError, DeviceError, DivergedError, RunError, StoppedError
from afaf.methods.base import TaskContext
from afaf.methods.finetune import Finetune
from afaf.network.spec import Layer
from afaf.runs.events import EpochEnded, Event, RunResumed, RunStarted
from afaf.runs.stop import StopToken
from afaf.storage.model_file import Model
from afaf.training.learner import Learner
from afaf.training.plan import LearningPlan
from conftest import small_stream

QUICK = {"learn.epochs": 2, "learn.batch_size": 32}


@pytest.mark.parametrize("method", ["afaf", "spacenet", "finetune", "joint"])
def test_a_run_is_what_was_predicted_and_can_be_repeated(method: str, tmp_path: Path) -> None:
    results = afaf.run("split-digits", method, settings=QUICK, device="cpu", out=tmp_path / "run")
    assert results.params == afaf.costs("split-digits", method, settings=QUICK).params
    assert [len(row) for row in results.R] == [1, 2, 3, 4, 5]
    for row, known in zip(results.R[-1], results.R_task_il[-1], strict=True):
        assert row is not None
        assert known is not None
        assert 0 <= row <= known <= 100
    assert np.sum(results.confusion) == sum(len(task.test) for task in afaf.open_stream("split-digits"))
    again = afaf.run("split-digits", method, settings=QUICK, device="cpu")
    assert (again.R, again.R_task_il, again.confusion) == (results.R, results.R_task_il, results.confusion)
    if method == "joint":
        assert (results.bwt, results.la) == (None, None)
        assert all(value is None for row in results.R[:-1] for value in row)
    else:
        assert all(value is not None for row in results.R for value in row)


def test_the_folder_holds_everything_and_the_model_answers_as_before(tmp_path: Path) -> None:
    results = afaf.run("split-digits", "afaf", settings=QUICK, device="cpu", seed=3, out=tmp_path / "run")
    folder = tmp_path / "run"
    assert {p.name for p in folder.iterdir()} == {
        "config.json",
        "log.jsonl",
        "results.json",
        "model.safetensors",
        "ledger.png",
        "r-matrix.png",
        "checkpoints",
        ".lock",
    }
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [entry["event"] for entry in log] == (["epoch"] * 2 + ["task"]) * 5
    stored = json.loads((folder / "results.json").read_text())
    assert stored["R"] == results.R
    assert stored["acc"] == results.acc
    config = json.loads((folder / "config.json").read_text())
    assert config["config"]["learn"]["epochs"] == 2
    model = Model.load(folder / "model.safetensors")
    assert model.class_names == [["0", "1"], ["2", "3"], ["4", "5"], ["6", "7"], ["8", "9"]]
    right = 0
    stream = afaf.open_stream("split-digits")
    from afaf.training.task_data import TaskData

    for task in stream:
        x, labels = TaskData([(task.test, task.preparation)]).batch(torch.arange(len(task.test)))
        right += int((model.learner.network(x).argmax(1) == labels).sum())
    assert right == np.trace(np.array(results.confusion))
    repeated = afaf.run("split-digits", "afaf", device="cpu", seed=3, config=folder / "config.json")
    assert repeated.R == results.R


def test_a_saved_model_is_the_learner_bit_for_bit(tmp_path: Path) -> None:
    """Weights, ledger, records and the network as it stood after each task survive the file."""
    from afaf.methods.base import TaskContext
    from afaf.network.net import Network
    from afaf.runs.setup import set_up
    from afaf.training.task_data import TaskData
    from worlds import probe

    stream = small_stream([2, 1, 2])
    setup = set_up(
        stream.outline,
        "afaf",
        {"learn": {"epochs": 2}, "network": {"name": "small-cnn", "norm": "batch"}, "sparse": {"alloc": 20, "density": 20}},
    )
    learner = afaf.storage.model_file.Learner.fresh(Network(setup.spec, 1))
    for task in stream:
        context = TaskContext(task.number, task.classes, TaskData([(task.train, task.preparation)]))
        learner.begin(task.number, task.classes)
        setup.method.start(learner, context, 0)
        afaf.training.eager.EagerEngine().learn(learner, setup.method.plan(learner, context, 0), context.data)
        setup.method.finish(learner, context)
        learner.end(task.number)
    path = tmp_path / "m.safetensors"
    Model(learner, "afaf", [list(t.class_names) for t in stream], [t.preparation for t in stream]).save(path)
    back = Model.load(path).learner
    x = probe(setup.spec)
    assert torch.equal(back.network(x), learner.network(x))
    for l in range(1, setup.spec.L):
        assert torch.equal(back.network.weight(l), learner.network.weight(l))
        assert torch.equal(back.ledger.owner(l), learner.ledger.owner(l))
    assert all(torch.equal(a, b) for a, b in zip(back.ledger.fixed_by.values(), learner.ledger.fixed_by.values(), strict=True))
    for task_number in (1, 2, 3):
        assert torch.equal(back.network.as_of(task_number, back.ledger)(x), learner.network.as_of(task_number, learner.ledger)(x))
        ours, theirs = learner.ledger.record_of(task_number), back.ledger.record_of(task_number)
        assert ours is not None
        assert theirs is not None
        for l in range(ours.l_reuse, setup.spec.L):
            assert torch.equal(ours.sources(l), theirs.sources(l))
            assert torch.equal(ours.targets(l), theirs.targets(l))


def test_reserved_and_grown_outputs_differ_only_where_the_loss_sees_them() -> None:
    """With the loss over the classes seen so far, rows that are not there yet cannot matter."""
    settings = {**QUICK, "method.loss_over": "seen"}
    reserved = afaf.run("split-digits", "afaf", settings=settings, device="cpu")
    grown = afaf.run("split-digits", "afaf", settings={**settings, "network.outputs": "grown"}, device="cpu")
    assert np.allclose(np.array(reserved.R[-1], float), np.array(grown.R[-1], float), atol=2.0)
    assert grown.params == reserved.params


def test_a_stream_of_ones_own_with_unequal_tasks() -> None:
    stream = small_stream([3, 1, 2], channels=3, side=12)
    results = afaf.run(stream, "afaf", settings={"learn.epochs": 2}, device="cpu")
    assert [len(row) for row in results.R] == [1, 2, 3]
    frame = results.to_pandas()
    assert len(frame) == 6
    assert set(frame.columns) >= {"after_task", "task", "class_il", "task_il", "seed"}


def test_judged_on_validation_images(tmp_path: Path) -> None:
    settings = {**QUICK, "run.validation": 0.2, "run.evaluate_on": "validation"}
    results = afaf.run("split-digits", "finetune", settings=settings, device="cpu")
    expected = sum(len(task.validation) for task in afaf.open_stream("split-digits").with_validation(0.2) if task.validation is not None)
    assert np.sum(results.confusion) == expected


class Killing(Finetune):
    """Fine-tuning that kills its network with the second task's steps."""

    name = "killing"

    def plan(self, learner: Learner, context: TaskContext, phase: int) -> LearningPlan:
        plan = super().plan(learner, context, phase)
        return replace(plan, lr=100.0, clip=1.0) if context.task == 2 else plan


def test_a_task_that_would_get_no_connection_is_refused() -> None:
    with pytest.raises(CapacityError, match=r"W_2.*sparse\.density"):
        afaf.costs("split-digits", "afaf", settings={"sparse.density.W_2": 0.001})
    with pytest.raises(CapacityError, match=r"task 3 gets fewer connections than it has classes in W_2"):
        afaf.costs("split-digits", "afaf", settings={"sparse.density.W_2": {"1-2": 30, "3-5": 0.001}})


def test_candidates_in_the_last_hidden_layer_leave_room_for_later_tasks() -> None:
    """Five tasks of a quarter of the layer do not fit, unless three of them draw but 70 % of it anew."""
    quarter = {**QUICK, "sparse.alloc.output": 25}
    with pytest.raises(CapacityError, match="certain to have no free neuron left"):
        afaf.costs("split-digits", "afaf", settings=quarter)
    for strict in ({}, {"method.strict": True, "method.l_reuse": 1, "sparse.alloc": 25}):
        settings = {**quarter, **strict, "method.candidates_in_last_hidden": True}
        assert afaf.run("split-digits", "afaf", settings=settings, device="cpu").acc is not None


class Counting:
    planned = done = 0

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted(epochs=epochs):
                self.planned = epochs
            case RunResumed(epochs_done=epochs):
                self.done = epochs
            case EpochEnded():
                self.done += 1


@pytest.mark.parametrize("method", ["afaf", "packnet", "joint", "ridge"])
def test_as_many_epochs_are_learned_as_a_progress_bar_is_told(method: str) -> None:
    told = Counting()
    settings = {**QUICK, "method.retrain_epochs": 3} if method == "packnet" else QUICK
    afaf.run("split-digits", method, settings=settings, device="cpu", on_event=told)
    assert told.done == told.planned > 0


def test_a_resumed_run_counts_the_epochs_that_lie_behind(tmp_path: Path) -> None:
    class Stopping(Counting):
        def __call__(self, event: Event) -> None:
            super().__call__(event)
            if self.done == 7:  # in the second task, after pruning
                stop.ask()

    stop, settings = StopToken(), {**QUICK, "method.retrain_epochs": 3}
    with pytest.raises(StoppedError):
        afaf.run("split-digits", "packnet", settings=settings, device="cpu", out=tmp_path / "run", on_event=Stopping(), stop=stop)
    told = Counting()
    afaf.resume(tmp_path / "run", on_event=told)
    assert told.done == told.planned == 5 * 2 + 4 * 3


def test_the_configuration_of_a_run_is_all_there_was(tmp_path: Path) -> None:
    """Where it replaced a table of the preset, the preset's keys do not come back."""
    first = afaf.run("split-digits", "afaf", settings={**QUICK, "sparse.density": 20}, device="cpu", out=tmp_path / "run")
    again = afaf.run("split-digits", "afaf", config=tmp_path / "run" / "config.json", device="cpu")
    assert again.R == first.R
    assert again.params == first.params


@pytest.mark.parametrize("settings", [{}, {"network.width": 397}], ids=["the preset's network", "another width"])
def test_a_folder_says_which_network_and_which_commit(settings: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFAF_COMMIT", "that of this tree")
    results = afaf.run("split-digits", "afaf", settings={**QUICK, **settings}, device="cpu", out=tmp_path / "run")
    assert results.model is not None
    spec = results.model.learner.network.spec
    for name in ("config.json", "results.json"):
        stored = json.loads((tmp_path / "run" / name).read_text())
        assert (stored["network"], stored["width"], stored["commit"]) == (spec.name, spec.hidden[0].neurons, "that of this tree")
    again = afaf.resume(tmp_path / "run")
    assert (again.network, again.width, again.commit) == (results.network, results.width, results.commit)


def test_a_network_of_a_program_is_named_too(tmp_path: Path) -> None:
    layers = (Layer("dense", 24), Layer("dense", 16))
    results = afaf.run("split-digits", "finetune", network=layers, settings=QUICK, device="cpu", out=tmp_path / "run")
    about = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (results.network, results.width) == (about["network"], about["width"]) == (about["network_object"], 24)


def test_a_network_that_steps_too_large_have_killed_is_told_of_once() -> None:
    results = afaf.run("split-digits", Killing, settings=QUICK, device="cpu")
    assert len(results.warnings) == 1
    assert "after task 2" in results.warnings[0]
    assert "collapsed" in results.warnings[0]


def test_a_task_that_was_hardly_learned_is_told_of() -> None:
    results = afaf.run("split-digits", "finetune", settings={**QUICK, "learn.lr": 1e-9}, device="cpu")
    assert "task 1 was hardly learned" in results.warnings[0]
    assert not any("collapsed" in message for message in results.warnings)


def test_fewer_free_neurons_than_asked_is_a_warning() -> None:
    settings = {**QUICK, "sparse.alloc.fc": 60, "sparse.fixed.fc": 20, "sparse.density.W_1": 20}
    results = afaf.run("split-digits", "spacenet", settings=settings, device="cpu")
    assert any("free neurons" in message for message in results.warnings)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"method": "afav"}, ConfigError, "did you mean 'afaf'"),
        ({"stream": "split-digit"}, ConfigError, "did you mean 'split-digits'"),
        ({"device": "cuda:99"}, DeviceError, "'cuda:99'"),
        ({"device": "nonsense"}, DeviceError, "is not a device"),
        ({"settings": {"learn.epoch": 1}}, ConfigError, "did you mean"),
        ({"settings": {"sparse.alloc.output": 60}}, CapacityError, "does not fit"),
        ({"settings": {"network.name": "alexnet"}}, ConfigError, "do not fit"),
    ],
)
def test_bad_input_leaves_nothing_behind(arguments: dict, error: type[Exception], message: str, tmp_path: Path) -> None:
    call = {"stream": "split-digits", "method": "afaf", "device": "cpu", "out": tmp_path / "run", **arguments}
    with pytest.raises(error, match=message):
        afaf.run(**call)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    afaf.run("split-digits", "finetune", settings=QUICK, device="cpu", out=tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != ".lock"}
    with pytest.raises(RunError, match="already holds a finished run"):
        afaf.run("split-digits", "finetune", settings=QUICK, device="cpu", out=tmp_path)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != ".lock"} == before


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ({"settings": {"learn.epoch": 1}}, "did you mean 'learn.epochs'"),
        ({"device": "nonsense"}, "is not a device"),
        ({"seed": -1}, "seed"),
    ],
)
def test_what_was_asked_for_is_judged_before_the_folder_that_is_there(typed: dict, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(AfafError, match=message):
        afaf.run("split-digits", "afaf", out=tmp_path, **typed)


def test_pairs_that_run_out_are_named() -> None:
    """Before anything is learned where it is certain, before the task is learned where it depends on what was drawn."""
    certain = {**QUICK, "sparse.density.W_1": 100, "sparse.alloc.fc": 100, "sparse.fixed.fc": 0}
    with pytest.raises(
        CapacityError, match=r"task 2 .*W_1 \(input to dense 1\) is certain to have at most 0 .* lower sparse\.density for W_1"
    ):
        afaf.costs("split-digits", "spacenet", settings=certain)
    drawn = {**QUICK, "sparse.density.W_1": 60, "sparse.alloc.fc": 50, "sparse.fixed.fc": 0, "method.loss_over": "all"}
    stream = afaf.open_stream("split-digits")[:3]
    with pytest.raises(
        CapacityError, match=r"task 3 .*W_1 \(input to dense 1\) has \d+ unowned pairs left .* lower sparse\.density for W_1"
    ):
        afaf.run(stream, "spacenet", settings=drawn, device="cpu")


def test_a_diverging_loss_stops_the_run_with_the_step() -> None:
    with pytest.raises(DivergedError, match=r"not finite in task 1, epoch \d+, step \d+: lower learn\.lr"):
        afaf.run("split-digits", "finetune", settings={**QUICK, "learn.lr": 1e20}, device="cpu")


@pytest.mark.slow
def test_afaf_remembers_two_and_a_half_times_as_much_as_fine_tuning() -> None:
    """Mean of three seeds, the preset as it is."""
    means = {m: np.mean([afaf.run("split-digits", m, seed=s, device="cpu").acc for s in range(3)]) for m in ("afaf", "finetune")}
    assert means["afaf"] >= 2.5 * means["finetune"]


def test_without_pandas_a_table_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    results = afaf.run(small_stream([2]), "finetune", device="cpu", settings={"learn.epochs": 1})
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pandas"):
        results.to_pandas()
