"""Isolated networks: no neuron is shared, so nothing is forgotten once the task is known."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import afaf
from afaf.errors import CapacityError
from afaf.methods.base import TaskContext
from afaf.methods.isolated import Isolated, IsolatedOptions
from afaf.runs.setup import set_up
from afaf.streams.tasks import Outline
from afaf.training.learner import Learner
from afaf.training.settings import SparseSettings
from small_worlds import world_of
from worlds import probe

SPARSE = SparseSettings(alloc={"all": 50, "output": 25}, density={"all": 30, "W_1": 100}, fixed={"all": 20, "output": 100})


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_a_tasks_own_logits_never_change(norm: str) -> None:
    """To the last bit, with norms too, whose statistics move for everybody while a task is learned."""
    world = world_of(Isolated, IsolatedOptions(share=33.0), norm=norm, sparse=SPARSE, epochs=4)
    x = probe(world.spec)
    answers: dict[int, torch.Tensor] = {}

    def watch(learner: Learner, context: TaskContext) -> None:
        answers[context.task] = learner.network(x)[:, list(context.classes)]

    learner = world.learn(after_task=watch)
    for task, classes in learner.classes_of.items():
        assert torch.equal(learner.network(x)[:, list(classes)], answers[task])
        assert float(answers[task].std()) > 0


def test_no_neuron_is_shared() -> None:
    learner = world_of(Isolated, IsolatedOptions(share=33.0), sparse=SPARSE).learn()
    for l in range(1, learner.network.spec.L - 1):
        above = [{int(i) for i in torch.nonzero(learner.ledger.owned_by(l, t))[:, 0]} for t in (1, 2, 3)]
        below = [{int(i) for i in torch.nonzero(learner.ledger.owned_by(l + 1, t))[:, 1]} for t in (1, 2, 3)]
        touched = [a | b for a, b in zip(above, below, strict=True)]
        assert not touched[0] & touched[1]
        assert not (touched[0] | touched[1]) & touched[2]


def test_nothing_is_forgotten_in_task_il() -> None:
    results = afaf.run("split-digits", "isolated", settings={"learn.epochs": 2, "learn.batch_size": 32}, device="cpu")
    assert results.bwt_task_il == 0
    for i in range(5):
        assert len({results.R_task_il[j][i] for j in range(i, 5)}) == 1


@pytest.mark.parametrize(("stream", "short"), [("split-cifar10", False), ("sim-cifar10", True), ("sim-cifar100", False), ("mix", False)])
def test_as_large_as_spacenets_sub_networks(stream: str, short: bool) -> None:
    """At most, and within 0.1 %; on sim-CIFAR10 the tasks' own neurons have fewer pairs than that, and it has them all."""
    isolated, spacenet = (afaf.costs(stream, method).params for method in ("isolated", "spacenet"))
    assert isolated <= spacenet
    if short:
        sizes = [3, 12, 25, 51, 409, 409, 2]
        blocks = [9, 9, 9, 36, 1, 1]
        assert isolated == 5 * sum(a * b * block for a, b, block in zip(sizes, sizes[1:], blocks, strict=False))
    else:
        assert isolated >= 0.999 * spacenet


def test_shares_that_do_not_fit_are_refused() -> None:
    settings: dict[str, Any] = {"method.share": 21}
    with pytest.raises(CapacityError, match=r"5 tasks need 105 percent .* set it to 20 or lower"):
        afaf.costs("split-digits", "isolated", settings=settings)


@pytest.mark.parametrize("n_tasks", [2, 3, 6, 7, 9, 11, 12, 13, 32])
def test_the_share_that_is_advised_is_accepted(n_tasks: int) -> None:
    outline = Outline("many tasks", (1, 8, 8), tuple((str(i),) for i in range(n_tasks)), (10,) * n_tasks)
    with pytest.raises(CapacityError, match="or lower") as refused:
        set_up(outline, "isolated", {"method": {"share": 90.0}})
    advised = re.search(r"set it to (\S+) or lower", str(refused.value))
    assert advised is not None
    assert 0 <= 100 - float(advised[1]) * n_tasks < 0.01
    set_up(outline, "isolated", {"method": {"share": float(advised[1])}})
