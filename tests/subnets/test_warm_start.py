"""What `method.start_from=previous` promises: a task begins with what the task before has learned, and changes nothing of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from torch import Tensor

from afaf.methods.base import TaskContext
from afaf.methods.spacenet import SpaceNet, SpaceNetOptions
from afaf.network.forward import forward
from afaf.network.ledger import Allocation
from afaf.network.subnetwork import part_of
from afaf.network.zoo import describe
from afaf.subnets.warm_start import first_not_copied
from afaf.training.learner import Learner
from afaf.training.settings import LearnSettings, Settings, SparseSettings
from conftest import small_stream
from methods.test_sparse_properties import few
from worlds import World, probe, worlds


def own(learner: Learner, task: int) -> Allocation:
    record = learner.ledger.record_of(task)
    assert record is not None
    return record


def values(learner: Learner, task: int, layer: int) -> Tensor:
    """A layer of one task's sub-network alone."""
    spec, drawn = learner.network.spec, own(learner, task).free
    kept = {**drawn, 1: torch.arange(spec.layer(1).size), spec.L: torch.arange(spec.n_classes)}
    return forward(spec, part_of(spec, learner.network.parameters, kept), probe(spec), stop=layer)


@pytest.mark.parametrize("network", ["mlp", "small-cnn", "resnet10", "mobilenet-like"])
def test_a_task_begins_with_the_features_of_the_previous_one(network: str) -> None:
    """Where all pairs of a task's neurons are connected, the copy computes the same below the last hidden layer. Trained, it does not, and
    the original still does."""
    options = SpaceNetOptions(strict=True, loss_over="seen", start_from="previous")
    sparse = SparseSettings(alloc={"all": 30}, density={"all": 100}, fixed={"all": 100})
    method = SpaceNet(options, Settings(LearnSettings(epochs=2, batch_size=4, lr=0.01), sparse))
    spec = describe(network, (1, 8, 8), 6, width=12, norm="each")
    below = spec.edge(first_not_copied(spec)).source
    copies: dict[int, Tensor] = {}

    def started(learner: Learner, context: TaskContext) -> None:
        copies[context.task] = values(learner, context.task, below)
        if context.task > 1:
            last = [values(learner, task, spec.L - 1) for task in (context.task - 1, context.task)]
            assert not torch.allclose(*last, atol=1e-3)

    def ended(learner: Learner, context: TaskContext) -> None:
        after = [values(learner, task, below) for task in range(1, context.task + 1)]
        assert not torch.allclose(after[-1], copies[context.task], atol=1e-4)
        for task in range(1, context.task):
            assert torch.allclose(after[task - 1], copies[task + 1], atol=1e-6)

    World(spec, method, small_stream([2, 2, 2]), seed=0).learn(after_start=started, after_task=ended)


@few
@given(worlds(strict=None))
def test_connections_begin_with_the_values_of_their_counterparts(world: World) -> None:
    """By hand, one connection after the other; others, and all from the last hidden layer on, begin with their initial values. Biases and
    norms of neurons that earlier tasks use stay, also without isolation."""
    options = replace(world.method.options, start_from="previous")
    world.method.options = options
    old: list[Tensor] = []
    small: dict[tuple[int, str], Tensor] = {}

    def started(learner: Learner, context: TaskContext) -> None:
        spec, task = learner.network.spec, context.task
        new = own(learner, task)
        source, used = own(learner, task - 1) if task > 1 else None, used_before(learner, task)
        for (group, name), value in small.items():
            there = sorted(used[group])
            assert torch.equal(small_values(learner)[group, name][there], value[there])
        for l, edge in enumerate(spec.edges, 1):
            owner, initial = learner.ledger.owner(l), learner.network.initial_weights(l)
            places = torch.nonzero(owner == task).tolist()
            for o, i, u in places:
                to, back = (counterpart(new, source, used, *at) for at in ((edge.target_group, o), (edge.source_group, i)))
                back = 0 if edge.diagonal else back
                copied = l < first_not_copied(spec) and source is not None and 0 < int(owner[to, back, u]) < task
                value = old[l - 1][to, back] if copied else initial[o, i]
                at = slice(None) if owner.shape[2] == 1 else u
                assert torch.equal(learner.network.weight(l)[o, i, at], value[at])

    def ended(learner: Learner, context: TaskContext) -> None:
        old[:] = [weight.clone() for weight in learner.network.parameters.weights]
        small.update({place: value.clone() for place, value in small_values(learner).items()})

    world.learn(after_start=started, after_task=ended)


def small_values(learner: Learner) -> dict[tuple[int, str], Tensor]:
    """Biases and norms of hidden neurons, by group and name."""
    spec, parameters = learner.network.spec, learner.network.parameters
    biases = {(edge.target_group, f"bias {l}"): parameters.biases[l - 1] for l, edge in enumerate(spec.edges[:-1], 1)}
    norms = parameters.norms.items()
    tensors = {(spec.layer(n).group, f"{name} {n}"): tensor for n, norm in norms for name, tensor in norm.tensors().items()}
    return biases | tensors


def used_before(learner: Learner, task: int) -> dict[int, set[int]]:
    """The neurons of each group that have connections of earlier tasks."""
    found: dict[int, set[int]] = {s: set() for s in learner.network.spec.groups}
    for l, edge in enumerate(learner.network.spec.edges, 1):
        owner = learner.ledger.owner(l)
        for o, i, _ in torch.nonzero((owner > 0) & (owner < task)).tolist():
            found[edge.target_group].add(o)
            found[edge.source_group].add(o if edge.diagonal else i)
    return found


def counterpart(new: Allocation, source: Allocation | None, used: dict[int, set[int]], group: int, neuron: int) -> int:
    """The neuron that this one takes its values from."""
    drawn, theirs = new.free.get(group), None if source is None else source.free.get(group)
    unused = [] if drawn is None else [other for other in drawn.tolist() if other not in used[group]]
    if theirs is None or neuron not in unused or unused.index(neuron) >= len(theirs):
        return neuron
    return int(theirs[unused.index(neuron)])
