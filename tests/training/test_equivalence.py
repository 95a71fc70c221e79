"""The faster engines compute what the eager one computes (the graphed one uncaptured here: capturing needs a GPU)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from afaf.methods.afaf import AFAF, AFAFOptions
from afaf.methods.base import TaskContext
from afaf.network.ops import Norm
from afaf.subnets import rewire
from afaf.training.compact import CompactEngine, Trunk, gather, neurons_that_matter, trunk_top
from afaf.training.cuda.graphed import GraphedEngine
from afaf.training.eager import EagerEngine
from afaf.training.folded_trunk import dead_neurons
from afaf.training.learner import Learner
from afaf.training.named import protected_parameters
from afaf.training.plan import LearningPlan, Loss, Step
from afaf.training.quadratic import QuadraticPenalty
from afaf.training.settings import SparseSettings
from afaf.training.step import Workspace
from afaf.training.task_data import TaskData
from small_worlds import world_of
from worlds import World, worlds

few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


def numbers(learner: Learner) -> list[torch.Tensor]:
    parameters = learner.network.parameters
    norms = [tensor for norm in parameters.norms.values() for tensor in norm.tensors().values()]
    return [*parameters.weights, *parameters.biases, *norms, *learner.importance.connections, *learner.importance.neurons.values()]


class Ranked:
    """Notes whether rewiring ranks rounding errors.

    A weight into a norm that undoes it has a gradient of 0 up to rounding, in which engines differ: importances of 1e-45 beside 1e-5.
    Rewiring cannot count small importances as 0 instead: on the paper's network, in single precision, those that it ranks are as small as
    3e-16 of the largest, and products of two as 1e-21, so that any threshold might change what the paper's runs drop.
    """

    def __init__(self) -> None:
        self.rounding_errors = False

    def watch(self, rank: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def watched(owner: torch.Tensor, values: torch.Tensor, *more: int) -> torch.Tensor:
            some = values[values > 0]
            self.rounding_errors |= bool(some.numel()) and bool(some.min() < 1e-22 * some.max())
            return rank(owner, values, *more)

        return watched


@few
@given(worlds(strict=None), st.sampled_from([1, 1 << 20]), st.sampled_from([0, 1 << 30]))
def test_compact_and_graphed_equal_eager_over_whole_tasks(world: World, chunk_bytes: int, cache_bytes: int) -> None:
    """Weights, biases, norms and importances to 1e-9 in double precision, and the same ledger, after every task with drop and grow."""
    world.dtype = torch.float64
    seen: list[list[torch.Tensor]] = []
    ledgers: list[list[torch.Tensor]] = []

    def remember(learner: Learner, context: TaskContext) -> None:
        seen.append([tensor.clone() for tensor in numbers(learner)])
        ledgers.append([tensor.clone() for tensor in [*learner.ledger.owners, *learner.ledger.fixed_by.values()]])

    for engine in (
        EagerEngine(),
        CompactEngine(chunk_bytes=chunk_bytes, cache_bytes=cache_bytes),
        GraphedEngine(chunk_bytes=chunk_bytes, cache_bytes=cache_bytes),
    ):
        world.engine = engine
        ranked = Ranked()
        with (
            patch.object(rewire, "least_important", ranked.watch(rewire.least_important)),
            patch.object(rewire, "most_promising", ranked.watch(rewire.most_promising)),
        ):
            world.learn(after_task=remember)
        assume(not ranked.rounding_errors)
    n_tasks = len(world.stream)
    for after, (eager, owners) in enumerate(zip(seen[:n_tasks], ledgers[:n_tasks], strict=True)):
        for other in (n_tasks + after, 2 * n_tasks + after):
            for a, b in zip(eager, seen[other], strict=True):
                assert torch.allclose(a, b, rtol=1e-9, atol=1e-9)
            assert all(torch.equal(a, b) for a, b in zip(owners, ledgers[other], strict=True))


@few
@given(worlds(norm=False, unit="connection"))
def test_what_is_left_out_cannot_reach_the_tasks_outputs(world: World) -> None:
    """Every live connection into a kept neuron of the cone starts from a kept neuron, or from a silent one that stays so."""

    def watch(learner: Learner, context: TaskContext) -> None:
        plan = world.method.plan(learner, context, 0)
        kept = neurons_that_matter(learner, plan)
        spec = learner.network.spec
        cone = {spec.L: set(kept[spec.L].tolist())}
        assert cone[spec.L] == set(context.classes)
        for _ in spec.groups:  # a group of a residual network leads back into itself
            for l in reversed(spec.edge_numbers):
                edge, live = spec.edge(l), learner.ledger.owner(l).amax(2) > 0
                if edge.diagonal:  # the same neurons
                    continue
                below = set(torch.nonzero(live[sorted(cone.get(edge.target_group, set()))].any(0)).flatten().tolist())
                if spec.is_chain and edge.source == trunk_top(learner, plan):
                    below -= set(torch.nonzero(dead_neurons(spec, learner.network.parameters, edge.source)).flatten().tolist())
                assert below <= set(kept[edge.source].tolist())
                cone[edge.source_group] = cone.get(edge.source_group, set()) | below
        work = gather(learner, plan, kept)
        shapes = [(len(kept[edge.target]), 1 if edge.diagonal else len(kept[edge.source])) for edge in spec.edges]
        assert [w.shape[:2] for w in work.parameters.weights] == shapes

    world.learn(after_start=watch)


@pytest.mark.parametrize("engine", [CompactEngine(), GraphedEngine()])
def test_a_task_leaves_no_features_behind(engine: CompactEngine | GraphedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was computed ahead for a task, and its part of the network, are gone when it is learned: no garbage collector is waited for."""
    features: list[weakref.ref[torch.Tensor]] = []
    parts: list[weakref.ref[torch.Tensor]] = []
    prepare = Trunk.__init__

    def watched(self: Trunk, work: Workspace, data: TaskData, chunk_bytes: int, cache_bytes: int) -> None:
        prepare(self, work, data, chunk_bytes, cache_bytes)
        parts.append(weakref.ref(work.parameters.weights[0]))
        if self.cached is not None:
            features.append(weakref.ref(self.cached))

    monkeypatch.setattr(Trunk, "__init__", watched)
    sparse = SparseSettings(alloc={"all": 50, "output": 20}, density={"all": 40, "W_1": 100}, fixed={"all": 10, "output": 100})
    world = world_of(AFAF, AFAFOptions(first_reuse=2, l_reuse=2), sparse=sparse)
    world.engine = engine
    gc.disable()
    try:
        world.learn()
        assert (len(parts), len(features)) == (3, 2)
        assert not [1 for kept in parts + features if kept() is not None]
    finally:
        gc.enable()


class MovingGains(AFAF):
    """Gains and shifts move, while statistics stand still and are what training normalises with."""

    name = "moving-gains"

    def plan(self, learner: Learner, context: TaskContext, phase: int) -> LearningPlan:
        plan = super().plan(learner, context, phase)
        norms = {layer: torch.ones_like(norm.gain) for layer, norm in learner.network.parameters.norms.items()}
        return replace(plan, norms=norms, norm_moves=False)


def test_gains_may_move_while_statistics_stand_still() -> None:
    """Above l_reuse, where only a part of a layer matters, and below it."""
    sparse = SparseSettings(alloc={"all": 40, "output": 20}, density={"all": 40, "W_1": 100}, fixed={"all": 20, "output": 100})
    world = world_of(MovingGains, AFAFOptions(first_reuse=2, l_reuse=3), norm="batch", sparse=sparse, dtype=torch.float64)
    eager = numbers(world.learn())
    for engine in (CompactEngine(), GraphedEngine()):
        world.engine = engine
        for a, b in zip(eager, numbers(world.learn()), strict=True):
            assert torch.allclose(a, b, rtol=1e-9, atol=1e-9)


def test_only_norms_that_the_task_uses_move() -> None:
    """Those of its neurons, and of those from which other tasks' connections lead to them; a task that reuses moves none below l_reuse."""
    sparse = SparseSettings(alloc={"all": 50, "output": 20}, density={"all": 30, "W_1": 60, "output": 90}, fixed={"all": 10, "output": 100})
    options = AFAFOptions(norms="used", first_reuse=3, l_reuse=2)
    world = world_of(AFAF, options, norm="batch", sparse=sparse, dtype=torch.float64)
    past: list[Norm] = []

    def remember(learner: Learner, context: TaskContext) -> None:
        past[:] = [norm.clone() for norm in learner.network.parameters.norms.values()]

    def watch(learner: Learner, context: TaskContext) -> None:
        record, owner = learner.ledger.record_of(context.task), learner.ledger.owner(2)
        assert record is not None
        used = [torch.zeros(size, dtype=torch.bool) for size in (6, 12)]
        used[1][record.selected(world.spec, 3)] = True
        if record.l_reuse == 1:
            used[0][record.selected(world.spec, 2)] = True
            used[0] |= ((owner > 0) & (owner != context.task))[used[1]].any(2).any(0)
        for before, now, moving in zip(past, learner.network.parameters.norms.values(), used, strict=True):
            assert torch.equal(before.var != now.var, moving)
            assert not bool((before.gain != now.gain)[~moving].any())

    eager = numbers(world.learn(before_task=remember, after_task=watch))
    for engine in (CompactEngine(), GraphedEngine()):
        world.engine = engine
        for a, b in zip(eager, numbers(world.learn(before_task=remember, after_task=watch)), strict=True):
            assert torch.allclose(a, b, rtol=1e-9, atol=1e-9)


class Shrinking(AFAF):
    """After each step the task's own weights are pulled towards 0, by springs on the whole network."""

    name = "shrinking"

    def plan(self, learner: Learner, context: TaskContext, phase: int) -> LearningPlan:
        held = {name: torch.zeros_like(tensor) for name, tensor in protected_parameters(learner.network.parameters).items()}
        own = {f"weight/{l}": learner.ledger.owned_by(l, context.task) for l in range(1, learner.network.spec.E)}
        stiff = {name: mask.to(held[name].dtype).expand_as(held[name]) for name, mask in own.items()}
        return replace(super().plan(learner, context, phase), penalty=QuadraticPenalty(1.0, stiff, held, proximal=True))


def test_what_follows_a_step_finds_all_parameters() -> None:
    sparse = SparseSettings(alloc={"all": 40, "output": 20}, density={"all": 40, "W_1": 100}, fixed={"all": 20, "output": 100}, drop=0)
    world = world_of(Shrinking, AFAFOptions(first_reuse=2, l_reuse=2), sparse=sparse, dtype=torch.float64)
    eager = numbers(world.learn())
    for engine in (CompactEngine(), GraphedEngine()):
        world.engine = engine
        for a, b in zip(eager, numbers(world.learn()), strict=True):
            assert torch.allclose(a, b, rtol=1e-9, atol=1e-9)


class Prejudiced(AFAF):
    """Rewires by importances that it drew before the task, and counts none."""

    name = "prejudiced"

    def start(self, learner: Learner, context: TaskContext, phase: int) -> None:
        super().start(learner, context, phase)
        draw = torch.Generator().manual_seed(0)
        for tensor in [*learner.importance.connections, *learner.importance.neurons.values()]:
            tensor.copy_(torch.rand(tensor.shape, generator=draw))

    def plan(self, learner: Learner, context: TaskContext, phase: int) -> LearningPlan:
        return replace(super().plan(learner, context, phase), importance=False)


def test_after_rewiring_the_new_connections_train_also_where_importances_are_not_counted() -> None:
    sparse = SparseSettings(alloc={"all": 60, "output": 30}, density={"all": 40, "W_1": 100}, fixed={"all": 20, "output": 100}, drop=50)
    world = world_of(Prejudiced, AFAFOptions(first_reuse=2, l_reuse=2), classes=(2,), sparse=sparse, dtype=torch.float64)
    eager = numbers(world.learn())
    for engine in (CompactEngine(), GraphedEngine()):
        world.engine = engine
        for a, b in zip(eager, numbers(world.learn()), strict=True):
            assert torch.allclose(a, b, rtol=1e-9, atol=1e-9)


class Contrast:
    """Cross-entropy, and a term that draws the features of the two views of an image together."""

    def __init__(self, loss: Loss):
        self.loss = loss

    def __call__(self, step: Step) -> torch.Tensor:
        assert step.features is not None
        first, second = step.features[0::2], step.features[1::2]
        assert torch.equal(step.labels[0::2], step.labels[1::2])
        of_neuron = torch.arange(step.features.shape[1])  # so that their order matters
        return self.loss(step) + ((first - second).square() * of_neuron).mean()


class Contrastive(AFAF):
    name = "contrastive"

    def plan(self, learner: Learner, context: TaskContext, phase: int) -> LearningPlan:
        plan = super().plan(learner, context, phase)
        return replace(plan, loss=Contrast(plan.loss), features=True, views=2, batch_size=8)


@pytest.mark.parametrize("l_reuse", [2, 4])
@pytest.mark.parametrize("norm", ["none", "batch"])
def test_a_loss_may_read_features_of_several_views(norm: str, l_reuse: int) -> None:
    """Those of the task's neurons in the last hidden layer, whichever part of the network an engine computes with."""
    sparse = SparseSettings(alloc={"all": 40, "output": 20}, density={"all": 40, "W_1": 100}, fixed={"all": 20, "output": 100})
    options = AFAFOptions(first_reuse=2, l_reuse=l_reuse, candidates="random", strict=norm == "batch")  # some are dead
    world = world_of(Contrastive, options, norm=norm, sparse=sparse, dtype=torch.float64)
    plain = numbers(replace(world, method=AFAF(options, world.method.settings)).learn())
    eager = numbers(world.learn())
    assert not all(torch.equal(a, b) for a, b in zip(plain, eager, strict=True))
    for engine in (CompactEngine(), GraphedEngine()):
        world.engine = engine
        for a, b in zip(eager, numbers(world.learn()), strict=True):
            assert torch.allclose(a, b, rtol=1e-9, atol=1e-9)
