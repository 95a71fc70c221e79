"""Optimisers and schedules: PyTorch's arithmetic, the same in all engines; buffers belong to live connections."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from afaf.methods.afaf import AFAF, AFAFOptions
from afaf.methods.base import TaskContext
from afaf.methods.dense import DenseOptions
from afaf.methods.finetune import Finetune
from afaf.training.compact import CompactEngine
from afaf.training.cuda.graphed import GraphedEngine
from afaf.training.eager import EagerEngine
from afaf.training.learner import Learner
from afaf.training.optimisers import SGD, AdamW, Optimiser
from afaf.training.plan import LearningPlan
from afaf.training.schedules import Constant, Cosine, OneCycle, StepDecay
from afaf.training.settings import SparseSettings
from small_worlds import world_of
from worlds import World

OPTIMISERS: dict[str, dict[str, Any]] = {
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.8, "nesterov": True},
    "weight decay": {"weight_decay": 0.02},
    "all of sgd": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.02},
    "adamw": {"optimiser": "adamw", "lr": 0.01, "weight_decay": 0.1},
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "constant": {},
    "step": {"schedule": "step"},
    "plateau": {"schedule": "plateau", "patience": 1},
    "cosine": {"schedule": "cosine"},
    "one-cycle": {"schedule": "one-cycle"},
}
SPARSE = SparseSettings(alloc={"all": 40, "output": 20}, density={"all": 40, "W_1": 100}, fixed={"all": 20, "output": 100})


def numbers(learner: Learner) -> list[Tensor]:
    parameters = learner.network.parameters
    norms = [tensor for norm in parameters.norms.values() for tensor in norm.tensors().values()]
    importance = [*learner.importance.connections, *learner.importance.neurons.values()]
    return [*parameters.weights, *parameters.biases, *norms, *importance, *learner.ledger.owners]


def world(norm: str = "none", **learn: Any) -> World:
    """AFAF with rewiring over three tasks, in double precision."""
    options = AFAFOptions(first_reuse=2, l_reuse=2)
    return world_of(AFAF, options, norm=norm, sparse=SPARSE, dtype=torch.float64, **{"epochs": 4, **learn})


@pytest.mark.parametrize("engine", [CompactEngine(), GraphedEngine()], ids=["compact", "graphed"])
@pytest.mark.parametrize(
    ("optimiser", "schedule", "norm"),
    [
        *((optimiser, "constant", "none") for optimiser in OPTIMISERS),
        *(("all of sgd", schedule, "none") for schedule in ("step", "plateau", "cosine", "one-cycle")),
        ("all of sgd", "one-cycle", "batch"),
        ("adamw", "plateau", "batch"),
    ],
)
def test_all_engines_do_the_same_steps(engine: Any, optimiser: str, schedule: str, norm: str) -> None:
    """Whole tasks with drop and grow: parameters, importances and owners to 1e-9."""
    example = world(norm, **OPTIMISERS[optimiser], **SCHEDULES[schedule])
    reference = numbers(example.learn())
    example.engine = engine
    for a, b in zip(reference, numbers(example.learn()), strict=True):
        assert torch.allclose(a.double(), b.double(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SGD(), lambda p: torch.optim.SGD(p, 0.1)),
        (SGD(0.9, weight_decay=0.05), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.05)),
        (SGD(0.9, True), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True)),
        (AdamW(weight_decay=0.1), lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.1)),
    ],
)
def test_updates_are_those_of_pytorch(ours: Optimiser, theirs: Any) -> None:
    """At a rate that changes; and the importance of a step is |change x gradient|."""
    draw = torch.Generator().manual_seed(0)
    weight, mask = torch.randn(4, 5, 3, generator=draw, dtype=torch.float64), torch.ones(4, 5, 1, dtype=torch.float64)
    other = weight.clone().requires_grad_()
    their, buffers = theirs([other]), [torch.zeros_like(weight) for _ in ours.buffers]
    for step in range(1, 6):
        gradient, before = torch.randn(4, 5, 3, generator=draw, dtype=torch.float64), weight.clone()
        for group in their.param_groups:
            group["lr"] = 0.1 / step
        other.grad = gradient.clone()
        their.step()
        gained = ours.update(weight, gradient.clone(), mask, buffers, ours.coefficients(0.1 / step, step), True)
        assert torch.allclose(weight, other, rtol=1e-12, atol=1e-12)
        assert gained is not None
        assert torch.allclose(gained, ((before - weight) * gradient).abs(), rtol=1e-9, atol=1e-12)


def test_schedules_are_those_of_pytorch() -> None:
    epochs, steps, lr = 6, 5, 0.4
    parameter = torch.zeros(1, requires_grad=True)
    optimiser = torch.optim.SGD([parameter], lr, momentum=0.9)
    for schedule, make in (
        (Constant(), lambda: torch.optim.lr_scheduler.ConstantLR(optimiser, 1.0)),
        (Cosine(), lambda: torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * steps)),
        (OneCycle(30.0), lambda: torch.optim.lr_scheduler.OneCycleLR(optimiser, lr, epochs * steps, cycle_momentum=False)),
        (StepDecay((50.0,), 10.0), lambda: torch.optim.lr_scheduler.StepLR(optimiser, epochs * steps // 2)),
    ):
        optimiser.param_groups[0].update(lr=lr, initial_lr=lr)
        theirs = make()
        for epoch in range(epochs):
            for step in range(steps):
                assert schedule.rate(lr, epoch, epochs, step, steps) == pytest.approx(optimiser.param_groups[0]["lr"], rel=1e-9)
                optimiser.step()
                theirs.step()


@pytest.mark.parametrize("engine", [EagerEngine(), CompactEngine()], ids=["eager", "compact"])
@pytest.mark.parametrize("optimiser", ["all of sgd", "adamw"])
def test_only_live_connections_have_state_and_decay(engine: Any, optimiser: str) -> None:
    """A dropped connection loses its buffers; what earlier tasks own keeps its bits."""
    example = world(**OPTIMISERS[optimiser])
    example.engine = engine
    seen: list[bool] = []
    owned: dict[int, Tensor] = {}

    def after_epoch(learner: Learner, context: TaskContext) -> None:
        for name, buffer in learner.optimiser_state.items():
            if "/weight/" in name:
                own = learner.ledger.owned_by(int(name.rsplit("/", 1)[1]), context.task).expand_as(buffer)
                assert not bool(buffer[~own].any())
                seen.append(bool(buffer[own].any()))

    def after_task(learner: Learner, context: TaskContext) -> None:
        assert not learner.optimiser_state
        for l in range(1, learner.network.spec.L):
            if context.task > 1:
                past = (learner.ledger.owner(l) > 0) & (learner.ledger.owner(l) < context.task)
                assert torch.equal((learner.network.weight(l) * past), owned[l] * past)
            owned[l] = learner.network.weight(l).clone()

    example.learn(after_epoch=after_epoch, after_task=after_task)
    assert any(seen)


@pytest.mark.parametrize(("until", "expected"), [(100.0, [0, 1, 2]), (50.0, [0]), (0.0, []), (75.0, [0, 1])])
def test_rewiring_ends_with_its_share_of_the_epochs(until: float, expected: list[int]) -> None:
    """Of four epochs; never after the last of a share, which is to be learned as it is."""
    plan = LearningPlan(1, lambda step: step.logits.sum(), 4, 8, 0.1, rewire=lambda learner, epoch: None, rewire_until=until)
    assert [epoch for epoch in range(4) if plan.rewires_after(epoch)] == expected


def test_weight_decay_leaves_biases_alone() -> None:
    """With a gradient of 0 nothing but the weights shrinks."""

    class Still(Finetune):
        name = "still"

        def plan(self, learner: Learner, context: TaskContext, phase: int) -> LearningPlan:
            plan = super().plan(learner, context, phase)
            plan.loss = lambda step: 0.0 * step.logits.sum()
            return plan

    example = world_of(Still, DenseOptions(), epochs=1, lr=0.1, weight_decay=0.5, classes=(2,))
    learner = example.learn()
    for l in range(1, learner.network.spec.L):
        assert torch.equal(learner.network.bias(l), learner.network.initial_bias(l))
        assert float(learner.network.weight(l).abs().sum()) < 0.9 * float(learner.network.initial_weights(l).abs().sum())


@pytest.mark.parametrize("optimiser", [SGD(), SGD(0.9), SGD(0.9, True, 0.01), SGD(0.0, False, 0.01)])
def test_many_tensors_together_move_as_one_by_one(optimiser: SGD) -> None:
    draw = torch.Generator().manual_seed(0)
    shapes = [(3, 4), (5,), (2, 2, 2)]
    decayed = [torch.ones(3, 4), None, (torch.rand(2, 2, 2, generator=draw) > 0.5).float()]
    alone = [torch.randn(shape, generator=draw) for shape in shapes]
    together = [tensor.clone() for tensor in alone]
    buffers = [[[torch.zeros(shape) for _ in optimiser.buffers] for shape in shapes] for _ in range(2)]
    lr = torch.tensor(0.1, dtype=torch.float64)
    for _ in range(3):
        gradients = [torch.randn(shape, generator=draw) for shape in shapes]
        for i in range(3):
            optimiser.update(alone[i], gradients[i].clone(), decayed[i], buffers[0][i], [lr], False)
        optimiser.update_together(together, [gradient.clone() for gradient in gradients], decayed, buffers[1], lr)
    for one, other in zip(alone, together, strict=True):
        assert torch.allclose(one, other, rtol=1e-6)
