"""A run that is stopped and resumed, anywhere, ends with the same bits; what a checkpoint holds, and which one is used."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import afaf
from afaf.cli.main import app
from afaf.doctor import examine
from afaf.errors import ConfigError, DataError, RunError, StoppedError
from afaf.methods import method_of_command
from afaf.methods.afaf import AFAFOptions
from afaf.methods.base import Method
from afaf.methods.finetune import Finetune
from afaf.runs import runner
from afaf.runs.events import EpochEnded, Event, Warned
from afaf.runs.job import Job
from afaf.runs.resume import _refuse_another, resume, run_or_resume
from afaf.runs.runner import run
from afaf.runs.stop import StopToken
from afaf.storage import container
from afaf.streams.tasks import Stream
from conftest import small_stream
from crash import found

QUICK: dict[str, Any] = {"learn.epochs": 3, "learn.batch_size": 8, "network.name": "mlp"}
CONV = {"network.name": "small-cnn", "network.norm": "batch", "sparse.alloc.conv": 50, "sparse.fixed.conv": 20}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "afaf": ("afaf", {}),
    "afaf, weights as units, eager": ("afaf", {"sparse.unit": "weight", "run.engine": "eager"}),
    "afaf, convolutions and norms": ("afaf", CONV),
    "afaf, one density instead of the preset's": ("afaf", {"sparse.density": 40}),
    "afaf, outputs grown": ("afaf", {"network.outputs": "grown", "run.engine": "graphed"}),
    "spacenet, all biases": ("spacenet", {"method.biases": "unfixed", "run.validation": 0.2}),
    "packnet, phases": ("packnet", {"method.share": 30.0, "method.retrain_epochs": 2}),
    "ewc, a term for each task": ("ewc", {"method.blend": "separate", "method.penalty": "proximal"}),
    "mas per sample": ("mas", {"method.estimator": "per-sample", "method.strength": 1.0}),
    "lwf, norms, outputs grown": ("lwf", {"network.norm": "batch", "network.outputs": "grown"}),
    "finetune, clipped": ("finetune", {"method.clip": 1.0}),
    "lwf, with patience": ("lwf", {"learn.patience": 1, "learn.lr": 0.5, "run.validation": 0.25, "network.norm": "batch"}),
    "joint": ("joint", {}),
    "afaf, momentum, one-cycle": ("afaf", {"learn.momentum": 0.9, "learn.weight_decay": 0.01, "learn.schedule": "one-cycle"}),
    "afaf, nesterov, cosine, norms": ("afaf", {**CONV, "learn.momentum": 0.9, "learn.nesterov": True, "learn.schedule": "cosine"}),
    "spacenet, adamw, step": ("spacenet", {"learn.optimiser": "adamw", "learn.lr": 0.005, "learn.schedule": "step"}),
    "afaf, plateau": ("afaf", {"learn.schedule": "plateau", "learn.patience": 1, "learn.momentum": 0.9, "run.validation": 0.25}),
    "packnet, adamw": ("packnet", {"method.share": 30.0, "method.retrain_epochs": 2, "learn.optimiser": "adamw", "learn.lr": 0.005}),
    "isolated, convolutions": ("isolated", {**CONV, "method.share": 30.0}),
    "ridge": ("ridge", {"method.features": "trunk"}),
    "afaf-plus": ("afaf-plus", {"learn.epochs": 2, "parts.filters": 4, "parts.patch": 3, "parts.held_out": 0.25}),
}


class StopAfter:
    """Asks a run to stop after so many epochs, and keeps what it was told."""

    def __init__(self, stop: StopToken, epochs: int):
        self.stop, self.epochs = stop, epochs
        self.warnings: list[str] = []

    def __call__(self, event: Event) -> None:
        self.epochs -= isinstance(event, EpochEnded)
        if self.epochs == 0:
            self.stop.ask()
        if isinstance(event, Warned) and "checkpoint" in event.message:
            self.warnings.append(event.message)


def stream() -> Stream:
    return small_stream([2, 2, 1], per_class=8)


def stopped(folder: Path, epochs: int, method: Any = "afaf", **settings: Any) -> None:
    """A run that was stopped after so many epochs."""
    stop = StopToken()
    with pytest.raises(StoppedError, match="afaf run --resume"):
        run(Job(stream(), method, device="cpu", out=folder, settings={**QUICK, **settings}), stop=stop, on_event=StopAfter(stop, epochs))


@pytest.mark.parametrize("name", VARIANTS)
def test_stopped_anywhere_and_resumed_it_ends_with_the_same_bits(name: str, tmp_path: Path) -> None:
    method, settings = VARIANTS[name]
    run(Job(stream(), method, device="cpu", out=tmp_path / "whole", settings={**QUICK, **settings}))
    expected = found(tmp_path / "whole")
    n_epochs = sum(line["event"] == "epoch" for line in expected["log"])
    first = 1 + list(VARIANTS).index(name) % 3  # within the first task or at its end
    for epochs in {min(first, n_epochs - 1), n_epochs // 2 + first, n_epochs - 1} if n_epochs > 9 else {first, n_epochs - 2}:
        if not 0 < epochs < n_epochs:
            continue
        folder = tmp_path / str(epochs)
        stopped(folder, epochs, method, **settings)
        resume(folder, stream=stream())
        assert found(folder) == expected, f"stopped after {epochs} epochs"
        assert goes_on_from(folder) == stands_after(expected["log"], epochs)


def goes_on_from(folder: Path) -> tuple[int, int, int]:
    """Tasks learned, phase and epochs at which the run was taken up."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    (position,) = [line["position"] for line in lines if line["event"] == "resumed"]
    return position["tasks"], position["phase"], position["epochs"]


def stands_after(log: list[dict[str, Any]], epochs: int) -> tuple[int, int, int]:
    """Where a run stands after so many epochs."""
    last = [line for line in log if line["event"] == "epoch"][epochs - 1]
    tasks = sum(line["event"] == "task" for line in log[: log.index(last)])
    return tasks, last["phase"], last["epoch"] + 1


def test_resumed_after_every_single_epoch(tmp_path: Path) -> None:
    run(Job(stream(), "afaf", device="cpu", out=tmp_path / "whole", settings=QUICK))
    stopped(tmp_path / "run", 1)
    for _ in range(20):
        stop = StopToken()
        try:
            resume(tmp_path / "run", stream=stream(), stop=stop, on_event=StopAfter(stop, 1))
            break
        except StoppedError:
            continue
    assert found(tmp_path / "run") == found(tmp_path / "whole")
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert sum(line["event"] == "resumed" for line in lines) >= 6


def test_the_last_two_checkpoints_stay(tmp_path: Path) -> None:
    stopped(tmp_path, 8, "afaf", **{"run.checkpoint": 0})  # task 3, two of three epochs
    names = [path.name.split("-", 1)[1].removesuffix(".safetensors") for path in sorted((tmp_path / "checkpoints").iterdir())]
    assert names == ["task-3-phase-0-epoch-1", "task-3-phase-0-epoch-2"]


def test_a_checkpoint_that_holds_changes_only_is_passed_over(tmp_path: Path) -> None:
    """As earlier versions wrote them within a task, with format 1."""
    run(Job(stream(), "afaf", device="cpu", out=tmp_path / "whole", settings=QUICK))
    folder = tmp_path / "run"
    stopped(folder, 5)  # task 2, two of three epochs
    end, within = sorted((folder / "checkpoints").iterdir())
    for path, more in ((end, {"whole": True}), (within, {"whole": False, "task": 2, "base": container.description(end)[1]})):
        contents = container.read_file(path, lambda about, tensors: None)
        about = {**contents.about, "format": 1, **more}
        about["position"] = {("lesson" if name == "tasks" else name): value for name, value in about["position"].items()}
        path.write_bytes(container.encode(contents.tensors, about))
    told = StopAfter(StopToken(), 0)
    resume(folder, stream=stream(), on_event=told)
    assert len(told.warnings) == 1
    assert within.name in told.warnings[0]
    assert found(folder) | {"passed over": []} == found(tmp_path / "whole")


@pytest.mark.parametrize("damage", ["newest", "all"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(damage: str, tmp_path: Path) -> None:
    run(Job(stream(), "afaf", device="cpu", out=tmp_path / "whole", settings={**QUICK, "run.checkpoint": 0}))
    folder = tmp_path / "run"
    stopped(folder, 8, "afaf", **{"run.checkpoint": 0})
    paths = sorted((folder / "checkpoints").iterdir())
    chosen = {"newest": paths[1:], "all": paths}[damage]
    for path in chosen:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
    told = StopAfter(StopToken(), 0)
    resume(folder, stream=stream(), on_event=told)
    assert len(told.warnings) == len(chosen)
    assert all("damaged" in warning for warning in told.warnings)
    assert found(folder) | {"passed over": []} == found(tmp_path / "whole")
    assert len(found(folder)["passed over"]) == len(told.warnings)
    names = [path.name for path in sorted((folder / "checkpoints").iterdir())]
    assert not {path.name for path in chosen} & set(names) or damage == "all"


def test_a_checkpoint_of_a_newer_afaf_is_not_taken_for_a_damaged_one(tmp_path: Path) -> None:
    stopped(tmp_path, 2)
    (path,) = (tmp_path / "checkpoints").iterdir()
    contents = container.read_file(path, lambda about, entries: None)
    path.write_bytes(container.encode(contents.tensors, {**contents.about, "format": 9, "afaf": "9.0"}))
    before = path.read_bytes()
    with pytest.raises(RunError, match=r"afaf 9\.0 in format 9.*update afaf"):
        resume(tmp_path, stream=stream())
    assert path.read_bytes() == before


def test_an_interval_is_kept_to(tmp_path: Path) -> None:
    """Without an interval checkpoints are taken at ends of tasks only; nothing is written without a folder."""
    settings = {**QUICK, "run.checkpoint": "none"}
    run(Job(stream(), "finetune", device="cpu", out=tmp_path / "run", settings=settings))
    names = [path.name for path in sorted((tmp_path / "run" / "checkpoints").iterdir())]
    assert names == ["000002-task-2-end.safetensors", "000003-task-3-end.safetensors"]
    with pytest.raises(ConfigError, match=r"run\.checkpoint"):
        run(Job(stream(), "finetune", settings={"run.checkpoint": -1.0}))
    stop = StopToken()
    stop.ask()
    with pytest.raises(StoppedError) as error:
        run(Job(stream(), "finetune", device="cpu", settings=QUICK), stop=stop)
    assert error.value.exit_code == 130


def test_a_finished_run_tells_its_results(tmp_path: Path) -> None:
    results = run(Job(stream(), "finetune", device="cpu", out=tmp_path / "run", settings=QUICK))
    before = found(tmp_path / "run")
    again = resume(tmp_path / "run")
    assert again.to_dict() == json.loads(json.dumps(results.to_dict()))
    assert found(tmp_path / "run") == before


def test_what_has_no_name_is_needed_again(tmp_path: Path) -> None:
    class Another(Finetune):
        name = "another"

    stopped(tmp_path / "run", 2, Another)
    with pytest.raises(RunError, match=r"'another'.*method="):
        resume(tmp_path / "run", stream=stream())
    with pytest.raises(RunError, match="stream=") as error:
        resume(tmp_path / "run", method=Another)
    assert "small" in str(error.value)
    results = resume(tmp_path / "run", stream=stream(), method=Another)
    assert results.method == "another"


HALF = """
from afaf.extend import DenseMethod, DenseOptions

class Half(DenseMethod[DenseOptions]):
    name = "half"
    summary = "after the first task only the outputs move"
    Options = DenseOptions

    def plan(self, learner, context, phase):
        plan = super().plan(learner, context, phase)
        if context.task > 1:
            plan.first_trainable = learner.network.spec.E
        return plan
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a user's method; nothing of it is remembered from one import to the next."""
    path = tmp_path / "code" / "own_half.py"
    path.parent.mkdir()
    path.write_text(HALF)
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield path
    sys.modules.pop("own_half", None)


def own_method() -> type[Method[Any]]:
    """As the command line finds it, in a process of its own."""
    sys.modules.pop("own_half", None)
    kind = method_of_command("own_half:Half")
    assert isinstance(kind, type)
    return kind


@pytest.mark.parametrize("written", ["own_half:Half", "own_half.Half"])  # now, and by earlier versions
@pytest.mark.usefixtures("module")
def test_a_users_method_is_imported_again_and_ends_with_the_same_bits(written: str, tmp_path: Path) -> None:
    run(Job("digit-pairs", own_method(), device="cpu", out=tmp_path / "whole", settings=ORDERED))
    folder, stop = tmp_path / "run", StopToken()
    with pytest.raises(StoppedError):
        run(Job("digit-pairs", own_method(), device="cpu", out=folder, settings=ORDERED), stop=stop, on_event=StopAfter(stop, 3))
    edit(folder, top={"method_class": written})
    sys.modules.pop("own_half")
    result = CliRunner().invoke(app, ["run", "--resume", str(folder)])
    assert result.exit_code == 0, result.output
    assert found(folder) == found(tmp_path / "whole")


GONE = {
    "the module": None,
    "the class": HALF.replace("class Half", "class Whole"),
    "what makes it a method": "class Half:\n    name = 'half'",
    "its name": HALF.replace('"half"', '"whole"'),
    "what it imports": f"import a_package_that_is_not_there{HALF}",
}


@pytest.mark.parametrize("what", GONE)
def test_a_users_method_that_is_gone_is_named_and_the_run_waits_for_it(what: str, module: Path, tmp_path: Path) -> None:
    folder, text = tmp_path / "run", GONE[what]
    stopped(folder, 2, own_method())
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.suffix}
    sys.modules.pop("own_half")
    module.unlink() if text is None else module.write_text(text)
    with pytest.raises(RunError, match="own_half:Half") as error:
        resume(folder, stream=stream())
    assert str(folder) in str(error.value)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.suffix} == before
    module.write_text(HALF)
    sys.modules.pop("own_half", None)
    assert resume(folder, stream=stream()).method == "half"


def test_a_class_that_keeps_a_built_in_name_is_not_taken_for_that_method(tmp_path: Path) -> None:
    """Asked for by name, the built-in method is another run."""
    stopped(tmp_path, 2, Unnamed)
    with pytest.raises(RunError, match="Unnamed"):
        run_or_resume(Job(stream(), "finetune", device="cpu", settings=QUICK, out=tmp_path, resume=True))
    assert resume(tmp_path, stream=stream()).acc is not None


class Unnamed(Finetune):
    pass


@pytest.mark.parametrize("written", ["__main__:Half", None, "Nonesuch:Half"])
def test_a_run_of_a_class_that_cannot_be_imported_waits_for_the_class(written: str | None, module: Path, tmp_path: Path) -> None:
    stopped(tmp_path / "run", 2, own_method())
    edit(tmp_path / "run", top={"method_class": written})
    with pytest.raises(RunError, match="half"):
        resume(tmp_path / "run", stream=stream())
    assert resume(tmp_path / "run", stream=stream(), method=own_method()).method == "half"


@pytest.mark.parametrize("written", ["afaf.methods.afaf.AFAF", "afaf.an_earlier_place:AFAF"])
def test_a_class_is_known_again_as_earlier_versions_wrote_it(written: str, tmp_path: Path) -> None:
    stopped(tmp_path, 2)
    edit(tmp_path, top={"method_class": written})
    assert run_or_resume(Job(stream(), "afaf", device="cpu", settings=QUICK, out=tmp_path, resume=True)).acc is not None


def test_other_data_and_other_settings_are_refused(tmp_path: Path) -> None:
    stopped(tmp_path / "run", 2)
    with pytest.raises(RunError, match="data is not what the run began with"):
        resume(tmp_path / "run", stream=small_stream([2, 2, 1], per_class=12))
    with pytest.raises(RunError, match="labels or images have changed"):
        resume(tmp_path / "run", stream=small_stream([2, 2, 1], per_class=8, seed=1))
    with pytest.raises(ConfigError, match=r"run\.chunk"):
        resume(tmp_path / "run", stream=stream(), settings={"learn.epochs": 9})
    assert resume(tmp_path / "run", stream=stream(), settings={"run.chunk": 1, "run.checkpoint": 0.5}).acc is not None


def test_the_same_command_again_takes_what_may_change_from_its_settings(tmp_path: Path) -> None:
    """After running out of memory, say."""
    stopped(tmp_path / "run", 2)
    smaller = {**QUICK, "evaluate.batch_size": 7, "run.chunk": 1}
    results = run_or_resume(Job(stream(), "afaf", settings=smaller, out=tmp_path / "run", resume=True))
    assert results.model is not None
    assert results.model.config["evaluate"]["batch_size"] == 7
    assert results.model.config["run"]["chunk"] == 1
    assert results.R == run(Job(stream(), "afaf", device="cpu", settings=QUICK)).R


def test_one_changed_image_among_many_is_noticed(tmp_path: Path) -> None:
    many = small_stream([2, 2], per_class=80)
    run(Job(many, "finetune", out=tmp_path / "run", settings={"learn.epochs": 1, "network.name": "mlp"}))
    many[0].train.images[1] += 1  # between two images that a sample would have looked at
    with pytest.raises(RunError, match="images have changed"):
        resume(tmp_path / "run", stream=many)


def test_a_run_begun_with_a_digest_of_some_images_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As versions before wrote it."""
    monkeypatch.setattr(runner, "data_digest", partial(runner.data_digest, sampled=True))
    stopped(tmp_path / "run", 2)
    monkeypatch.undo()
    assert ":" not in json.loads((tmp_path / "run" / "config.json").read_text())["data_digest"]
    assert len(resume(tmp_path / "run", stream=stream()).R) == 3


OLDER = [("learn", "optimiser"), ("sparse", "rewire_until"), ("parts", "contrastive"), ("evaluate", "task_il"), ("method", "biases")]


@pytest.mark.parametrize(("section", "name"), OLDER)
def test_a_run_older_than_a_setting_is_the_one_asked_for(section: str, name: str, tmp_path: Path) -> None:
    """What the setting's default says is what the run did; any other value is another run."""
    stopped(tmp_path / "run", 2)
    about = json.loads((tmp_path / "run" / "config.json").read_text())
    asked = {key: about[key] for key in ("stream", "method", "seed")} | {"config": json.loads(json.dumps(about["config"]))}
    del about["config"][section][name]
    (tmp_path / "run" / "config.json").write_text(json.dumps(about))
    _refuse_another(tmp_path / "run", asked, AFAFOptions)
    asked["config"][section][name] = "another"
    with pytest.raises(RunError, match=rf"{section}\.{name}"):
        _refuse_another(tmp_path / "run", asked, AFAFOptions)


def edit(folder: Path, *, top: dict[str, Any] | None = None, **sections: dict[str, Any]) -> None:
    """Change config.json by hand."""
    about = json.loads((folder / "config.json").read_text())
    about.update(top or {})
    for name, values in sections.items():
        about["config"][name].update(values)
    (folder / "config.json").write_text(json.dumps(about))


CHANGED: dict[str, dict[str, Any]] = {
    "learn.lr is 0.5, but the run began with 0.05": {"learn": {"lr": 0.5}},
    "learn.lr is fast, but the run began with 0.05": {"learn": {"lr": "fast"}},
    "run.validation is 0.25, but the run began with 0.0": {"run": {"validation": 0.25}},
    "sparse.density.W_1 is 30.0, but the run began with none": {"sparse": {"density": {"fc": 50.0, "output": 70.0, "W_1": 30.0}}},
    "method.l_reuse is 3, but the run began with 2": {"method": {"l_reuse": 3}},
    "seed is 7, but the run began with 0": {"top": {"seed": 7}},
    "method is spacenet, but the run began with afaf": {"top": {"method": "spacenet"}},
    "data_digest is 0, but the run began with": {"top": {"data_digest": "0"}},
}


@pytest.mark.parametrize("words", CHANGED)
def test_settings_that_were_changed_between_two_sittings_are_refused(words: str, tmp_path: Path) -> None:
    """Else a run would end with results of settings that it does not tell."""
    stopped(tmp_path, 5, "afaf", **{"learn.lr": 0.05})
    before = (tmp_path / "config.json").read_bytes()
    edit(tmp_path, **CHANGED[words])
    log = (tmp_path / "log.jsonl").read_bytes()
    with pytest.raises(RunError, match=r"config\.json is not what the run began with: .*set it back, or start another run") as error:
        resume(tmp_path, stream=stream())
    assert words in str(error.value)
    assert (tmp_path / "log.jsonl").read_bytes() == log
    diagnosis = examine(tmp_path)
    assert any(line.startswith(f"config.json: {words}") for line in diagnosis.wrong)
    assert any(line.startswith("set config.json back to what the run began with: afaf run --resume") for line in diagnosis.advice)
    (tmp_path / "config.json").write_bytes(before)
    assert examine(tmp_path).well
    assert resume(tmp_path, stream=stream()).acc is not None


def test_settings_of_a_finished_run_that_were_changed_are_found(tmp_path: Path) -> None:
    run(Job(stream(), "afaf", device="cpu", out=tmp_path, settings=QUICK))
    edit(tmp_path, top={"seed": 7})
    diagnosis = examine(tmp_path)
    assert diagnosis.wrong == ["config.json: seed is 7, but the run began with 0"]
    assert diagnosis.advice == ["set config.json back to what the run began with: results and model are of that"]


def test_what_no_result_depends_on_may_be_changed_between_two_sittings(tmp_path: Path) -> None:
    run(Job(stream(), "afaf", device="cpu", out=tmp_path / "whole", settings=QUICK))
    folder = tmp_path / "run"
    stopped(folder, 5)
    elsewhere = {"device": "cuda:7", "device_name": "another", "data": "elsewhere", "torch": "1.0", "afaf": "0.0"}
    edit(folder, top=elsewhere, run={"checkpoint": 0.0, "chunk": 8}, evaluate={"batch_size": 100})
    assert examine(folder).well
    resume(folder, stream=stream(), device="cpu")
    assert {**found(folder), "model": None} == {**found(tmp_path / "whole"), "model": None}  # a model tells all settings


def test_a_checkpoint_that_does_not_say_what_the_run_began_with_is_gone_on_from(tmp_path: Path) -> None:
    """As those of earlier versions do not."""
    run(Job(stream(), "afaf", device="cpu", out=tmp_path / "whole", settings=QUICK))
    folder = tmp_path / "run"
    stopped(folder, 2)
    (path,) = (folder / "checkpoints").iterdir()
    contents = container.read_file(path, lambda about, entries: None)
    old = {name: value for name, value in contents.about.items() if name != "began_with"}
    path.write_bytes(container.encode(contents.tensors, old))
    assert old != contents.about
    assert examine(folder).well
    resume(folder, stream=stream())
    assert found(folder) == found(tmp_path / "whole")


def test_own_data_is_found_again_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_npz(tmp_path / "mine.npz")
    monkeypatch.chdir(tmp_path)
    stop = StopToken()
    settings = {**QUICK, "stream.classes_per_task": 2}
    with pytest.raises(StoppedError):
        run(Job("npz:mine.npz", "finetune", device="cpu", out="run", settings=settings), stop=stop, on_event=StopAfter(stop, 2))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert resume(tmp_path / "run").acc is not None
    (tmp_path / "mine.npz").unlink()
    with pytest.raises(DataError, match="mine"):
        resume(tmp_path / "copy")
    assert afaf.resume is not None


ORDERED: dict[str, Any] = {"learn.epochs": 2, "run.images": 12, "stream.order": "1,3,0,2"}


@pytest.mark.parametrize("other", ["3,1,0,2", "0,2,1,3", "", "seed:0"])
@pytest.mark.parametrize("ended", [True, False])
def test_a_run_is_not_resumed_in_another_class_order(ended: bool, other: str, tmp_path: Path) -> None:
    stop = StopToken()
    asked: dict[str, Any] = {"device": "cpu", "out": tmp_path, "resume": True}
    with contextlib.nullcontext() if ended else pytest.raises(StoppedError):
        run(Job("digit-pairs", "finetune", settings=ORDERED, **asked), stop=stop, on_event=StopAfter(stop, -1 if ended else 3))
    with pytest.raises(RunError, match=r"stream\.order"):
        afaf.run("digit-pairs", "finetune", settings={**ORDERED, "stream.order": other}, **asked)
    assert afaf.run("digit-pairs", "finetune", settings=ORDERED, **asked).class_names == [["1", "3"], ["0", "2"]]


def test_the_same_order_may_be_written_otherwise(tmp_path: Path) -> None:
    """A file of the order may have been moved, or its classes written out."""
    (tmp_path / "order.txt").write_text("1, 3\n0, 2\n")
    asked: dict[str, Any] = {"device": "cpu", "out": tmp_path / "run", "resume": True}
    results = [
        afaf.run("digit-pairs", "finetune", settings={**ORDERED, "stream.order": order}, **asked)
        for order in (str(tmp_path / "order.txt"), "1,3,0,2")
    ]
    assert results[0].R == results[1].R


def test_a_run_in_another_order_goes_on_from_its_folder_alone(tmp_path: Path) -> None:
    run(Job("digit-pairs", "finetune", device="cpu", out=tmp_path / "whole", settings=ORDERED))
    stop = StopToken()
    with pytest.raises(StoppedError):
        run(Job("digit-pairs", "finetune", device="cpu", out=tmp_path / "run", settings=ORDERED), stop=stop, on_event=StopAfter(stop, 3))
    resume(tmp_path / "run")
    assert found(tmp_path / "run") == found(tmp_path / "whole")


def save_npz(path: Path, seed: int = 0) -> str:
    data = small_stream([2, 2], seed=seed)
    images, labels = (
        np.concatenate([np.concatenate([getattr(task.train, name), getattr(task.test, name)]) for task in data])
        for name in ("images", "labels")
    )
    np.savez(path, images=images, labels=labels)
    return f"npz:{path}"


NARROW: dict[str, Any] = {**QUICK, "sparse.density.W_1": 20}


@pytest.mark.parametrize(
    ("there", "here", "message"),
    [
        (NARROW, QUICK, r"sparse\.density\.W_1 is 20\.0 there, not set here"),
        (QUICK, NARROW, r"sparse\.density\.W_1 is not set there, 20\.0 here"),
        (QUICK, {**QUICK, "learn.lr": 0.5}, r"learn\.lr is"),
    ],
)
@pytest.mark.parametrize("ended", [True, False])
def test_a_folder_is_not_taken_for_a_run_with_other_settings(
    ended: bool, there: dict[str, Any], here: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """Of a table such as sparse.density each run may have keys that the other has not."""
    if ended:
        run(Job(stream(), "afaf", device="cpu", out=tmp_path, settings=there))
    else:
        stopped(tmp_path, 2, **there)
    with pytest.raises(RunError, match=message):
        afaf.run(stream(), "afaf", device="cpu", out=tmp_path, settings=here, resume=True)


def test_a_finished_run_is_returned_for_its_own_stream_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = save_npz(tmp_path / "a.npz"), save_npz(tmp_path / "b.npz", seed=1)
    asked: dict[str, Any] = {"device": "cpu", "out": tmp_path / "run", "settings": QUICK, "resume": True}
    results = afaf.run(a, "finetune", **asked)
    with pytest.raises(RunError, match=r"stream is npz:a\.npz there, npz:b\.npz here"):
        afaf.run(b, "finetune", **asked)
    monkeypatch.chdir(tmp_path)
    for same in (a, "npz:a.npz"):
        assert afaf.run(same, "finetune", **asked).R == results.R
    free = {"settings": {**QUICK, "run.checkpoint": 1.0, "run.chunk": 1}}
    assert afaf.run(a, "finetune", **asked | free).R == results.R
    save_npz(tmp_path / "a.npz", seed=1)
    with pytest.raises(RunError, match="labels or images have changed"):
        afaf.run(a, "finetune", **asked)


@pytest.mark.parametrize("settings", [{}, {"run.images": 4, "run.validation": 0.5}])
def test_a_finished_run_of_other_arrays_is_not_the_one_asked_for(settings: dict[str, Any], tmp_path: Path) -> None:
    """Streams made by a program may have one name and different images."""
    given: dict[str, Any] = {"device": "cpu", "out": tmp_path, "settings": {**QUICK, **settings}, "resume": True}
    results = afaf.run(stream(), "finetune", **given)
    assert afaf.run(stream(), "finetune", **given).R == afaf.resume(tmp_path, stream=stream()).R == results.R
    other = small_stream([2, 2, 1], per_class=8, seed=1)
    with pytest.raises(RunError, match="labels or images have changed"):
        afaf.run(other, "finetune", **given)
    with pytest.raises(RunError, match="labels or images have changed"):
        afaf.resume(tmp_path, stream=other)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["afaf", "spacenet", "packnet, phases", "ewc", "lwf", "lwf, with patience", "ridge", "afaf-plus"])
@pytest.mark.parametrize("engine", ["graphed", "compact", "eager"])
def test_on_a_gpu_too_it_ends_with_the_same_bits(name: str, engine: str, tmp_path: Path) -> None:
    method, more = VARIANTS.get(name, (name, {}))
    network = {"network.name": "small-cnn"} if method == "afaf-plus" else CONV  # half of the maps for a task do not fit when all are fixed
    settings = {**QUICK, **network, **more, "run.engine": engine}
    run(Job(stream(), method, device="cuda", out=tmp_path / "whole", settings=settings))
    for epochs in (2, 5) if method != "ridge" else (2,):
        stop, folder = StopToken(), tmp_path / str(epochs)
        with pytest.raises(StoppedError):
            run(Job(stream(), method, device="cuda", out=folder, settings=settings), stop=stop, on_event=StopAfter(stop, epochs))
        resume(folder, stream=stream())
        assert found(folder) == found(tmp_path / "whole")
