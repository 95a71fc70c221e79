"""The doctor finds what is wrong with a run or a model, finds nothing wrong with those that are well, and its advice works."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from afaf.cli.main import app
from afaf.doctor import examine
from afaf.errors import RunError
from afaf.methods import method_names
from afaf.runs.job import Job
from afaf.runs.results import METRICS, Results
from afaf.runs.resume import resume
from afaf.runs.runner import run
from afaf.storage.invariants import broken_invariants, changed_since
from afaf.storage.model_file import Model
from afaf.training.learner import Learner
from conftest import small_stream
from crash import found

QUICK: dict[str, Any] = {"learn.epochs": 2, "learn.batch_size": 8, "network.name": "mlp", "run.checkpoint": 0}
STREAM = [2, 2, 2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    results = run(Job(small_stream(STREAM), "afaf", device="cpu", settings=QUICK))
    assert results.model is not None
    return results.model


@pytest.mark.parametrize("method", method_names())
def test_nothing_is_wrong_with_a_run_that_is_well(method: str, tmp_path: Path) -> None:
    more = {"method.share": 30.0} if method in ("packnet", "isolated") else {}
    run(Job(small_stream(STREAM), method, device="cpu", out=tmp_path, settings={**QUICK, **more}))
    diagnosis = examine(tmp_path)
    assert diagnosis.wrong == []
    assert any("model.safetensors" in line for line in diagnosis.sound)


def fixed_neuron(learner: Learner) -> tuple[int, int]:
    """A hidden layer and a neuron in it that the first task fixed."""
    layer = next(l for l in range(2, learner.network.spec.L) if bool((learner.ledger.fixed(l) == 1).any()))
    return layer, int(torch.nonzero(learner.ledger.fixed(layer) == 1)[0])


def stray_weight(learner: Learner) -> None:
    place = torch.nonzero(learner.ledger.owner(1)[..., 0] == 0)[0]
    learner.network.weight(1)[place[0], place[1]] = 1.0


def connection_into_fixed_neuron(learner: Learner) -> None:
    layer, neuron = fixed_neuron(learner)
    row = learner.ledger.owner(layer - 1)[neuron, :, 0]
    row[torch.nonzero(row == 0)[0]] = 3


def bias_of_fixed_neuron(learner: Learner) -> None:
    layer, neuron = fixed_neuron(learner)
    learner.network.bias(layer - 1)[neuron] += 1e-6


def connection_outside_the_record(learner: Learner) -> None:
    owner = learner.ledger.owner(2)[..., 0]
    targets = learner.ledger.records[-1].targets(2)
    outside = torch.ones(len(owner), dtype=torch.bool)
    outside[targets] = False
    free = torch.nonzero((owner == 0) & outside[:, None] & (learner.ledger.fixed(3) == 0)[:, None])[0]
    owner[free[0], free[1]] = 3


def weight_not_finite(learner: Learner) -> None:
    place = torch.nonzero(learner.ledger.owner(1)[..., 0] > 0)[0]
    learner.network.weight(1)[place[0], place[1]] = float("nan")


def owner_of_the_future(learner: Learner) -> None:
    learner.ledger.owner(1)[0, 0] = 9


def two_records(learner: Learner) -> None:
    learner.ledger.records.append(learner.ledger.records[-1])


BROKEN: dict[str, tuple[Callable[[Learner], None], str]] = {
    "a weight that nobody owns": (stray_weight, "nobody owns"),
    "a connection into a fixed neuron": (connection_into_fixed_neuron, "into fixed neurons"),
    "the bias of a fixed neuron": (bias_of_fixed_neuron, "have moved since"),
    "a connection outside the record": (connection_outside_the_record, "outside what it was allocated"),
    "a weight that is not finite": (weight_not_finite, "not finite"),
    "a task that has not begun": (owner_of_the_future, "have not begun"),
    "two records of a task": (two_records, "two records"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_every_promise_is_checked(name: str, model: Model) -> None:
    learner = copy.deepcopy(model.learner)
    assert broken_invariants(learner) == []
    spoil, words = BROKEN[name]
    spoil(learner)
    assert any(words in line for line in broken_invariants(learner))


def test_what_tasks_own_must_be_the_same_later(model: Model) -> None:
    before, after = model.learner, copy.deepcopy(model.learner)
    assert changed_since(before, after) == []
    place = torch.nonzero(after.ledger.owner(2)[..., 0] == 1)[0]
    after.network.weight(2)[place[0], place[1]] *= 1 + 1e-6
    assert any("1 weights of tasks up to 3 are not the same" in line for line in changed_since(before, after))
    after.ledger.owner(2)[place[0], place[1]] = 2
    assert any("another owner" in line for line in changed_since(before, after))
    layer, neuron = fixed_neuron(after)
    after.ledger.fixed(layer)[neuron] = 0
    assert any("not fixed" in line for line in changed_since(before, after))


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-len(data) // 3] ^= 1
    path.write_bytes(data)


def doctor(path: Path) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, ["doctor", str(path), "--json"])
    return result.exit_code, json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["model.safetensors", "results.json"])
def test_a_finished_run_that_was_damaged_is_made_anew_from_its_checkpoint(name: str, tmp_path: Path) -> None:
    run(Job(small_stream(STREAM), "afaf", device="cpu", out=tmp_path / "run", settings=QUICK))
    expected = found(tmp_path / "run")
    if name == "results.json":
        (tmp_path / "run" / name).write_text("{")
    else:
        damage(tmp_path / "run" / name)
    code, told = doctor(tmp_path / "run")
    assert code == 1
    assert any(name in line and "damaged" in line for line in told["wrong"])
    assert any("remove results.json and model.safetensors, then afaf run --resume" in line for line in told["advice"])
    (tmp_path / "run" / "results.json").unlink()
    (tmp_path / "run" / "model.safetensors").unlink()
    resume(tmp_path / "run", stream=small_stream(STREAM))
    assert found(tmp_path / "run") == expected
    assert doctor(tmp_path / "run")[0] == 0


def spoil(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the results of a run, which no checksum protects."""
    told = json.loads((folder / "results.json").read_text())
    change(told)
    (folder / "results.json").write_text(json.dumps(told))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    run(Job(small_stream(STREAM), "afaf", device="cpu", out=folder, settings=QUICK))
    return folder


IMPOSSIBLE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "R must be a list": lambda told: told.update(R="x"),
    "R_task_il must have a row for each of 3 tasks": lambda told: told["R_task_il"].pop(),
    "R[0][0] must be ": lambda told: told["R"][0].__setitem__(0, 250),
    "before must have a number for each": lambda told: told["before"].pop(),
    "task_id must be a list": lambda told: told.update(task_id={}),
    "confusion[0][0] must be ": lambda told: told["confusion"][0].__setitem__(0, None),
    "confusion must have a row for each of 6 classes": lambda told: told["confusion"].pop(),
    "class_names must name the classes": lambda told: told["class_names"].__setitem__(0, []),
    "class_names[0] must be ": lambda told: told.update(class_names=[1]),
    "dense_params must be ": lambda told: told.update(dense_params=0),
    "seconds_learning must be a number": lambda told: told.update(seconds_learning="long"),
    "seconds must be ": lambda told: told.update(seconds=10**400),
    "acc must be a number": lambda told: told.update(acc="good"),
    "it lacks confusion": lambda told: told.pop("confusion"),
    "unknown key 'accuracy'": lambda told: told.update(accuracy=1.0),
    "acc is 99.9, but": lambda told: told.update(acc=99.9),
    "bwt is None, but": lambda told: told.update(bwt=None),
    "acc_task_il is 1.5, but": lambda told: told.update(acc_task_il=1.5),
    "acc is ": lambda told: told["R"][-1].__setitem__(0, 99.9),
}


@pytest.mark.parametrize("words", IMPOSSIBLE)
def test_results_that_cannot_be_are_told_with_file_and_field_by_all_who_read_them(words: str, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    spoil(folder, IMPOSSIBLE[words])
    code, told = doctor(folder)
    assert code == 1
    assert any(f"{folder / 'results.json'} is damaged: {words}" in line for line in told["wrong"])
    assert any("remove results.json and model.safetensors, then afaf run --resume" in line for line in told["advice"])
    for command in (["run", "--resume", str(folder)], ["report", str(folder)]):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 2, result.output
        assert result.exception is None or isinstance(result.exception, SystemExit)
        (line,) = result.stderr.splitlines()
        assert f"{folder / 'results.json'} is damaged: {words}" in line
        assert f"`afaf doctor {folder}`" in line
    with pytest.raises(RunError, match=re.escape(words)):
        Results.from_dict(json.loads((folder / "results.json").read_text()))


def better(told: dict[str, Any]) -> None:
    """Results that are all of a piece, and not those of the run."""
    R = [[None if value is None else min(100.0, value + 1.0) for value in row] for row in told["R"]]
    told.update(replace(Results.from_dict(told), R=R).to_dict())


OTHERS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "better ones": (better, "results.json: R is not what 000009-task-3-end.safetensors holds"),
    "other answers": (lambda told: told["confusion"][0].__setitem__(0, 9999), "results.json: confusion is not what"),
    "another seed": (lambda told: told.update(seed=7), "results.json: its seed is 7, not 0"),
    "another size": (lambda told: told.update(params=7), "results.json: it counts other weights than the model has"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_results_of_another_run_are_found_and_made_anew(name: str, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    expected = found(folder)
    change, words = OTHERS[name]
    spoil(folder, change)
    code, told = doctor(folder)
    assert code == 1
    assert any(line.startswith(words) for line in told["wrong"])
    assert any("remove results.json and model.safetensors, then afaf run --resume" in line for line in told["advice"])
    (folder / "results.json").unlink()
    (folder / "model.safetensors").unlink()
    resume(folder, stream=small_stream(STREAM))
    assert found(folder) == expected


def test_results_are_compared_with_an_older_checkpoint_where_the_last_is_gone(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    sorted((folder / "checkpoints").iterdir())[-1].unlink()
    assert examine(folder).well
    spoil(folder, better)
    assert any("R is not what" in line for line in examine(folder).wrong)


def test_old_results_without_newer_fields_are_read(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    newer = (*METRICS, "seconds", "seconds_learning", "device", "warnings", "run", "R_task_il_unmasked", "format")
    spoil(folder, lambda told: [told.pop(name) for name in newer])
    assert examine(folder).well
    assert resume(folder).R == resume(finished).R
    assert CliRunner().invoke(app, ["report", str(folder)]).exit_code == 0


def test_damaged_checkpoints_and_logs_are_found(tmp_path: Path) -> None:
    run(Job(small_stream(STREAM), "afaf", device="cpu", out=tmp_path / "run", settings=QUICK))
    (tmp_path / "run" / "results.json").unlink()
    newest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    damage(newest)
    with (tmp_path / "run" / "log.jsonl").open("a") as log:
        log.write('{"event": "ep')
    code, told = doctor(tmp_path / "run")
    assert code == 1
    assert any(newest.name in line and "damaged" in line for line in told["wrong"])
    assert any("log.jsonl: line" in line for line in told["wrong"])
    assert any("the run is not finished" in line and "phase-0-epoch-2" in line for line in told["advice"])
    assert doctor(newest)[0] == 1
    assert doctor(tmp_path / "run" / "model.safetensors")[0] == 0


def test_nothing_good_is_to_be_thrown_away(tmp_path: Path) -> None:
    """A finished run with whole results and a whole model needs nothing, whatever else is damaged; without config.json none can go on."""
    folder = tmp_path / "run"
    run(Job(small_stream(STREAM), "afaf", device="cpu", out=folder, settings=QUICK))
    damage(sorted((folder / "checkpoints").iterdir())[-1])
    code, told = doctor(folder)
    assert code == 1
    assert told["advice"] == ["results and model are whole: nothing needs doing; damaged checkpoints can be removed"]
    (folder / "config.json").write_text("{")
    assert doctor(folder)[1]["advice"] == ["without its config.json the run cannot go on; its model is whole, and holds the settings too"]
    assert not any("afaf doctor" in line for line in doctor(folder)[1]["wrong"])


def test_what_is_no_run_is_an_error(tmp_path: Path) -> None:
    runner = CliRunner()
    assert runner.invoke(app, ["doctor", str(tmp_path)]).exit_code == 2
    assert runner.invoke(app, ["doctor", str(tmp_path / "nothing")]).exit_code == 2
    (tmp_path / "text.safetensors").write_text("no model")
    assert runner.invoke(app, ["doctor", str(tmp_path / "text.safetensors")]).exit_code == 1


def test_a_log_that_cannot_be_read_is_told_of_and_the_rest_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(Job(small_stream(STREAM), "afaf", device="cpu", out=tmp_path, settings=QUICK))
    (tmp_path / "log.jsonl").unlink()
    (tmp_path / "log.jsonl").mkdir()  # which root cannot read either

    def refuse(*_: Any, **__: Any) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("afaf.files.lock.lock_descriptor", refuse)
    diagnosis = examine(tmp_path)
    [wrong] = diagnosis.wrong
    assert wrong.startswith("log.jsonl: cannot be read")
    assert any(line.startswith("model.safetensors: whole") for line in diagnosis.sound)


def test_advice_for_an_unfinished_last_line_of_the_log_makes_the_page_possible_again(tmp_path: Path) -> None:
    run(Job(small_stream(STREAM), "afaf", device="cpu", out=tmp_path, settings=QUICK))
    log = tmp_path / "log.jsonl"
    log.write_bytes(log.read_bytes()[:-5])
    assert CliRunner().invoke(app, ["report", str(tmp_path)]).exit_code == 2
    assert any("remove the lines of log.jsonl that are not JSON" in advice for advice in examine(tmp_path).advice)
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))
    assert examine(tmp_path).well
    assert CliRunner().invoke(app, ["report", str(tmp_path)]).exit_code == 0
