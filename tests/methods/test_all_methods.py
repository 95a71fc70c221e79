"""What holds for every method: it runs, costs what was predicted, keeps what was predicted, and can be repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import afaf
from afaf.methods import BUILT_IN, find_method
from afaf.runs.job import Job
from afaf.runs.runner import run
from afaf.storage.model_file import Model
from afaf.storage.state import stored_tensors

QUICK = {"learn.epochs": 2, "learn.batch_size": 32, "run.images": 48}
CONV = {"network.name": "small-cnn", "network.norm": "batch"}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in BUILT_IN},
    "ewc per-sample": ("ewc", {"method.estimator": "per-sample", "method.strength": "tuned", "method.labels": "sampled"}),
    "ewc proximal": ("ewc", {"method.penalty": "proximal", "method.labels": "true", "method.blend": "sum"}),
    "mas per-sample": ("mas", {"method.estimator": "per-sample", "method.strength": "tuned", "method.squared": True}),
    "mas separate": ("mas", {"method.blend": "separate"}),
    "lwf with norm": ("lwf", {"network.norm": "batch"}),
    "ewc with norm": ("ewc", {"network.norm": "batch", "method.strength": 10.0}),
    "ridge on patches": ("ridge", {"method.features": "patches", "method.filters": 32}),
    "packnet convolutional": ("packnet", {**CONV, "method.retrain_epochs": 1}),
    "isolated convolutional": ("isolated", {**CONV, "sparse.alloc.conv": 50, "sparse.density.conv": 20, "sparse.fixed.conv": 20}),
    "ewc convolutional": ("ewc", {**CONV, "method.estimator": "per-sample", "method.strength": 1.0}),
}


@pytest.mark.parametrize(("method", "settings"), VARIANTS.values(), ids=list(VARIANTS))
def test_a_run_costs_and_keeps_what_was_predicted_and_can_be_repeated(method: str, settings: dict[str, object]) -> None:
    settings = {**QUICK, **settings}
    results = afaf.run("split-digits", method, settings=settings, device="cpu")
    costs = afaf.costs("split-digits", method, settings=settings)
    assert results.model is not None
    learner = results.model.learner
    assert results.params == learner.params == costs.params
    outside_memory = ("owners", "fixed neurons", "masks", "records of allocations", "biases and norms after each task")
    assert learner.kept_bytes == costs.kept_bytes - sum(costs.kept.get(name, 0) for name in outside_memory)
    tensors = stored_tensors(learner)
    if "fixed neurons" in costs.kept or "masks" in costs.kept:
        owners = [tensor.nbytes for name, tensor in tensors.items() if name.startswith("owner/")]
        assert sum(owners) == costs.kept.get("owners", 0) + costs.kept.get("masks", 0)
    if "fixed neurons" in costs.kept:
        stored = sum(tensor.nbytes for tensor in tensors.values())
        assert stored <= costs.model_bytes  # of tasks that reuse, more neurons may be predicted than are drawn
        assert stored == costs.model_bytes or any(record.l_reuse > 1 for record in learner.ledger.records)
    for row, known in zip(results.R[-1], (results.R_task_il_unmasked or results.R_task_il)[-1], strict=True):
        assert row is not None
        assert known is not None
        assert row <= known
    again = afaf.run("split-digits", method, settings=settings, device="cpu")
    assert (again.R, again.R_task_il, again.confusion) == (results.R, results.R_task_il, results.confusion)


@pytest.mark.parametrize("method", ["ewc", "lwf", "packnet", "isolated", "ridge"])
def test_what_a_method_keeps_survives_the_model_file(method: str, tmp_path: Path) -> None:
    results = run(Job(afaf.open_stream("split-digits")[:3], method, settings=QUICK, device="cpu", out=tmp_path / "run"))
    assert results.model is not None
    back = Model.load(tmp_path / "run" / "model.safetensors").learner
    memory = results.model.learner.memory
    assert back.memory.keys() == memory.keys()
    assert all(torch.equal(back.memory[name], tensor) for name, tensor in memory.items())
    built = find_method(method)(find_method(method).Options(), None)  # type: ignore[arg-type]
    x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for task in (None, 2):
        assert torch.equal(built.predictor(back, task)(x), built.predictor(results.model.learner, task)(x))


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in BUILT_IN if name != "finetune"])
def test_every_method_remembers_digits_better_than_fine_tuning(method: str) -> None:
    """The presets as they are; fine-tuning is right on the last task only, 20 %."""
    acc = afaf.run("split-digits", method, device="cpu").acc
    assert acc is not None
    assert acc > 40


def test_no_method_has_a_loop_over_epochs_or_batches_of_training() -> None:
    """Methods say what may change; engines repeat it."""
    folder = Path(str(afaf.__file__)).parent / "methods"
    for path in folder.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert ".backward(" not in text, path.name
        assert "range(plan.epochs" not in text, path.name
        assert "range(learn.epochs" not in text, path.name
