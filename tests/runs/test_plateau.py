"""A learning rate that falls when the loss on images held out does not: against the rule as FACIL has it, written down once more here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from afaf.errors import ConfigError
from afaf.methods.ewc import EWC, EWCOptions
from afaf.runs import plateau as patience
from afaf.runs.job import Job
from afaf.runs.plateau import Patient, loss_on
from afaf.runs.runner import run
from afaf.streams.tasks import Split
from afaf.training.eager import EagerEngine
from afaf.training.learner import Learner
from afaf.training.plan import LearningPlan
from afaf.training.report import EpochReport, OnEpoch
from afaf.training.task_data import TaskData
from conftest import small_stream
from small_worlds import numbers, world_of

Numbers = dict[str, torch.Tensor]


class Recording(EagerEngine):
    """Tells with which rate each epoch was learned and from where, and how often learning began anew."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.rates: list[float] = []
        self.before: list[Numbers] = []

    def learn(self, learner: Learner, plan: LearningPlan, data: TaskData, on_epoch: OnEpoch | None = None, first_epoch: int = 0) -> None:
        now = as_it_stands(learner)
        self.calls += 1

        def told(report: EpochReport) -> None:
            nonlocal now
            self.rates.append(plan.lr)
            self.before.append(now)
            assert on_epoch is not None
            on_epoch(report)
            now = as_it_stands(learner)

        super().learn(learner, plan, data, told, first_epoch)


@dataclass
class Learned:
    """A task learned with patience: the loss on images held out after each epoch, how the network stood then, and in the end."""

    engine: Recording
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
    world = world_of(EWC, EWCOptions(), norm="batch", epochs=epochs, lr=lr)
    found = Learned(Recording())

    def remembered(learner: Learner, *more: Any) -> float:
        found.losses.append(loss_on(learner, *more))
        found.after.append(as_it_stands(learner))
        return found.losses[-1]

    monkeypatch.setattr(patience, "loss_on", remembered)
    task = world.stream[0]
    labels = np.where(np.arange(len(task.test)) % 3 == 0, 1 - task.test.labels, task.test.labels)
    world.engine = Patient(found.engine, patient, TaskData([(Split(task.test.images, labels), task.preparation)]), 5)
    world.stream = world.stream[:1]
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
    assert found.engine.rates == by_the_rule(found.losses, 0.1, patient)[:12]
    assert len(set(found.engine.rates)) > 1, "no example: the rate never fell"
    assert found.engine.calls == len(set(found.engine.rates)), "what an engine prepares, it prepares for all epochs of a rate"


def test_with_a_lower_rate_learning_goes_on_from_the_best_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    found = learn(0.1, 3, 12, monkeypatch)
    rates, losses = found.engine.rates, found.losses
    for epoch in range(1, 12):
        start = losses.index(min(losses[:epoch])) if rates[epoch] < rates[epoch - 1] else epoch - 1
        assert same(found.engine.before[epoch], found.after[start])
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
    assert found.engine.rates == rates[:-1]


def test_what_it_is_not_for_is_refused() -> None:
    stream = small_stream([2, 2], per_class=8)
    with pytest.raises(ConfigError, match=r"learn\.patience is for methods that train the whole network, and 'afaf' does not"):
        run(Job(stream, "afaf", settings={"learn.patience": 3, "run.validation": 0.1}))
    with pytest.raises(ConfigError, match=r"needs images held out: set run\.validation"):
        run(Job(stream, "ewc", settings={"learn.patience": 3}))
    with pytest.raises(ConfigError, match=r"learn\.patience"):
        run(Job(stream, "ewc", settings={"learn.patience": -1, "run.validation": 0.1}))
