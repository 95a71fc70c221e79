"""Model files: any safetensors reader opens them, they come back to the bit, and older ones are still read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from afaf.errors import FileError
from afaf.runs.job import Job
from afaf.runs.runner import run
from afaf.storage.container import encode
from afaf.storage.description import PARTS, describe
from afaf.storage.model_file import Model
from afaf.storage.state import live_tensors, stored_tensors
from afaf.training.learner import Learner
from conftest import small_stream

QUICK = {"learn.epochs": 2, "learn.batch_size": 8, "network.name": "mlp"}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "afaf": ("afaf", {}),
    "afaf-plus": ("afaf-plus", {"parts.rotations": False}),
    "weights as units": ("spacenet", {"sparse.unit": "weight"}),
    "packnet": ("packnet", {"method.share": 30.0, "method.retrain_epochs": 1}),
    "mas, a term for each task": ("mas", {"method.blend": "separate"}),
    "norms and grown outputs": ("lwf", {"network.norm": "batch", "network.outputs": "grown"}),
    "ridge": ("ridge", {}),
}


def model_of(method: str, settings: dict[str, Any]) -> Model:
    results = run(Job(small_stream([2, 2, 1]), method, device="cpu", settings={**QUICK, **settings}))
    assert results.model is not None
    return results.model


@pytest.mark.parametrize("name", VARIANTS)
def test_a_model_comes_back_to_the_bit_and_any_reader_opens_it(name: str, tmp_path: Path) -> None:
    model, path = model_of(*VARIANTS[name]), tmp_path / "model.safetensors"
    model.save(path)
    back = Model.load(path)
    assert list(tmp_path.iterdir()) == [path]
    here, there = live_tensors(model.learner), live_tensors(back.learner)
    assert list(here) == list(there)  # in the same order too: sums over them must not change
    assert all(torch.equal(here[n], there[n]) and here[n].dtype == there[n].dtype for n in here)
    assert describe(model.learner) == describe(back.learner)
    assert (back.method, back.class_names, back.preparations) == (model.method, model.class_names, model.preparations)
    assert json.loads(json.dumps(model.config)) == back.config
    assert Model.from_bytes(model.to_bytes()).to_bytes() == path.read_bytes()
    with safe_open(path, framework="pt") as file:
        stored = stored_tensors(model.learner)
        assert set(file.keys()) == set(stored)
        assert all(torch.equal(file.get_tensor(n), tensor) for n, tensor in stored.items())
        about = json.loads(file.metadata()["afaf"])
    assert {"format", "afaf", "class_names", "preparations", "config", "method", "stream", "learner"} <= set(about)


def test_a_file_of_the_first_format_is_read(tmp_path: Path) -> None:
    """As the first version wrote it: by the safetensors library, without a checksum, the learner's description not apart."""
    model, path = model_of("ewc", {}), tmp_path / "old.safetensors"
    learner = {name: value for name, value in describe(model.learner).items() if name not in ("memory", "dtype")}
    preparations = [{"mean": p.mean, "std": p.std, "channels": p.channels, "augment": p.augment} for p in model.preparations]
    about = {"format": 1, "afaf": "0.1.0", "stream": "small", "method": "ewc", "class_names": model.class_names, **learner}
    about |= {"preparations": preparations, "config": {}}
    save_file(stored_tensors(model.learner), path, metadata={"afaf": json.dumps(about)})
    back = Model.load(path)
    here, there = live_tensors(model.learner), live_tensors(back.learner)
    assert set(here) == set(there)
    assert all(torch.equal(here[n], there[n]) for n in here)


def records(learner: Learner) -> dict[str, list[int]]:
    """Every number in the records of allocations, by its place."""
    found = {f"{r.task}/free/{s}": neurons for r in learner.ledger.records for s, neurons in r.free.items()}
    for part in PARTS:
        of_classes = [(f"{r.task}/{c.class_id}/{part}", getattr(c, part)) for r in learner.ledger.records for c in r.classes]
        found |= {f"{place}/{l}": neurons for place, by_layer in of_classes for l, neurons in by_layer.items()}
    return {place: neurons.tolist() for place, neurons in found.items()}


def test_records_come_back_whether_a_file_holds_all_of_them_or_what_they_follow_from(tmp_path: Path) -> None:
    """Older files also hold the sources and targets of tasks without reuse; of those with reuse, all do."""
    model, path = model_of("afaf", {}), tmp_path / "model.safetensors"
    model.save(path)
    expected, about = records(model.learner), {name: value for name, value in model_about(model).items() if name != "sha256"}
    assert records(Model.load(path).learner) == expected
    of_records = {f"record/{place}": torch.tensor(numbers, dtype=torch.int32) for place, numbers in expected.items()}
    stored = stored_tensors(model.learner)
    assert len([name for name in stored if name.startswith("record/")]) < len(of_records)
    path.write_bytes(encode(stored | of_records, about))
    assert records(Model.load(path).learner) == expected
    lacking = {name: tensor for name, tensor in stored.items() if not name.startswith("record/1/free/2")}
    path.write_bytes(encode(lacking, about))
    with pytest.raises(FileError, match="record"):
        Model.load(path)


def test_a_file_holds_only_owners_that_its_records_do_not_imply(tmp_path: Path) -> None:
    model, path = model_of("afaf-plus", {}), tmp_path / "model.safetensors"
    ledger, edges = model.learner.ledger, model.learner.network.spec.edge_numbers
    assert not any(name.startswith("owner/") for name in stored_tensors(model.learner))
    about = {name: value for name, value in model_about(model).items() if name != "sha256"}
    path.write_bytes(encode(stored_tensors(model.learner) | {f"owner/{l}": ledger.owner(l) for l in edges}, about))  # as older files do
    assert all(torch.equal(Model.load(path).learner.ledger.owner(l), ledger.owner(l)) for l in edges)

    model.learner.release(2, first_owned(ledger.owner(2)))
    assert [name for name in stored_tensors(model.learner) if name.startswith("owner/")] == ["owner/2"]
    back = Model.from_bytes(model.to_bytes()).learner
    assert all(torch.equal(back.ledger.owner(l), ledger.owner(l)) for l in edges)
    lacking = {name: tensor for name, tensor in stored_tensors(model.learner).items() if name != "owner/2"}
    path.write_bytes(encode(lacking, about))
    with pytest.raises(FileError, match="W_2"):
        Model.load(path)


def first_owned(owner: torch.Tensor) -> torch.Tensor:
    where = torch.zeros_like(owner, dtype=torch.bool)
    where.view(-1)[int(torch.nonzero(owner.view(-1) > 0)[0])] = True
    return where


def test_a_file_of_a_newer_format_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "new.safetensors").write_bytes(encode({}, {"format": 99, "kind": "model", "afaf": "7.0"}))
    with pytest.raises(FileError, match=r"afaf 7\.0 in format 99.*update afaf"):
        Model.load(tmp_path / "new.safetensors")


def test_files_that_are_none_of_ours_say_so(tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    save_file({"w": torch.zeros(3)}, other)
    with pytest.raises(FileError, match="another program"):
        Model.load(other)
    with pytest.raises(FileError, match="No such file"):
        Model.load(tmp_path / "nothing.safetensors")
    other.write_bytes(b"")
    with pytest.raises(FileError, match="truncated"):
        Model.load(other)
    with pytest.raises(FileError, match="folder"):
        Model.load(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"std": [0.0]},
        {"std": [-1.0]},
        {"std": []},
        {"mean": [], "std": []},
        {"mean": [0.1] * 5, "std": [0.1] * 5},
        {"mean": ["nan"]},
        {"channels": -4},
        {"channels": 5},
    ],
)
def test_a_preparation_of_images_that_makes_no_sense_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    model, path = model_of("afaf", {}), tmp_path / "model.safetensors"
    about = json.loads(json.dumps(model_about(model)))
    about["preparations"][0] |= change
    path.write_bytes(encode(stored_tensors(model.learner), about))
    with pytest.raises(FileError, match="preparation"):
        Model.load(path)


def test_class_names_that_are_not_by_task_are_refused(tmp_path: Path) -> None:
    model, path = model_of("afaf", {}), tmp_path / "model.safetensors"
    path.write_bytes(encode(stored_tensors(model.learner), {**model_about(model), "class_names": ["ab", "cd", "e"]}))
    with pytest.raises(FileError, match="class_names"):
        Model.load(path)


def model_about(model: Model) -> dict[str, Any]:
    """What the file says of a model."""
    data = model.to_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    about: dict[str, Any] = json.loads(header["__metadata__"]["afaf"])
    return about
