"""A learning rate that falls when the loss on images held out does not: against the rule as FACIL has it, written down once more here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from afaf.errors import ConfigError
from afaf.methods.ewc import EWC, EWCOptions
from afaf.runs.job import Job
from afaf.runs.runner import run
from afaf.streams.tasks import Split, Stream
from afaf.training import plateau
from afaf.training.learner import Learner
from afaf.training.plan import LearningPlan
from afaf.training.plateau import loss_on
from afaf.training.step import Workspace
from afaf.training.task_data import TaskData
from conftest import small_stream
from small_worlds import numbers, world_of

Numbers = dict[str, torch.Tensor]


@dataclass
class Learned:
    """A task learned with patience: the loss on images held out after each epoch, how the network stood then, and in the end."""

    rates: list[float] = field(default_factory=list)
    before: list[Numbers] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    after: list[Numbers] = field(default_factory=list)
    end: Numbers = field(default_factory=dict)
    memory: Numbers = field(default_factory=dict)


def as_it_stands(learner: Learner) -> Numbers:
    return {name: tensor.clone() for name, tensor in numbers(learner).items()}


def same(one: Numbers, other: Numbers) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def learn(lr: float, patient: int, epochs: int, monkeypatch: pytest.MonkeyPatch) -> Learned:
    """Of the images held out a third have the other class's label: the better the task is learned, the larger the loss on them."""
    world = world_of(EWC, EWCOptions(), norm="batch", epochs=epochs, lr=lr, schedule="plateau", patience=patient)
    found = Learned()

    def remembered(learner: Learner, *more: Any) -> float:
        found.losses.append(loss_on(learner, *more))
        found.after.append(as_it_stands(learner))
        return found.losses[-1]

    def start(learner: Learner, plan: LearningPlan) -> Workspace:
        found.before.append(as_it_stands(learner))
        return whole(learner, plan)

    def rates(self: LearningPlan, lr: float, epoch: int, steps: int) -> Any:
        found.rates.append(lr)
        return coefficients(self, lr, epoch, steps)

    whole, coefficients = Workspace.whole, LearningPlan.coefficients
    monkeypatch.setattr(plateau, "loss_on", remembered)
    monkeypatch.setattr(Workspace, "whole", start)  # the eager engine asks for it at the beginning of each epoch
    monkeypatch.setattr(LearningPlan, "coefficients", rates)
    task = world.stream[0]
    labels = np.where(np.arange(len(task.test)) % 3 == 0, 1 - task.test.labels, task.test.labels)
    world.stream = Stream("one", [replace(task, test=Split(task.test.images, labels))])
    learner = world.learn()
    found.end, found.memory = as_it_stands(learner), dict(learner.memory)
    return found


def by_the_rule(losses: list[float], lr: float, patient: int) -> list[float]:
    """The rate of each epoch, from the losses after those before it."""
    rates, best, left = [lr], float("inf"), patient
    for loss in losses:
        if loss < best:
            best, left = loss, patient
        else:
            left -= 1
            if left == 0:
                lr, left = lr / 3, patient
        rates.append(lr)
    return rates


@pytest.mark.parametrize("patient", [1, 3])
def test_the_rate_falls_to_a_third_when_patience_is_at_its_end(patient: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = learn(0.1, patient, 12, monkeypatch)
    assert len(found.losses) == 12
    assert found.rates == by_the_rule(found.losses, 0.1, patient)[:12]
    assert len(set(found.rates)) > 1, "no example: the rate never fell"


def test_with_a_lower_rate_learning_goes_on_from_the_best_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    found = learn(0.1, 3, 12, monkeypatch)
    rates, losses = found.rates, found.losses
    for epoch in range(1, 12):
        start = losses.index(min(losses[:epoch])) if rates[epoch] < rates[epoch - 1] else epoch - 1
        assert same(found.before[epoch], found.after[start])
    assert any(rates[i] < rates[i - 1] and losses.index(min(losses[:i])) < i - 1 for i in range(1, 12)), "no example"


def test_in_the_end_the_network_is_that_of_the_best_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    found = learn(0.1, 3, 5, monkeypatch)
    best = found.losses.index(min(found.losses))
    assert best < 4, "no example: the last epoch is the best"
    assert same(found.end, found.after[best])
    assert not same(found.end, found.after[-1])
    assert not any(name.startswith("schedule") for name in found.memory)


def test_below_the_lowest_rate_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    found = learn(0.1, 1, 60, monkeypatch)
    rates = by_the_rule(found.losses, 0.1, 1)
    assert rates[-1] < 1e-4 <= rates[-2]
    assert found.rates == rates[:-1]


@pytest.mark.parametrize("method", ["finetune", "ewc", "packnet"])
def test_with_rotations_images_held_out_are_judged_by_the_rows_that_are_learned(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows 4 c to 4 c + 3 stand for the four rotations of class c, of images held out as of images learned from."""
    judged: dict[int, set[tuple[int, ...]]] = {}

    def watched(learner: Learner, plan: LearningPlan, data: TaskData) -> float:
        judged.setdefault(plan.task, set()).add(tuple(data.labels.tolist()))
        images = data.batch(torch.arange(4))[0]
        assert all(torch.equal(images[v], torch.rot90(images[0], v, (1, 2))) for v in range(4))
        return loss_on(learner, plan, data)

    monkeypatch.setattr(plateau, "loss_on", watched)
    stream = small_stream([2, 2], per_class=12)
    settings: dict[str, Any] = {"learn.epochs": 2, "learn.patience": 1, "run.validation": 0.3, "parts.rotations": True}
    run(Job(stream, method, settings={**settings, "network.name": "mlp", **({"method.share": 30} if method == "packnet" else {})}))
    for task in stream.with_validation(0.3):
        rows = tuple(4 * int(c) + v for c in task.held_out("validation").labels for v in range(4))
        assert judged[task.number] == {rows}


def test_settings_that_contradict_it_are_refused() -> None:
    stream = small_stream([2, 2], per_class=8)
    for settings, named in (
        ({"learn.patience": 3}, r"run\.validation"),
        ({"learn.schedule": "plateau"}, r"run\.validation"),
        ({"learn.patience": 3, "learn.schedule": "cosine", "run.validation": 0.1}, r"learn\.patience"),
        ({"learn.patience": -1, "run.validation": 0.1}, r"learn\.patience"),
        ({"learn.nesterov": True}, r"learn\.nesterov"),
        ({"learn.optimiser": "adamw", "learn.momentum": 0.9}, r"learn\.momentum"),
    ):
        with pytest.raises(ConfigError, match=named):
            run(Job(stream, "ewc", settings=settings))
