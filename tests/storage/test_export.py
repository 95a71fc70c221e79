"""Exported networks answer as the model does, with fewer neurons."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from afaf import AFAFClassifier
from afaf.errors import ConfigError, FileError
from afaf.lifelong import export as exporting
from afaf.lifelong.export import export, inference_of, open_onnx, open_torch
from afaf.lifelong.model import Lifelong
from afaf.network.subnetwork import neurons_that_answer
from afaf.storage.compacted import InferenceModule
from conftest import small_stream


def learned(side: int = 8, channels: int = 3, **parameters: Any) -> tuple[Lifelong, Any]:
    model = AFAFClassifier(max_tasks=5, epochs=3, random_state=0, device="cpu", **parameters)
    stream = small_stream([2, 1, 2], side=side, channels=channels)
    for task in stream:
        model.partial_fit(task.train.images, task.train.labels)
    return model._lifelong, np.concatenate([task.test.images for task in stream])


KINDS: list[dict[str, Any]] = [
    {},
    {"channels": 1},
    {"network": "mlp"},
    {"settings": {"network.norm": "batch"}},
    {"method": "afaf-plus", "network": "mlp", "settings": {"parts.patch": 3, "parts.filters": 8}},
    {"method": "afaf-plus", "augment": "crop-flip", "settings": {"parts.patch": 3, "parts.filters": 8, "parts.activations": True}},
    {"network": "resnet10", "side": 16, "settings": {"network.width": 16}},
    {"network": "alexnet", "side": 20, "settings": {"sparse.alloc.conv": 20, "sparse.alloc.fc": 5}},
    {"network": "resnet18-imagenet", "side": 40, "settings": {"network.width": 16, "method.strict": True}},
    {"network": "mobilenet-like", "side": 12, "settings": {"network.width": 16}},
    {"network": "vgg11", "side": 32, "settings": {"network.width": 16}},
]


@pytest.mark.parametrize("kind", [*KINDS[:-6], *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[-6:])])
def test_exports_answer_as_the_model_does(kind: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    model, images = learned(**kind)
    for form, reopen in (("onnx", open_onnx), ("torch", open_torch)):
        path = tmp_path / form
        found = export(model, path, form, images)
        assert found.difference < 1e-5
        assert found.images == len(images)
        assert found.weights < 0.7 * model.spec.dense_params
        answer = reopen(path)
        for n in (1, 3, len(images)):
            logits, probabilities = answer(images[:n])
            np.testing.assert_allclose(logits, model.logits(images[:n]), atol=1e-4)
            np.testing.assert_allclose(probabilities, model.probabilities(images[:n]), atol=1e-5)


def test_labels_are_in_the_metadata(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    model, _ = learned()
    model.rename(0, "zero")
    model.remove(1)
    export(model, tmp_path / "m.onnx", "onnx")
    export(model, tmp_path / "m.pt2", "torch")
    told = {entry.key: entry.value for entry in onnx.load(tmp_path / "m.onnx").metadata_props}
    assert json.loads(told["labels"]) == ["zero", 2, 3, 4]
    extra = {"labels.json": ""}
    torch.export.load(str(tmp_path / "m.pt2"), extra_files=extra)
    assert json.loads(extra["labels.json"]) == ["zero", 2, 3, 4]


def test_parts_are_exported_with_the_network_of_any_method_and_without_a_removed_class(tmp_path: Path) -> None:
    parts = {"parts.rotations": True, "parts.router": "ridge", "parts.patch": 3, "parts.filters": 8, "parts.held_out": 0.25}
    model, images = learned(settings=parts)
    model.remove(1)
    for dense in (False, True):
        assert export(model, tmp_path / "m.pt2", "torch", images, dense=dense).difference < 1e-5
    logits, _ = open_torch(tmp_path / "m.pt2")(images)
    assert logits.shape == (len(images), 4)


@pytest.mark.parametrize("form", ["onnx", "torch"])
def test_a_file_for_others_says_nothing_of_this_machine_and_holds_a_weight_once(form: Any, tmp_path: Path) -> None:
    if form == "onnx":
        pytest.importorskip("onnxscript")
    model, _ = learned(method="afaf-plus", network="mlp", settings={"parts.patch": 3, "parts.filters": 8})
    export(model, tmp_path / "m", form)
    assert str(Path(exporting.__file__).parents[1]).encode() not in (tmp_path / "m").read_bytes()
    if form == "onnx":
        graph = pytest.importorskip("onnx").load(tmp_path / "m").graph
        tensors = [tensor.raw_data for tensor in graph.initializer]
        assert len(tensors) == len(set(tensors))
        assert {value.type.tensor_type.shape.dim[0].dim_param for value in (*graph.input, *graph.output)} == {"batch"}


def test_every_neuron_left_reaches_an_output_and_every_one_removed_reaches_none() -> None:
    model, images = learned()
    rows = torch.tensor(list(model.life.known.values()))
    spec = model.spec
    kept = neurons_that_answer(spec, model.learner.network.parameters, rows)
    for l in range(2, spec.L):
        above = kept[l + 1] if l + 1 < spec.L else rows
        reaches = (model.learner.network.weight(l)[above] != 0).any(2).any(0)
        assert torch.equal(torch.nonzero(reaches).flatten(), kept[l])
    with torch.no_grad():
        logits = InferenceModule(inference_of(model, dense=True))(torch.from_numpy(images))[0].numpy()
    np.testing.assert_allclose(logits, model.logits(images), atol=1e-5)


def test_an_export_that_answers_otherwise_leaves_what_was_there_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = learned()
    export(model, tmp_path / "old.pt2", "torch")
    good = (tmp_path / "old.pt2").read_bytes()
    other, _ = learned(network="mlp")
    monkeypatch.setattr(exporting, "inference_of", lambda *_, **__: inference_of(other))
    for name in ("old.pt2", "new.pt2"):
        with pytest.raises(FileError, match=f"{name} was not written: its answers differ"):
            export(model, tmp_path / name, "torch")
    assert list(tmp_path.iterdir()) == [tmp_path / "old.pt2"]
    assert (tmp_path / "old.pt2").read_bytes() == good


def test_it_gets_its_name_when_it_has_been_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = learned()

    def verify(*_: Any) -> float:
        assert not (tmp_path / "m.pt2").exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(exporting, "difference_of", verify)
    with pytest.raises(KeyboardInterrupt):
        export(model, tmp_path / "m.pt2", "torch")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_verified_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = learned()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr(exporting, "exported_program", lambda *_: pytest.fail("it was begun"))
    with pytest.raises(ConfigError, match="needs the package onnxruntime"):
        export(model, tmp_path / "m.onnx", "onnx")
    assert list(tmp_path.iterdir()) == []


def test_vectors_are_exported_too(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(3, 2, (60, 7)).astype(np.float32)
    model = AFAFClassifier(epochs=2, random_state=0, device="cpu").fit(x, np.arange(60) % 3)._lifelong
    assert export(model, tmp_path / "m.pt2", "torch", x).difference < 1e-5


@pytest.mark.parametrize("form", ["onnx", "torch"])
def test_a_model_of_floats_is_tried_on_the_bytes_of_files_as_it_predicts_them(form: Any, tmp_path: Path) -> None:
    if form == "onnx":
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")
    model = AFAFClassifier(max_tasks=2, epochs=2, random_state=0, device="cpu")
    images = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 1), dtype=np.uint8)
    model.partial_fit(images.astype(np.float64), np.arange(30) % 3)
    found = export(model._lifelong, tmp_path / "m", form, images)
    assert found.images == 30
    logits, _ = (open_onnx if form == "onnx" else open_torch)(tmp_path / "m")(images.astype(np.float32))
    assert np.allclose(logits, model._lifelong.logits(images), atol=1e-4)
