"""Drop and grow, importance and candidates, by hand."""

from __future__ import annotations

import torch

from afaf.network.ledger import Allocation, ClassAllocation, Ledger
from afaf.network.net import Network
from afaf.network.spec import Layer, NetworkSpec
from afaf.randomness import generator
from afaf.subnets.candidates import choose_candidates, neuron_scores
from afaf.subnets.consolidate import most_important
from afaf.subnets.rewire import Field, Importance, least_important, most_promising


def test_the_least_important_connections_are_dropped() -> None:
    owner = torch.tensor([[1, 1, 0], [1, 1, 1]], dtype=torch.int16)[:, :, None]
    importance = torch.tensor([[3.0, 0.0, -1.0], [0.0, 1.0, 2.0]])[:, :, None]
    assert least_important(owner, importance, 1, 2).tolist() == [1, 3]  # the zeros, in index order; another's does not count
    assert least_important(owner, importance, 1, 1).tolist() == [1]
    assert least_important(owner, importance, 1, 0).tolist() == []


def test_connections_grow_between_the_most_important_neurons() -> None:
    spec = NetworkSpec("s", (3,), (Layer("dense", 3), Layer("dense", 2)), 2)
    ledger, importance = Ledger(spec), Importance.zeros(spec, Ledger(spec))
    ledger.owner(1)[0, 1] = 1  # taken by another task
    everything = Allocation(2, 1, {}, (ClassAllocation(0, {}, {1: torch.tensor([0, 1, 2])}, {1: torch.tensor([0, 2])}),))
    field = Field.of(spec.edge(1), ledger, 1, everything)
    owner = ledger.owner(1)[field.rows, field.columns]
    assert most_promising(owner, field.score(importance), 2).tolist() == [0, 2]  # all tied: lowest index
    importance.neurons[1], importance.neurons[2] = torch.tensor([1.0, 5.0, 2.0]), torch.tensor([4.0, 100.0, 1.0])
    grown = most_promising(owner, field.score(importance), 3)  # row 0: 4, taken, 8; row 2: 1, 5, 2; row 1 is not among the targets
    assert grown.tolist() == [2, 4, 0]
    assert field.places(grown).tolist() == [2, 7, 0]
    ledger.fix(2, 1, torch.tensor([2]))
    assert most_promising(owner, Field.of(spec.edge(1), ledger, 1, everything).score(importance), 2).tolist() == [
        2,
        0,
    ]  # not into a fixed neuron


def test_importance_sums_within_a_connection_and_over_steps() -> None:
    spec = NetworkSpec("s", (2, 4, 4), (Layer("conv", 2), Layer("dense", 2)), 2)
    importance = Importance.zeros(spec, Ledger(spec))
    change = torch.zeros(2, 2, 9)
    change[0, 1, :3] = 1.0  # a kernel from map 1 to map 0
    importance.add(1, spec.edge(1), change)
    importance.add(1, spec.edge(1), change)
    assert importance.connections[0][0, 1, 0] == 6.0
    assert importance.neurons[1].tolist() == [0.0, 9.0]  # 3 after the first step, 6 after the second: early steps weigh more


def test_candidates_by_rule() -> None:
    activation = torch.tensor([0.0, 3.0, 1.0, 3.0, 2.0])
    draw = generator(0, "test")
    assert choose_candidates(activation, 2, "most", draw).tolist() == [1, 3]
    assert choose_candidates(activation, 1, "most", draw).tolist() == [1]  # a tie goes to the lowest index
    assert choose_candidates(activation, 2, "lowest", draw).tolist() == [2, 4]  # 0 does not count as lowest
    assert choose_candidates(activation, 9, "lowest", draw).tolist() == [1, 2, 3, 4]
    assert choose_candidates(activation, 2, "separating", draw).tolist() == [1, 3]
    assert len(choose_candidates(activation, 3, "random", draw)) == 3
    some = torch.tensor([0, 2, 4])
    assert choose_candidates(activation, 2, "most", draw, some).tolist() == [2, 4]
    assert choose_candidates(activation, 1, "lowest", draw, some).tolist() == [2]
    assert choose_candidates(activation, 9, "random", draw, some).tolist() == [0, 2, 4]


def test_neurons_that_tell_a_class_from_others_score_highest() -> None:
    spec = NetworkSpec("s", (3,), (Layer("dense", 3),), 2)
    network = Network(spec, seed=0)
    network.weight(1).copy_(torch.eye(3)[:, :, None])
    network.bias(1).zero_()
    own = torch.tensor([[1.0, 9.0, 0.0], [2.0, 8.0, 0.0]])
    others = torch.tensor([[6.0, 9.5, 0.0], [7.0, 8.5, 0.0]])
    images = {0: [own], 1: [others[:1], others[1:]]}
    score = neuron_scores(network, images, "separating")
    expected = torch.tensor([5 / 0.5**0.5, 0.5 / 0.5**0.5, 0.0], dtype=torch.float64)
    assert torch.allclose(score[0][2], expected, rtol=1e-4)
    assert torch.allclose(score[1][2], expected, rtol=1e-4), "two classes are told apart by the same neurons"
    assert neuron_scores(network, images, "most")[0][2].argmax() == 1, "the most active neuron responds to both alike"
    assert neuron_scores(network, {0: [own]}, "separating")[0][2].isfinite().all()
    assert neuron_scores(network, {0: [own[:1]], 1: [others[:1]]}, "separating")[0][2].argmax() == 0, "one image of each has no deviation"


def test_a_class_is_told_from_all_others_of_its_task_together() -> None:
    spec = NetworkSpec("s", (4,), (Layer("dense", 4),), 3)
    network = Network(spec, seed=0)
    network.weight(1).copy_(torch.eye(4)[:, :, None])
    network.bias(1).zero_()
    images = {c: torch.rand(n, 4, generator=generator(c, "images")) for c, n in enumerate((5, 7, 4))}
    score = neuron_scores(network, {c: list(x.split(3)) for c, x in images.items()}, "separating")
    own, others = images[1].double(), torch.cat([images[0], images[2]]).double()
    within = (own.var(0, correction=0) + others.var(0, correction=0)).sqrt()
    assert torch.allclose(score[1][2], (own.mean(0) - others.mean(0)).abs() / within, rtol=1e-4)


def test_the_most_important_of_the_selected() -> None:
    importance = torch.tensor([9.0, 1.0, 5.0, 5.0, 7.0])
    assert most_important(importance, torch.tensor([1, 2, 3, 4]), 2).tolist() == [4, 2]
