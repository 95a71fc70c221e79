"""What AFAF and SpaceNet promise, on random networks, settings and seeds."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from afaf.errors import CapacityError
from afaf.methods.afaf import AFAF, AFAFOptions
from afaf.methods.base import TaskContext
from afaf.network.ledger import ABSENT
from afaf.network.spec import Layer, NetworkSpec
from afaf.training.engines import CompactEngine, EagerEngine, Engine, GraphedEngine
from afaf.training.learner import Learner
from afaf.training.settings import LearnSettings, Settings, SparseSettings
from conftest import small_stream
from worlds import World, probe, worlds

few = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


def edges(learner: Learner) -> range:
    return learner.network.spec.edge_numbers


@few
@given(worlds())
def test_owners_never_overlap_and_counts_are_kept(world: World) -> None:
    """Another task's places are never touched, and drop and grow moves connections without losing or adding any."""
    before: dict[str, Any] = {}

    def started(learner: Learner, context: TaskContext) -> None:
        before["count"] = [int(learner.ledger.owned_by(l, context.task).sum()) for l in edges(learner)]
        before["others"] = [torch.where(o == context.task, 0, o) for o in learner.ledger.owners]

    def watch(learner: Learner, context: TaskContext) -> None:
        assert [int(learner.ledger.owned_by(l, context.task).sum()) for l in edges(learner)] == before["count"]
        for l in edges(learner):
            owner = learner.ledger.owner(l)
            others = before["others"][l - 1]
            assert torch.equal(owner[others > 0], others[others > 0])
            assert bool((learner.network.weight(l)[(owner <= 0).expand_as(learner.network.weight(l))] == 0).all())
            assert torch.equal((owner == ABSENT).any(2), ~world.spec.edge(l).exists())

    learner = world.learn(after_start=started, after_epoch=watch, after_task=watch)
    predicted = world.method.footprints(world.spec, world.stream.outline)[-1].owned
    assert world.owns(learner, sum(predicted.values()))


@few
@given(worlds(reuse=True))
def test_nothing_new_flows_into_a_fixed_neuron(world: World) -> None:
    """In tasks that reuse, whose candidates may be fixed, and in those before."""
    fixed: dict[int, torch.Tensor] = {}

    def remember(learner: Learner, context: TaskContext) -> None:
        fixed.update({s: f > 0 for s, f in copy.deepcopy(learner.ledger.fixed_by).items()})

    def watch(learner: Learner, context: TaskContext) -> None:
        for l, edge in enumerate(learner.network.spec.edges[:-1], 1):
            assert not bool(learner.ledger.owned_by(l, context.task)[fixed[edge.target_group]].any())

    world.learn(before_task=remember, after_start=watch, after_epoch=watch)


@few
@given(worlds())
def test_the_past_is_bit_identical(world: World) -> None:
    """Weights of past tasks, everything below l_reuse and the biases of fixed neurons: not a bit moves (moving norms excepted)."""
    past: dict[str, Any] = {}

    def remember(learner: Learner, context: TaskContext) -> None:
        past["parameters"] = copy.deepcopy(learner.network.parameters)
        past["owners"] = copy.deepcopy(learner.ledger.owners)
        past["fixed"] = {s: f > 0 for s, f in copy.deepcopy(learner.ledger.fixed_by).items()}

    def watch(learner: Learner, context: TaskContext) -> None:
        record = learner.ledger.record_of(context.task)
        assert record is not None
        for l in edges(learner):
            old, new = past["parameters"].weights[l - 1], learner.network.weight(l)
            owned = (past["owners"][l - 1] > 0).expand_as(old)
            assert torch.equal(old[owned], new[owned])
            if l < record.l_reuse:
                assert torch.equal(old, new)
                assert torch.equal(past["parameters"].biases[l - 1], learner.network.bias(l))
            if l < learner.network.spec.E:
                still = past["fixed"][learner.network.spec.edge(l).target_group]
                assert torch.equal(past["parameters"].biases[l - 1][still], learner.network.bias(l)[still])

    world.learn(before_task=remember, after_task=watch)


@few
@given(worlds())
def test_output_weights_of_different_tasks_touch_different_neurons(world: World) -> None:
    learner = world.learn()
    last = learner.ledger.owners[-1].amax(2)
    users = [set(torch.nonzero((last == task).any(0)).flatten().tolist()) for task in learner.classes_of]
    assert all(not a & b for i, a in enumerate(users) for b in users[i + 1 :])


@few
@given(worlds())
def test_how_many_neurons_a_task_fixes(world: World) -> None:
    """Exactly fixed_l without reuse, at most fixed_l with it, and all of the task's neurons in the last hidden layer."""
    before: dict[int, torch.Tensor] = {}

    def remember(learner: Learner, context: TaskContext) -> None:
        before.update(copy.deepcopy(learner.ledger.fixed_by))

    def watch(learner: Learner, context: TaskContext) -> None:
        ledger, spec = learner.ledger, learner.network.spec
        record = ledger.record_of(context.task)
        assert record is not None
        sizes = world.method.sizes_of(world.spec, context.task, len(context.classes))  # type: ignore[attr-defined]
        for l in spec.hidden_groups:
            fresh = int(((ledger.fixed(l) > 0) & (before[l] == 0)).sum())
            selected = record.selected(spec, l)
            if l == spec.last_hidden:
                assert bool(ledger.is_fixed(l)[selected].all())
            elif record.l_reuse == 1:
                assert fresh == min(sizes.fixed[l], len(selected))
            else:
                assert fresh <= sizes.fixed[l]
            kept = before[l] > 0
            assert torch.equal(ledger.fixed(l)[kept], before[l][kept])

    world.learn(before_task=remember, after_task=watch)


@few
@given(worlds())
def test_the_network_as_it_stood_gives_its_old_logits_back(world: World) -> None:
    x = probe(world.spec)
    answers: dict[int, torch.Tensor] = {}

    def remember(learner: Learner, context: TaskContext) -> None:
        answers[context.task] = learner.network(x)

    learner = world.learn(after_task=remember)
    for task, logits in answers.items():
        assert torch.equal(learner.network.as_of(task, learner.ledger)(x), logits)


@few
@given(worlds())
def test_the_same_seed_gives_the_same_bits(world: World) -> None:
    first, second = world.learn(), world.learn()
    for a, b in zip(_numbers(first), _numbers(second), strict=True):
        assert torch.equal(a, b)
    assert all(torch.equal(a, b) for a, b in zip(first.ledger.owners, second.ledger.owners, strict=True))
    world.seed += 1
    third = world.learn()
    biases = zip(first.network.parameters.biases, third.network.parameters.biases, strict=True)
    assert not any(torch.equal(a, b) for a, b in biases)


@few
@given(worlds(strict=True), st.sampled_from([EagerEngine(), CompactEngine(), GraphedEngine()]))
def test_under_strict_isolation_old_logits_never_change(world: World, engine: Engine) -> None:
    """All bits of the logits of the rows that a task left, after every later task: in chains and residual networks, with moving norms."""
    world.engine, x = engine, probe(world.spec)
    answers: dict[tuple[int, ...], torch.Tensor] = {}

    def watch(learner: Learner, context: TaskContext) -> None:
        logits = learner.network(x)
        for classes, before in answers.items():
            assert torch.equal(logits[:, list(classes)], before)
        answers[context.classes] = logits[:, list(context.classes)]

    world.learn(after_task=watch)


def test_strict_isolation_fixes_all_neurons_used_where_they_are_more_than_were_allocated() -> None:
    """Each class has candidates of its own, so a task of several classes can select more neurons than a class is allocated.

    The candidates were fixed before: a task takes no more free neurons than were drawn for it, however candidates are chosen.
    """
    hidden = (Layer("conv", 90, ("norm", "relu"), padding=1), Layer("conv", 90, ("relu", "global-mean"), padding=1), Layer("dense", 60))
    sparse = SparseSettings(alloc={"all": 20, "output": 20}, density={"all": 30, "W_1": 100}, fixed={"all": 10, "output": 100})
    options = AFAFOptions(strict=True, first_reuse=2, l_reuse=2, candidates="random", candidate_share=60)
    method = AFAF(options, Settings(LearnSettings(epochs=2, batch_size=4, lr=0.1), sparse))
    stream = small_stream([3, 3, 3], per_class=6)
    world = World(NetworkSpec("chain", (1, 8, 8), hidden, 9), method, stream, seed=3)
    method.check(world.spec, stream.outline)
    answers: dict[tuple[int, ...], torch.Tensor] = {}
    fixed = {s: torch.zeros(world.spec.layer(s).size, dtype=torch.bool) for s in world.spec.hidden_groups}
    more = 0

    def watch(learner: Learner, context: TaskContext) -> None:
        nonlocal more
        record, logits = learner.ledger.record_of(context.task), learner.network(probe(world.spec))
        assert record is not None
        allocated = method.sizes_of(world.spec, context.task, len(context.classes)).alloc
        for s in world.spec.hidden_groups:
            selected = record.selected(world.spec, s)
            assert bool(learner.ledger.is_fixed(s)[selected].all())
            more += len(selected) > allocated[s]
            newly = learner.ledger.is_fixed(s) & ~fixed[s]
            assert torch.equal(torch.nonzero(newly).flatten(), record.free[s])
            fixed[s] = learner.ledger.is_fixed(s).clone()
        for classes, before in answers.items():
            assert torch.equal(logits[:, list(classes)], before)
        answers[context.classes] = logits[:, list(context.classes)]

    world.learn(after_task=watch)
    assert more


@pytest.mark.parametrize("tasks", [3, 4])
def test_under_strict_isolation_it_is_known_in_advance_whether_tasks_that_reuse_fit(tasks: int) -> None:
    """Of 40 neurons two tasks take 16 each, and the third, which reuses, 8: four tasks are refused before any is learned."""
    hidden = (Layer("conv", 40, ("relu", "global-mean"), padding=1), Layer("dense", 60))
    sparse = SparseSettings(alloc={"all": 40, "output": 20}, density={"all": 30}, fixed={"all": 10, "output": 100})
    options = AFAFOptions(strict=True, first_reuse=3, l_reuse=1, candidate_share=50)
    method = AFAF(options, Settings(LearnSettings(epochs=1, batch_size=4, lr=0.1), sparse))
    stream = small_stream([2] * tasks, per_class=6)
    world = World(NetworkSpec("chain", (1, 8, 8), hidden, 2 * tasks), method, stream, seed=3)
    if tasks == 4:
        with pytest.raises(CapacityError, match="task 4"):
            method.check(world.spec, stream.outline)
        return
    method.check(world.spec, stream.outline)
    free: list[int] = []
    world.learn(after_task=lambda learner, _: free.append(len(learner.ledger.free_neurons(2))))
    assert free == [24, 8, 0]


def _numbers(learner: Learner) -> list[torch.Tensor]:
    return learner.network.parameters.weights + learner.network.parameters.biases


@few
@given(worlds(reuse=True))
def test_a_reusing_task_draws_where_algorithm_1_allows(world: World) -> None:
    """Per class: from its candidates and the free neurons, to those of them that are not fixed; below l_reuse nothing is added."""
    fixed: dict[int, torch.Tensor] = {}

    def remember(learner: Learner, context: TaskContext) -> None:
        fixed.update(copy.deepcopy(learner.ledger.fixed_by))

    def watch(learner: Learner, context: TaskContext) -> None:
        record, spec = learner.ledger.record_of(context.task), learner.network.spec
        assert record is not None
        if record.l_reuse == 1:
            return
        for l in range(1, record.l_reuse):
            assert not bool(learner.ledger.owned_by(l, context.task).any())
        for c in record.classes:
            for l in range(record.l_reuse, spec.E + 1):
                source, target = spec.edge(l).source_group, spec.edge(l).target_group
                if source > 1:
                    candidates = set(c.candidates[source].tolist()) if source in c.candidates else set()
                    assert set(c.sources[l].tolist()) == candidates | set(record.free[source].tolist())
                    assert not bool((fixed[source][record.free[source]] > 0).any())
                if l < spec.E:
                    assert not bool((fixed[target][c.targets[l]] > 0).any())
            assert spec.last_hidden not in c.candidates
            rows = learner.ledger.owned_by(spec.E, context.task)[c.class_id].amax(1)
            assert set(torch.nonzero(rows).flatten().tolist()) <= set(record.free[spec.last_hidden].tolist())

    world.learn(before_task=remember, after_start=watch)
