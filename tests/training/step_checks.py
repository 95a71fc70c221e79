"""Whole runs with the steps made for CUDA, carried out by Triton's interpreter on a CPU, against the reference: weights, biases, losses.

Not collected by itself, since the interpreter must be chosen before Triton is imported: `test_kernels.py` runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import afaf
from afaf.methods.base import TaskContext
from afaf.methods.mas import MAS
from afaf.network.forward import Parameters
from afaf.runs.events import EpochEnded, Event
from afaf.runs.job import Job
from afaf.runs.runner import run
from afaf.training.cuda import graphed, kernels
from afaf.training.cuda.chain_workspace import MixedPrecisionWorkspace
from afaf.training.cuda.kernels import activation, images, weights
from afaf.training.cuda.kernels import penalty as penalty
from afaf.training.learner import Learner
from afaf.training.losses import total
from afaf.training.plan import LearningPlan
from afaf.training.step import Workspace

SPARSE = {"sparse.alloc": {"all": 30, "output": 20}, "sparse.density": {"all": 30, "output": 70}, "sparse.fixed.all": 10}

MOMENTUM = {"learn.lr": 0.003, "learn.momentum": 0.9, "learn.nesterov": True, "learn.weight_decay": 0.01}
# AdamW divides by the size of the gradient: with its usual epsilon, rounding in a gradient near 0 moves a weight by the whole rate.
ADAMW = {"learn.optimiser": "adamw", "learn.lr": 0.005, "learn.weight_decay": 0.1, "learn.epsilon": 0.01}


class AtOnce:
    """Where there is no second stream, what runs beside the rest runs at once."""

    def do(self, work: Callable[[], Any], *reads: Tensor) -> Any:
        return work()

    def join(self) -> None: ...


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels on a CPU, with large tiles: what takes time there is the number of programs."""
    plain = MixedPrecisionWorkspace.of

    def of(work: Workspace, dtype: torch.dtype) -> MixedPrecisionWorkspace:
        here = plain(work, dtype)
        monkeypatch.setattr(here, "side_stream", AtOnce())
        return here

    monkeypatch.setattr(graphed.kernels, "available", lambda device: True)
    monkeypatch.setattr(MixedPrecisionWorkspace, "of", of)
    for module, name, size in (
        (activation, "ROWS", 1024),
        (activation, "ROWS_BACK", 1024),
        (images, "ROWS", 1024),
        (images, "PIXELS", 1 << 16),
        (weights, "WEIGHTS", 1 << 14),
        (weights, "LISTED", 1024),
        (penalty, "SIZE", 1 << 18),
    ):
        monkeypatch.setattr(module, name, size)


@pytest.fixture(scope="module")
def stream() -> afaf.Stream:
    labels = np.repeat(np.arange(4), 14)
    pixels = np.random.default_rng(0).integers(0, 256, (len(labels), 10, 10, 3), dtype=np.uint8)
    pixels[np.arange(len(labels)), labels] = 255
    return afaf.Stream.from_arrays(pixels, labels, augment="crop-flip")


class Losses:
    def __init__(self) -> None:
        self.seen: list[float] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, EpochEnded):
            self.seen.append(event.report.loss)


class Decayed(MAS):
    """A loss that speaks of weights which springs hold, too."""

    name = "decayed"

    def plan(self, learner: Learner, context: TaskContext, phase: int) -> LearningPlan:
        plan = super().plan(learner, context, phase)
        plan.loss = total(plan.loss, lambda step: 0.01 * torch.stack([weight.square().sum() for weight in step.parameters.weights]).sum())
        return plan


class Shrunk(MAS):
    """Weights that change after the step, held or not."""

    name = "shrunk"

    def plan(self, learner: Learner, context: TaskContext, phase: int) -> LearningPlan:
        plan = super().plan(learner, context, phase)

        def shrink(parameters: Parameters, lr: float) -> None:
            for weight in parameters.weights:
                weight.mul_(0.9)

        plan.after_step = shrink
        return plan


class OnlyWeights(MAS):
    """Springs on nothing but weights."""

    name = "only-weights"

    def plan(self, learner: Learner, context: TaskContext, phase: int) -> LearningPlan:
        plan = super().plan(learner, context, phase)
        if plan.penalty is not None:
            plan.penalty = plan.penalty.only(lambda name: name.startswith("weight/"))
        return plan


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("finetune", {}),
        ("afaf", {**SPARSE, "method.first_reuse": 2, "method.l_reuse": 2}),
        ("ewc", {"method.penalty": "explicit", "method.strength": 300, "network.norm": "batch"}),
        ("mas", {"method.penalty": "proximal", "method.strength": 300}),
        ("lwf", {}),
        (Decayed, {"method.penalty": "proximal", "method.strength": 300, "learn.epochs": 1}),
        (Shrunk, {"method.penalty": "explicit", "method.strength": 5, "learn.epochs": 1}),
        (OnlyWeights, {"method.penalty": "explicit", "method.strength": 5, "learn.epochs": 1}),
        ("afaf", {**SPARSE, "method.first_reuse": 2, "method.l_reuse": 2, **MOMENTUM, "learn.schedule": "one-cycle"}),
        ("spacenet", {**SPARSE, **ADAMW, "learn.schedule": "cosine"}),
        ("ewc", {"method.penalty": "explicit", "method.strength": 5, **MOMENTUM, "network.norm": "batch"}),
        ("mas", {"method.penalty": "proximal", "method.strength": 300, **ADAMW, "method.clip": "none"}),
        ("finetune", {"learn.schedule": "step", "learn.step_at": [50]}),
    ],
    ids=lambda value: "" if isinstance(value, dict) else getattr(value, "name", value),
)
def test_steps_for_cuda_are_the_reference(stream: afaf.Stream, method: str | type[MAS], settings: dict[str, Any]) -> None:
    found = []
    for engine in ("eager", "graphed"):
        losses = Losses()
        given = {"learn.epochs": 2, "learn.batch_size": 16, "network.name": "small-cnn", "run.engine": engine, **settings}
        results = run(Job(stream, method, device="cpu", settings=given), on_event=losses)
        assert results.model is not None
        parameters = results.model.learner.network.parameters
        found.append((losses.seen, [*parameters.weights, *parameters.biases]))
    (expected_losses, expected), (seen, tensors) = found
    assert seen == pytest.approx(expected_losses, rel=1e-4)
    for one, other in zip(expected, tensors, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)
    assert kernels.available(torch.device("cpu"))
