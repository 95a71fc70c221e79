"""PackNet: each task keeps its share of every layer, and what it keeps never changes again."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import afaf
from afaf.errors import CapacityError, ConfigError
from afaf.methods.base import TaskContext
from afaf.methods.packnet import PackNet, PackNetOptions
from afaf.subnets.consolidate import largest
from afaf.subnets.sizes import share
from afaf.training.learner import Learner
from small_worlds import small_spec, world_of
from worlds import World, probe

FIVE = (2, 1, 2, 1, 2)


def five_tasks(norm: str = "none", **options: Any) -> World:
    return world_of(PackNet, PackNetOptions(**{"share": 20.0, "retrain_epochs": 2, **options}), norm=norm, classes=FIVE)


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_what_a_task_owns_is_bit_identical_for_ever(norm: str) -> None:
    """Weights, and after the first task every bias and norm too; of the output, each task's own rows."""
    past: dict[int, Any] = {}

    def watch(learner: Learner, context: TaskContext) -> None:
        past[context.task] = (copy.deepcopy(learner.network.parameters), copy.deepcopy(learner.ledger.owners))

    learner = five_tasks(norm).learn(after_task=watch)
    for task in range(1, 5):
        parameters, owners = past[task]
        for l in range(1, learner.network.spec.L):
            owned = owners[l - 1] > 0
            assert bool(owned.any())
            assert torch.equal(parameters.weights[l - 1][owned], learner.network.weight(l)[owned])
            assert torch.equal(owners[l - 1][owned], learner.ledger.owner(l)[owned])
            if l < learner.network.spec.L - 1:
                assert torch.equal(parameters.biases[l - 1], learner.network.bias(l))
        rows = slice(0, sum(FIVE[:task]))
        assert torch.equal(parameters.biases[-1][rows], learner.network.bias(learner.network.spec.L - 1)[rows])
        for layer, before in parameters.norms.items():
            after = learner.network.parameters.norms[layer].tensors()
            assert all(torch.equal(tensor, after[name]) for name, tensor in before.tensors().items())


def test_each_task_keeps_its_share_of_each_layer_exactly_and_the_last_what_is_left() -> None:
    learner = five_tasks().learn()
    spec = learner.network.spec
    for l in range(1, spec.L - 1):
        weights = spec.edge(l).weights
        counts = [int(learner.ledger.owned_by(l, task).sum()) for task in range(1, 6)]
        assert counts[:4] == [share(20, weights)] * 4
        assert sum(counts) == weights
    row = spec.edge(spec.L - 1).fan_in
    assert [int(learner.ledger.owned_by(spec.L - 1, task).sum()) for task in range(1, 6)] == [n * row for n in FIVE]
    assert learner.params == spec.dense_params


def test_a_smaller_share_leaves_room() -> None:
    learner = five_tasks(share=10.0).learn()
    for l in range(1, learner.network.spec.L - 1):
        weights = learner.network.spec.edge(l).weights
        assert [int(learner.ledger.owned_by(l, task).sum()) for task in range(1, 6)] == [share(10, weights)] * 5
        assert bool((learner.network.weight(l)[learner.ledger.owner(l) == 0] == 0).all())


def test_pruning_keeps_the_largest_and_ties_go_to_the_lowest_index() -> None:
    weight = torch.tensor([[0.5, -2.0, 0.5, 0.0], [-0.5, 3.0, 0.5, 9.0]])
    among = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]], dtype=torch.bool)
    assert torch.nonzero(largest(weight, among, 4).flatten()).flatten().tolist() == [0, 1, 2, 5]
    assert int(largest(weight, among, 0).sum()) == 0
    assert torch.equal(largest(weight, among, 7), among)


def test_each_task_prunes_its_smallest_weights() -> None:
    """At the start of retraining the kept weights are those of largest magnitude among the ones just trained."""
    trained: dict[int, torch.Tensor] = {}
    world = five_tasks(retrain_epochs=0)
    start = world.method.start

    def watched(learner: Learner, context: TaskContext, phase: int) -> None:
        if phase == 1:
            trained[context.task] = learner.network.weight(2).clone()
            candidates = learner.ledger.owned_by(2, context.task).clone()
        start(learner, context, phase)
        if phase == 1 and context.task < 5:
            own = learner.ledger.owned_by(2, context.task)
            magnitude = trained[context.task].abs()
            assert float(magnitude[own].min()) >= float(magnitude[candidates & ~own].max())
            assert bool((learner.network.weight(2)[candidates & ~own] == 0).all())

    world.method.start = watched  # type: ignore[method-assign]
    world.learn()


@pytest.mark.parametrize(("start_at", "zero"), [("zero", True), ("initial", False)])
def test_later_tasks_start_where_pruning_left_the_weights_or_anew(start_at: Any, zero: bool) -> None:
    world = five_tasks(start_at=start_at)

    def watch(learner: Learner, context: TaskContext) -> None:
        free = learner.ledger.owned_by(1, context.task)
        if context.task == 2 and int(free.sum()) > share(20, free.numel()):  # at the start of training, before pruning
            values = learner.network.weight(1)[free]
            assert bool((values == 0).all()) == zero
            if not zero:
                assert torch.equal(values, learner.network.initial_weights(1)[free])
            seen.append(context.task)

    seen: list[int] = []
    world.learn(after_start=watch)
    assert seen == [2]


def test_with_its_own_mask_a_task_answers_as_it_did() -> None:
    answers: dict[int, torch.Tensor] = {}
    world = five_tasks()
    x = probe(world.spec)

    def watch(learner: Learner, context: TaskContext) -> None:
        answers[context.task] = learner.network(x)[:, : sum(FIVE[: context.task])]

    learner = world.learn(after_task=watch)
    for task, logits in answers.items():
        masked = world.method.predictor(learner, task)(x)
        assert torch.equal(masked[:, : logits.shape[1]], logits)
    assert world.method.predictor(learner) is learner.network
    assert not torch.equal(learner.network(x)[:, :2], answers[1])


def test_both_kinds_of_task_il_are_reported() -> None:
    """With its own mask a task keeps its accuracy; with all connections it need not."""
    settings = {"learn.epochs": 3, "learn.batch_size": 32, "method.retrain_epochs": 1}
    results = afaf.run("split-digits", "packnet", settings=settings, device="cpu")
    assert results.bwt_task_il == 0
    assert results.R_task_il_unmasked is not None
    assert all(masked[-1] == plain[-1] for masked, plain in zip(results.R_task_il, results.R_task_il_unmasked, strict=True))
    assert results.acc_task_il_unmasked == pytest.approx(np.mean(results.R_task_il_unmasked[-1]))
    assert results.acc_task_il_unmasked != results.acc_task_il
    stored = results.to_dict()
    assert stored["R_task_il_unmasked"] == results.R_task_il_unmasked
    plain = afaf.run(afaf.open_stream("split-digits")[:2], "finetune", settings={"learn.epochs": 1}, device="cpu")
    assert plain.R_task_il_unmasked is None
    assert plain.acc_task_il_unmasked == plain.acc_task_il


def test_retraining_is_a_phase_of_its_own_and_spared_where_nothing_was_pruned() -> None:
    world, learner = five_tasks(), None
    plans: list[tuple[int, int, int]] = []
    plan = world.method.plan

    def watched(learner: Learner, context: TaskContext, phase: int) -> Any:
        made = plan(learner, context, phase)
        plans.append((context.task, made.phase, made.epochs))
        return made

    world.method.plan = watched  # type: ignore[method-assign]
    learner = world.learn()
    assert plans == [(task, phase, [3, 2][phase] if task < 5 else [3, 0][phase]) for task in range(1, 6) for phase in (0, 1)]
    assert learner.tasks_learned == 5


def test_shares_that_leave_nothing_are_refused() -> None:
    outline = five_tasks().stream.outline
    for wrong, message in ((30.0, r"nothing for task 5: 5 tasks have room for 20 percent"), (0.0, "nothing")):
        with pytest.raises(CapacityError, match=message):
            PackNet(PackNetOptions(share=wrong), five_tasks().method.settings).check(small_spec(), outline)
    with pytest.raises(ConfigError, match=r"method\.share"):
        afaf.run("split-digits", "packnet", settings={"method.share": 120.0}, device="cpu")
    PackNet(PackNetOptions(share=24.0), five_tasks().method.settings).check(small_spec(), outline)


@pytest.mark.parametrize("masked", [True, False])
def test_masked_rows_of_other_tasks_have_no_influence_on_a_task(masked: bool) -> None:
    def learned_after(factor: float) -> torch.Tensor:
        options = PackNetOptions(share=20.0, retrain_epochs=2, loss_over="all", mask_other_rows=masked)
        world = world_of(PackNet, options, classes=(2, 2))

        def scale_old_rows(learner: Learner, context: TaskContext) -> None:
            if context.task == 1:
                learner.network.weight(world.spec.L - 1)[list(context.classes)] *= factor

        learner = world.learn(after_task=scale_old_rows)
        return learner.network.weight(1)[learner.ledger.owned_by(1, 2)]

    assert torch.equal(learned_after(1.0), learned_after(3.0)) == masked
